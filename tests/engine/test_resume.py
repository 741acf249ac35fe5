"""Runs that are killed and resumed end as if nothing had happened."""

from pathlib import Path

import pytest

import train_net as train_entry
from config import ConfigError
from conftest import SMALL_MODEL
from structures import UserError
from tools.soak import soak


def test_killed_and_resumed_runs_end_with_the_same_weights(tmp_path: Path) -> None:
    """The short version of `make soak`: one kill at a random moment, one inside the write of a checkpoint."""
    assert soak(tmp_path, kills=2, epochs=3, seed=1) > 100


def test_settings_that_alter_the_result_are_refused(tmp_path: Path, mini_settings: list[str]) -> None:
    arguments = ["--config_file", str(SMALL_MODEL), *mini_settings, "TEST.CONTROLS", "False"]
    arguments += ["OUTPUT_DIR", str(tmp_path / "run")]
    train_entry.main(arguments)
    with pytest.raises(ConfigError, match=r"SOLVER\.BASE_LR\); resume it with the same ones, or add --force"):
        train_entry.main([*arguments, "SOLVER.BASE_LR", "1e-4", "--resume"])
    train_entry.main([*arguments, "SOLVER.LOG_PERIOD", "1", "--resume"])
    train_entry.main([*arguments, "SOLVER.MAX_EPOCHS", "3", "--resume", "--force"])
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "SOLVER.LOG_PERIOD changed from 10 to 1" in log
    assert "resuming after 2 epochs and 0 steps" in log
    assert "epoch 3: mAP" in log
    with pytest.raises(UserError, match="contradict"):
        train_entry.main([*arguments, "--resume", "--overwrite"])
