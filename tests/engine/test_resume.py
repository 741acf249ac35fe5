"""Runs that are killed and resumed end as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import train_net as train_entry
from config import ConfigError, load_config
from conftest import ROOT, SMALL_MODEL
from engine.run_folder import open_run_folder
from errors import UserError
from modeling.make_model import make_model


def test_settings_that_alter_the_result_are_refused(tmp_path: Path, mini_settings: list[str]) -> None:
    arguments = ["--config_file", str(SMALL_MODEL), *mini_settings, "TEST.CONTROLS", "False"]
    arguments += ["OUTPUT_DIR", str(tmp_path / "run")]
    train_entry.main(arguments)
    with pytest.raises(
        ConfigError, match=r"SOLVER\.BASE_LR\); resume it with the same ones .*, or add --force"
    ):
        train_entry.main([*arguments, "SOLVER.BASE_LR", "1e-4", "--resume"])
    train_entry.main([*arguments, "SOLVER.LOG_PERIOD", "1", "--resume"])
    train_entry.main([*arguments, "SOLVER.MAX_EPOCHS", "3", "--resume", "--force"])
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "SOLVER.LOG_PERIOD changed from 10 to 1" in log
    assert "resuming after epochs: 2, steps: 0" in log
    assert "epoch 3: test mAP" in log
    with pytest.raises(UserError, match="contradict"):
        train_entry.main([*arguments, "--resume", "--overwrite"])


@pytest.fixture
def endless_run(tmp_path: Path, mini_settings: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A run with loader processes, which has written its first checkpoint, in a process group of its own."""
    more = {"DATALOADER.NUM_WORKERS": 2, "SOLVER.MAX_EPOCHS": 500, "TEST.CONTROLS": False}
    settings = [str(word) for pair in {**more, "OUTPUT_DIR": tmp_path / "run"}.items() for word in pair]
    process = subprocess.Popen(
        [sys.executable, "train_net.py", "--config_file", str(SMALL_MODEL), *mini_settings, *settings],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not (tmp_path / "run" / "last.pth").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    yield process
    process.kill()
    process.wait(timeout=60)


def test_a_signal_to_the_whole_group_spares_the_step_and_the_loader(
    endless_run: subprocess.Popen[str],
) -> None:
    """As SLURM sends it: to the loader's processes as well."""
    os.killpg(endless_run.pid, signal.SIGTERM)
    output, _ = endless_run.communicate(timeout=60)
    assert endless_run.returncode == 128 + signal.SIGTERM, output
    assert "stopped by SIGTERM" in output
    assert "Traceback" not in output


def test_a_resumed_run_has_the_controls_of_its_start(tmp_path: Path, mini_settings: list[str]) -> None:
    """The untrained model comes from the seed and from the pretrained weights."""
    cfg = load_config(SMALL_MODEL, mini_settings)
    torch.manual_seed(5)
    torch.save(make_model(cfg, 8, 2).state_dict(), tmp_path / "pretrained.pth")
    more = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "MODEL.PRETRAIN_PATH_T"]
    arguments = ["--config_file", str(SMALL_MODEL), *mini_settings, *more, str(tmp_path / "pretrained.pth")]
    arguments += ["TEST.CONTROLS", "True", "OUTPUT_DIR", str(tmp_path / "run")]
    summaries = []
    for options in ([], ["--resume"]):
        train_entry.main([*arguments, *options])
        summary = json.loads((tmp_path / "run" / "metrics.json").read_text())["summary"]
        for scores in summary.values():
            del scores["seconds"]
        summaries.append(summary)
    assert "untrained" in summaries[0]
    assert summaries[0] == summaries[1]


def test_a_killed_run_can_be_resumed_at_once(endless_run: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(endless_run.pid, signal.SIGKILL)
    endless_run.wait(timeout=60)
    open_run_folder(tmp_path / "run", overwrite=False, resume=True)


def test_training_goes_on_when_nobody_reads_its_output(
    endless_run: subprocess.Popen[str], tmp_path: Path
) -> None:
    """As `train_net.py | head -1`."""
    assert endless_run.stdout is not None
    endless_run.stdout.close()
    log = tmp_path / "run" / "log.txt"
    deadline = time.monotonic() + 60
    while "WARNING the console cannot be written" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(endless_run.pid, signal.SIGTERM)
    assert endless_run.wait(timeout=60) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in log.read_text()
    assert log.read_text().count("the console cannot be written") == 1
