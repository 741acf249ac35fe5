"""The end of a run: which weights are scored on the test split, and what the numbers are called."""

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter
from toy_training import ConstantSchedule, ToyLoader, cross_entropy, results

from config import load_config
from conftest import ToyModel, make_triples
from engine.checkpoint import describe_choice, load_checkpoint, open_checkpoint, save_checkpoint
from engine.files import save_json
from engine.final import read_history, score_epochs, write_metrics
from engine.train import Trainer, TrainOptions
from errors import UserError
from evaluation.build import make_evaluate
from evaluation.loop import Evaluate
from evaluation.ranking import score_queries
from evaluation.result import EvaluationResult, main_scores
from structures import ModalBatch

MakeTrainer = Callable[..., Trainer]
BatchMaker = Callable[..., ModalBatch]


@pytest.fixture
def test_split(make_batch: BatchMaker) -> Evaluate:
    """Four triples of two identities, seen by two cameras each."""
    triples = make_triples([make_batch([5, 5, 6, 6], seed=9)])
    return make_evaluate(load_config(None), triples, torch.device("cpu"))


@pytest.fixture
def make_trainer(tmp_path: Path, toy_model: ToyModel, make_batch: BatchMaker) -> MakeTrainer:
    def make(split: str, *scores: float, epochs: int = 3) -> Trainer:
        loader = ToyLoader([make_batch([0, 1, 2, 3], seed=seed) for seed in range(3)])
        return Trainer(
            model=toy_model,
            criterion=cross_entropy,
            optimizer=torch.optim.SGD([{"params": toy_model.parameters(), "lr": 0.5, "name": "all"}]),
            schedule=ConstantSchedule(),
            loader=loader,
            set_epoch=loader.set_epoch,
            evaluate=results(*scores),
            device=torch.device("cpu"),
            folder=tmp_path,
            options=TrainOptions(epochs=epochs, eval_split=split),
        )

    return make


def finish(trainer: Trainer, test_split: Evaluate) -> tuple[EvaluationResult, dict[str, Any]]:
    return score_epochs(trainer, trainer.run(), test_split, untrained=None)


def test_what_is_best_on_validation_is_scored_on_test(
    make_trainer: MakeTrainer, test_split: Evaluate, toy_model: ToyModel, tmp_path: Path
) -> None:
    weights: list[torch.Tensor] = []
    seen = toy_model.register_forward_pre_hook(
        lambda model, _: None if model.training else weights.append(model.linear.weight.clone())
    )
    scored_last, summary = finish(make_trainer("validation", 0.1, 0.4, 0.3), test_split)
    seen.remove()
    chosen = summary["best on validation"]
    assert (chosen["epoch"], chosen["validation_mAP"]) == (2, 40.0)
    last, best = (torch.load(tmp_path / f"{name}.pth", weights_only=True) for name in ("last", "best"))
    assert (best["epoch"], best["chosen_on"], best["chosen_mAP"]) == (2, "validation", 40.0)
    assert (scored_last.num_samples, chosen["samples"]) == (4, 4)  # of the test split, both
    assert main_scores(summary["last epoch"]) == scored_last.main.as_dict()
    # It was encoded twice, in the end: with the last weights, then with the best.
    assert len(weights) == 2
    assert torch.equal(weights[0], last["model"]["linear.weight"])
    assert torch.equal(weights[1], best["model"]["linear.weight"])
    assert not torch.equal(weights[0], weights[1])
    epochs = json.loads((tmp_path / "metrics.json").read_text())["epochs"]
    assert [epoch["validation"]["pattern_1"]["mAP"] for epoch in epochs] == [10.0, 40.0, 30.0]
    assert not any("test" in epoch for epoch in epochs)


def test_what_is_best_on_test_is_known_already(make_trainer: MakeTrainer, test_split: Evaluate) -> None:
    last, summary = finish(make_trainer("test", 0.4, 0.1, 0.4), test_split)
    best = summary["best on test"]
    assert (best["epoch"], best["test_mAP"]) == (1, 40.0)  # the first of equals
    assert last.main.mean_ap == 0.4
    assert best["pattern_1"]["mAP"] == 40.0


def test_controls_are_scored_on_the_test_split(
    make_trainer: MakeTrainer, test_split: Evaluate, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer("test", 0.4, epochs=1)
    last, summary = score_epochs(trainer, trainer.run(), test_split, untrained=ToyModel())
    assert list(summary) == ["last epoch", "best on test", "untrained", "raw pixels"]
    assert summary["untrained"]["samples"] == summary["raw pixels"]["samples"] == 4
    with caplog.at_level("INFO"):
        write_metrics(trainer, last, summary, cost={})
    assert "control: raw pixels" in caplog.text


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_summary_and_the_log_say_which_number_is_which(
    make_trainer: MakeTrainer,
    test_split: Evaluate,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    split: str,
) -> None:
    with caplog.at_level("INFO"):
        trainer = make_trainer(split, 0.1, 0.4, 0.3)
        last, found = finish(trainer, test_split)
        trainer.progress.environments = [{"threads": 1}]
        write_metrics(trainer, last, found, cost={"gflops": 0})
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert (content["environments"], content["cost"]) == ([{"threads": 1}], {"gflops": 0})
    assert content["breakdown"] == last.breakdown
    summary = content["summary"]
    assert list(summary) == ["last epoch", f"best on {split}"]
    assert (summary["last epoch"]["epoch"], summary[f"best on {split}"]["epoch"]) == (3, 2)
    assert summary[f"best on {split}"][f"{split}_mAP"] == 40.0
    assert summary["last epoch"]["pattern_1"] == last.main.as_dict()
    reason = {
        "validation": "chosen by 40.0 mAP on the identities that DATASETS.VAL_IDS holds out",
        "test": "chosen by this very score (DeMo's habit)",
    }[split]
    assert f"best on {split} (feature 1): epoch 2, {reason}" in caplog.text
    assert f"epoch 1: {split} mAP 10.0" in caplog.text
    assert describe_choice(open_checkpoint(tmp_path / "best.pth")) == f"epoch 2, best on {split}"
    last_choice = describe_choice(open_checkpoint(tmp_path / "last.pth"))
    assert last_choice == "after epoch 3, not chosen by a score"
    assert describe_choice({"epoch": 2, "chosen_on": split}) == ""  # another program wrote it


def test_a_finished_run_that_is_resumed_ends_the_same(
    make_trainer: MakeTrainer, test_split: Evaluate, tmp_path: Path
) -> None:
    _, first = finish(make_trainer("validation", 0.1, 0.4, 0.3), test_split)
    resumed = make_trainer("validation", 0.3)
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    _, again = finish(resumed, test_split)
    assert again["best on validation"]["epoch"] == 2
    for summary in (first, again):
        for scores in summary.values():
            del scores["seconds"]
    assert again == first


def test_the_best_epoch_may_be_of_an_earlier_version(
    make_trainer: MakeTrainer, test_split: Evaluate, tmp_path: Path
) -> None:
    first = make_trainer("validation", 0.4, epochs=1)
    first.run()
    content = open_checkpoint(tmp_path / "best.pth")
    old = {f"old.{name}": value for name, value in content.pop("model").items()}
    resumed = make_trainer("validation", 0.3, epochs=2)
    resumed.rename = lambda weights: {name.removeprefix("old."): value for name, value in weights.items()}
    resumed.resume({**load_checkpoint(tmp_path / "last.pth"), "model": old})
    save_checkpoint(tmp_path / "best.pth", model=old, **content)
    _, summary = finish(resumed, test_split)
    assert summary["best on validation"]["epoch"] == 1


def test_the_best_epoch_so_far_must_be_there(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer("validation", 0.1, epochs=1).run()
    (tmp_path / "best.pth").unlink()
    with pytest.raises(UserError, match=r"best\.pth is missing: it holds the best epoch so far"):
        make_trainer("validation", 0.2, epochs=2).resume(load_checkpoint(tmp_path / "last.pth"))
    make_trainer("test", 0.2, epochs=2).resume(
        load_checkpoint(tmp_path / "last.pth")
    )  # there nobody needs it


@pytest.mark.parametrize("split", ["validation", "test"])
def test_tensorboard_names_the_split(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    names = set()
    monkeypatch.setattr(SummaryWriter, "add_scalar", lambda self, name, *_, **__: names.add(name))
    make_trainer(split, 0.1, epochs=1).run()
    assert {name for name in names if "pattern" in name} == {
        f"{split}/mAP_pattern_1",
        f"{split}/rank_1_pattern_1",
    }


SCORES = {"pattern_1": {"mAP": 30.0, "rank_1": 40, "skipped": 0}, "samples": 12}
EPOCHS = [
    {"epoch": 1, "loss": 2.0, "accuracy": 0.1, "lr": {"all": 0.1}},
    {"epoch": 2, "loss": 1, "accuracy": 0.5, "validation": SCORES},
]
SUMMARY = {"last epoch": SCORES, "untrained": SCORES}


def test_history_of_the_run_that_made_the_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_history(tmp_path) == {}
    history = {"epochs": EPOCHS, "summary": SUMMARY}
    save_json(tmp_path / "metrics.json", {**history, "cost": 3})
    assert read_history(tmp_path) == history
    assert not caplog.records


def strange_histories() -> dict[str, str]:
    """Files that are not what a run writes, by what is wrong with them."""

    def with_epoch(**changes: object) -> str:
        return json.dumps({"epochs": [EPOCHS[0], {**EPOCHS[1], **changes}], "summary": SUMMARY})

    def with_control(control: object) -> str:
        return json.dumps({"epochs": EPOCHS, "summary": {**SUMMARY, "untrained": control}})

    return {
        "not JSON": "{",
        "no text": "\udcff",
        "too deep": "[" * 100_000,
        "a list": "[]",
        "null": "null",
        "a number": "3",
        "an unfinished run": json.dumps({"epochs": EPOCHS}),
        "epochs by name": json.dumps({"epochs": {"1": EPOCHS[0]}, "summary": SUMMARY}),
        "epochs that are text": json.dumps({"epochs": "12", "summary": SUMMARY}),
        "epochs that are numbers": json.dumps({"epochs": [1, 2], "summary": SUMMARY}),
        "epochs that are null": json.dumps({"epochs": [None], "summary": SUMMARY}),
        "an epoch without a loss": json.dumps({"epochs": [{"epoch": 1}], "summary": SUMMARY}),
        "a loss that is text": with_epoch(loss="1.0"),
        "a loss that is a switch": with_epoch(loss=True),
        "an accuracy that is a list": with_epoch(accuracy=[0.5]),
        "an epoch that is null": with_epoch(epoch=None),
        "scores that are null": with_epoch(validation=None),
        "scores that are a list": with_epoch(validation=[1]),
        "scores of no pattern": with_epoch(validation={"samples": 3}),
        "scores that are text": with_epoch(validation={"pattern_1": "good"}),
        "an mAP that is null": with_epoch(validation={"pattern_1": {"mAP": None, "rank_1": 1.0}}),
        "an mAP that is nested": with_epoch(validation={"pattern_1": {"mAP": {"a": 1}, "rank_1": 1.0}}),
        "no rank 1": with_epoch(test={"pattern_1": {"mAP": 1.0}}),
        "a summary that is a list": json.dumps({"epochs": EPOCHS, "summary": [SUMMARY]}),
        "a summary that is null": json.dumps({"epochs": EPOCHS, "summary": None}),
        "a control that is null": with_control(None),
        "a control that is a number": with_control(3),
        "a control without scores": with_control({}),
        "a control with scores that are lists": with_control({"pattern_3": [1, 2]}),
        "a control with a score that is text": with_control({"pattern_3": {"mAP": "1", "rank_1": 1}}),
    }


@pytest.mark.parametrize("case", strange_histories())
def test_a_strange_history_is_left_out_with_a_warning(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = strange_histories()[case].encode(errors="surrogateescape")
    (tmp_path / "metrics.json").write_bytes(content)
    assert read_history(tmp_path) == {}
    assert caplog.text.count("training is not shown") == 1
    assert (tmp_path / "metrics.json").read_bytes() == content


def test_a_history_that_is_not_a_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "metrics.json")
    assert read_history(tmp_path) == {}
    (tmp_path / "metrics.json").unlink()
    (tmp_path / "metrics.json").mkdir()
    assert read_history(tmp_path) == {}
    assert caplog.text.count("training is not shown") == 2


def test_from_the_end_of_an_epoch_to_its_ap_there_are_five_calls(
    make_trainer: MakeTrainer, test_split: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain that docs/evaluation.md names."""
    trainer = make_trainer("test", epochs=1)
    trainer.evaluate = test_split
    chains: list[list[str]] = []

    def traced(*args: Any, **options: Any) -> Any:
        chains.append([frame.name for frame in traceback.extract_stack() if not frame.name.startswith("<")])
        return score_queries(*args, **options)

    monkeypatch.setattr("evaluation.ranking.score_queries", traced)
    trainer.run()
    (chain,) = chains
    expected = ["run", "_run_epoch", "_evaluate_epoch", "evaluate", "score_retrieval", "traced"]
    assert chain[-6:] == expected
