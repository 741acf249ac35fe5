"""The end of a run: which weights are scored on the test split, and what the numbers are called."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter
from toy_training import ConstantSchedule, FreeOfCharge, ToyLoader, cross_entropy, results

from conftest import ToyModel
from engine.checkpoint import describe_choice, load_checkpoint
from engine.distributed import World
from engine.evaluate import Evaluation
from engine.final import score_epochs
from engine.results import FinalScores, write_metrics
from engine.train import Trainer, TrainOptions
from evaluation.evaluator import RetrievalEvaluator
from structures import ModalBatch, UserError

MakeTrainer = Callable[..., Trainer]
BatchMaker = Callable[..., ModalBatch]


@pytest.fixture
def test_split(make_batch: BatchMaker) -> Evaluation:
    """Four triples of two identities, seen by two cameras each."""
    rows = [0, 1, 2, 3]
    evaluator = RetrievalEvaluator(rows, rows, protocol="camera", normalise=True, after_neck=False)
    return Evaluation([make_batch([5, 5, 6, 6], seed=9)], evaluator, torch.device("cpu"), (), World())


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


def finish(trainer: Trainer, test_split: Evaluation) -> FinalScores:
    return score_epochs(trainer, trainer.run(), test_split, untrained=None)


def test_what_is_best_on_validation_is_scored_on_test(
    make_trainer: MakeTrainer, test_split: Evaluation, toy_model: ToyModel, tmp_path: Path
) -> None:
    weights: list[torch.Tensor] = []
    seen = toy_model.register_forward_pre_hook(
        lambda model, _: None if model.training else weights.append(model.linear.weight.clone())
    )
    scores = finish(make_trainer("validation", 0.1, 0.4, 0.3), test_split)
    seen.remove()
    assert (scores.best_epoch, scores.chosen_on, scores.chosen_by) == (2, "validation", 40.0)
    last, best = (torch.load(tmp_path / f"{name}.pth", weights_only=True) for name in ("last", "best"))
    assert (best["epoch"], best["chosen_on"], best["chosen_mAP"]) == (2, "validation", 40.0)
    assert (scores.last.num_samples, scores.best["samples"]) == (4, 4)  # of the test split, both
    # It was encoded twice, in the end: with the last weights, then with the best.
    assert len(weights) == 2
    assert torch.equal(weights[0], last["model"]["linear.weight"])
    assert torch.equal(weights[1], best["model"]["linear.weight"])
    assert not torch.equal(weights[0], weights[1])
    epochs = json.loads((tmp_path / "metrics.json").read_text())["epochs"]
    assert [epoch["validation"]["pattern_1"]["mAP"] for epoch in epochs] == [10.0, 40.0, 30.0]
    assert not any("test" in epoch for epoch in epochs)


def test_what_is_best_on_test_is_known_already(make_trainer: MakeTrainer, test_split: Evaluation) -> None:
    test_split(make_trainer("test", 0.0).model)  # so that there is a breakdown
    scores = finish(make_trainer("test", 0.4, 0.1, 0.4), test_split)
    assert (scores.best_epoch, scores.chosen_on, scores.chosen_by) == (1, "test", 40.0)  # the first of equals
    assert scores.last.main.mean_ap == 0.4
    assert scores.best["pattern_1"]["mAP"] == 40.0


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_summary_and_the_log_say_which_number_is_which(
    make_trainer: MakeTrainer,
    test_split: Evaluation,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    split: str,
) -> None:
    test_split(make_trainer(split, 0.0).model)
    with caplog.at_level("INFO"):
        trainer = make_trainer(split, 0.1, 0.4, 0.3)
        scores = finish(trainer, test_split)
        trainer.progress.environments = [{"threads": 1}]
        write_metrics(tmp_path, progress=trainer.progress, scores=scores, cost=FreeOfCharge())
    assert json.loads((tmp_path / "metrics.json").read_text())["environments"] == [{"threads": 1}]
    summary = json.loads((tmp_path / "metrics.json").read_text())["summary"]
    assert list(summary) == ["last epoch", f"best on {split}"]
    assert (summary["last epoch"]["epoch"], summary[f"best on {split}"]["epoch"]) == (3, 2)
    assert summary[f"best on {split}"][f"{split}_mAP"] == 40.0
    assert summary["last epoch"]["pattern_1"] == scores.last.main.as_dict()
    reason = {
        "validation": "chosen by 40.0 mAP on the identities that DATASETS.VAL_IDS holds out",
        "test": "chosen by this very score (DeMo's habit)",
    }[split]
    assert f"best on {split}: epoch 2, {reason}" in caplog.text
    assert f"epoch 1: {split} mAP 10.0" in caplog.text
    assert describe_choice(tmp_path / "best.pth") == f"epoch 2, best on {split}"
    assert describe_choice(tmp_path / "last.pth") == "after epoch 3, not chosen by a score"
    assert describe_choice(tmp_path / "metrics.json") == describe_choice(tmp_path / "nowhere.pth") == ""


def test_a_finished_run_that_is_resumed_ends_the_same(
    make_trainer: MakeTrainer, test_split: Evaluation, tmp_path: Path
) -> None:
    first = finish(make_trainer("validation", 0.1, 0.4, 0.3), test_split)
    resumed = make_trainer("validation", 0.3)
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    again = finish(resumed, test_split)
    assert (again.best_epoch, again.chosen_by) == (2, 40.0)
    assert again.last.main.as_dict() == first.last.main.as_dict()
    assert again.best["pattern_1"] == first.best["pattern_1"]


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
