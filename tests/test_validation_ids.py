"""Runs with DATASETS.VAL_IDS and SOLVER.EMA_DECAY, from the outside, on a drawn miniature."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import test_net as test_entry
import train_net as train_entry
from config import ConfigError
from conftest import SMALL_MODEL
from datasets.dataset import MultiModalDataset, Sample, SampleKey
from engine.interrupt import RunStopped
from engine.train import Trainer
from studies.run_folder import EPOCHS
from studies.summary import read_result


@pytest.fixture(scope="module")
def settings(mini_settings: list[str]) -> list[str]:
    """Two of eight identities are held out; averaged weights; Gumbel noise, so that something is random."""
    gumbel = ["MODEL.SDTPS_BETA", "0.25", "MODEL.SDTPS_USE_GUMBEL", "True"]
    more = ["DATASETS.VAL_IDS", "2", "SOLVER.MAX_EPOCHS", "3", *gumbel, "SOLVER.EMA_DECAY", "0.9"]
    return ["--config_file", str(SMALL_MODEL), *mini_settings, *more]


@pytest.fixture(scope="module")
def watched_run(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> tuple[Path, list[str]]:
    """A run, and in order its steps and the images that it read: "step", or split and identity."""
    events: list[str] = []
    read, step = MultiModalDataset.__getitem__, Trainer._train_step

    def watched_read(self: MultiModalDataset, key: SampleKey | int) -> Sample:
        sample = read(self, key)
        events.append(f"{sample.record.files[0].parent.parent.name} {sample.record.name[:6]}")
        return sample

    def watched_step(self: Trainer, *args: Any) -> Any:
        events.append("step")
        return step(self, *args)

    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiModalDataset, "__getitem__", watched_read)
        patch.setattr(Trainer, "_train_step", watched_step)
        train_entry.main([*settings, "OUTPUT_DIR", str(folder)])
    return folder, events


@pytest.fixture(scope="module")
def run(watched_run: tuple[Path, list[str]]) -> Path:
    return watched_run[0]


def metrics_of(folder: Path) -> dict[str, Any]:
    """metrics.json without what differs from run to run."""
    content: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    entries = [*content["summary"].values(), *(epoch["validation"] for epoch in content["epochs"])]
    for entry in entries:
        del entry["seconds"]
    return content


def test_the_test_split_is_not_looked_at_before_training_is_over(
    watched_run: tuple[Path, list[str]],
) -> None:
    folder, events = watched_run
    first_step, last_step = events.index("step"), len(events) - 1 - events[::-1].index("step")
    assert not any(event.startswith("test ") for event in events[:last_step])
    tested = [event for event in events[last_step:] if event.startswith("test ")]
    assert len(tested) == 4 * 16  # the last epoch, the best one, and two controls

    log = (folder / "log.txt").read_text()
    assert "held out for validation: 2 identities, 8 triples, from 000003_" in log
    held_out = {"train_171 000003", "train_171 000007"}
    assert held_out.isdisjoint(events[first_step - 8 : first_step])  # the first batch
    assert held_out <= set(events[first_step:last_step])


def test_the_summary_names_last_and_best(run: Path) -> None:
    metrics = metrics_of(run)
    assert list(metrics["summary"]) == ["last epoch", "best on validation", "untrained", "raw pixels"]
    scores = [epoch["validation"]["pattern_3"] for epoch in metrics["epochs"]]
    assert [score["queries"] for score in scores] == [8, 8, 8]
    best = metrics["summary"]["best on validation"]
    assert best["validation_mAP"] == max(score["mAP"] for score in scores)
    assert scores[best["epoch"] - 1]["mAP"] == best["validation_mAP"]
    assert best["samples"] == metrics["summary"]["last epoch"]["samples"] == 16
    content = torch.load(run / "best.pth", weights_only=True)
    assert (content["chosen_on"], content["epoch"]) == ("validation", best["epoch"])


@pytest.mark.parametrize(("weights", "entry"), [("last", "last epoch"), ("best", "best on validation")])
@pytest.mark.parametrize("val_ids", ["2", "0"])
def test_test_net_repeats_the_numbers_also_without_the_key(
    run: Path, tmp_path: Path, weights: str, entry: str, val_ids: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config_file", str(run / "config.yml"), "--metrics", str(tmp_path / "test.json")]
    test_entry.main([*arguments, "TEST.WEIGHT", str(run / f"{weights}.pth"), "DATASETS.VAL_IDS", val_ids])
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "test.json").read_text())["result"]
    expected = metrics_of(run)["summary"][entry]
    for pattern in ("pattern_1", "pattern_2", "pattern_3"):
        assert found[pattern] == expected[pattern]
    chosen = {"last": "after epoch 3, not chosen by a score", "best": "best on validation)"}[weights]
    assert chosen in out
    assert "can change the result" not in out  # which identities were held out does not matter now


def test_the_scores_of_the_queries_are_those_of_the_epoch(run: Path) -> None:
    summary = metrics_of(run)["summary"]
    assert summary["last epoch"]["pattern_3"] != summary["best on validation"]["pattern_3"]
    for epoch, entry in EPOCHS.items():
        result = read_result(run, None, epoch)
        expected = summary[entry]["pattern_3"]["mAP"]
        assert 100 * result.scores.average_precisions.mean() == pytest.approx(expected)
        assert (result.measures["mAP"], result.epoch) == (expected, summary[entry]["epoch"])


@pytest.mark.parametrize("at_step", [2, 5])
def test_a_stopped_and_resumed_run_ends_the_same(
    run: Path, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_step: int
) -> None:
    arguments = [*settings, "OUTPUT_DIR", str(tmp_path / "run")]  # with the controls
    step = Trainer._train_step

    def stop(self: Trainer, *args: Any) -> Any:
        if self.progress.step + 1 == at_step:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", stop)
        with pytest.raises(RunStopped):
            train_entry.main(arguments)
    train_entry.main([*arguments, "--resume"])
    for name in ("last.pth", "best.pth"):
        expected, found = (torch.load(path / name, weights_only=True) for path in (run, tmp_path / "run"))
        assert found.get("epoch") == expected.get("epoch")
        assert found.keys() == expected.keys()
        assert ("raw_model" in expected) == (name == "last.pth")
        for entry in expected.keys() & {"model", "raw_model"}:
            assert all(torch.equal(found[entry][key], value) for key, value in expected[entry].items())
    expected, found = metrics_of(run), metrics_of(tmp_path / "run")
    assert found["epochs"] == expected["epochs"]
    assert list(found["summary"]) == list(expected["summary"])  # the controls, too
    assert found["summary"] == expected["summary"]


def test_a_run_cannot_change_its_split(run: Path, settings: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"alter its result \(DATASETS\.VAL_IDS\)"):
        train_entry.main([*settings, "OUTPUT_DIR", str(run), "DATASETS.VAL_IDS", "3", "--resume"])
