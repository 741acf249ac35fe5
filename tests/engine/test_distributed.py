"""Two processes give what one gives."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed.run

from config import load_config
from conftest import ROOT, SMALL_MODEL, be_rank_1, is_running
from engine.distributed import World
from errors import UserError
from modeling.make_model import make_model

# HDM's dropout has no setting, as in DeMo; without it nothing is random.
WITHOUT_DROPOUT = """
import sys
import modeling.branches.demo
modeling.branches.demo.HDM.__init__.__kwdefaults__["dropout"] = 0.0
import train_net
{fault}
train_net.main(sys.argv[1:])
"""
FAULT = """
import os
from engine.train import Trainer
step = Trainer._train_step
def fail(self, *args):
    if os.environ["RANK"] == "1" and self.progress.step == 2:
        (self.folder / "fault").touch()
        raise RuntimeError("rank 1 is broken")
    return step(self, *args)
Trainer._train_step = fail
"""
STALL = """
import os, time
from datetime import timedelta
from pathlib import Path
import engine.distributed
from engine.train import Trainer
engine.distributed.TIME_LIMIT = timedelta(seconds=6)
engine.distributed.ANSWER_TIME = timedelta(seconds=2)
step = Trainer._train_step
def stall(self, *args):
    while os.environ["RANK"] == "1" and self.progress.step == 2:
        time.sleep(0.1)
        if self.stop.signal:
            os._exit(1)
    return step(self, *args)
Trainer._train_step = stall
ready = [Path(f"{sys.argv[-1]}.{rank}") for rank in "01"]
ready[int(os.environ["RANK"])].touch()
while not all(path.exists() for path in ready):  # the imports may take one of them longer than the limit
    time.sleep(0.1)
"""
TELL_PIDS = """
import os
from pathlib import Path
from engine.train import Trainer
step = Trainer._train_step
def tell(self, *args):
    Path(f"{self.folder}.{os.getpid()}").touch()
    return step(self, *args)
Trainer._train_step = tell
"""


@pytest.fixture
def settings(mini_settings: list[str]) -> list[str]:
    """All parts on, for 20 steps and more, at the rates of DeMo's recipe.

    At the higher rates of the small model rounding differences grow beyond 1e-4 within 20 steps, since Adam
    divides small gradients by their size and the choice of patches and triplets is discrete.
    """
    rates = ["SOLVER.OPTIMIZER_NAME", "Adam", "SOLVER.BASE_LR", "3.5e-4", "SOLVER.BACKBONE_LR", "5e-6"]
    parts = ["MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "2", "MODEL.SIE_CAMERA", "True"]
    parts += ["MODEL.USE_SIGNAL", "True", "SIGNAL.DECISION", "straight_through"]
    length = ["SOLVER.MAX_EPOCHS", "7", "TEST.CONTROLS", "False", "SOLVER.EVAL_PERIOD", "7"]
    return ["--config_file", str(SMALL_MODEL), *mini_settings, *rates, *parts, *length]


def run(
    processes: int, settings: list[str], script: Path, fault: str = "", **environment: str
) -> subprocess.Popen[str]:
    script.write_text(WITHOUT_DROPOUT.format(fault=fault))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return subprocess.Popen(
        [sys.executable, *(launcher if processes > 1 else []), str(script), *settings],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


NO_GRADIENT = (
    "signal.interact.norm2.bias",
    "signal.interact.attention.in_proj_bias",
    "heads.signal.neck.running_mean",
)
"""Entries that no loss depends on: a shift of all features, which the neck takes off again, or of all keys.

Their gradient is rounding, which Adam makes as large as any other step.
"""


def check_same_weights(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    for name, weights in one.items():
        tolerance = 1e-3 if name.endswith(NO_GRADIENT) else 1e-4
        torch.testing.assert_close(two[name], weights, atol=tolerance, rtol=0, msg=f"{name} differs")


def test_one_and_two_processes_agree(tmp_path: Path, settings: list[str]) -> None:
    contents, metrics = {}, {}
    for processes in (1, 2):
        folder = tmp_path / f"run{processes}"
        process = run(processes, [*settings, "OUTPUT_DIR", str(folder)], tmp_path / "script.py")
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        contents[processes] = torch.load(folder / "last.pth", weights_only=True)
        metrics[processes] = json.loads((folder / "metrics.json").read_text())
        assert output.count("last epoch, all files") == 1  # rank 0 alone logs
    assert contents[1]["progress"]["step"] >= 20
    for one, two in zip(metrics[1]["epochs"], metrics[2]["epochs"], strict=True):
        for name in one:
            if "/" in name:
                assert two[name] == pytest.approx(one[name], abs=1e-4), name
    check_same_weights(contents[1]["model"], contents[2]["model"])
    ranking = {n: m["summary"]["last epoch"]["pattern_3"] for n, m in metrics.items()}
    assert ranking[1] == pytest.approx(ranking[2])
    assert metrics[2]["summary"]["last epoch"]["samples"] == 16


def test_one_and_two_processes_choose_the_same_epoch(tmp_path: Path, settings: list[str]) -> None:
    """With an average of the weights, which every process keeps for itself, and adapters of each modality."""
    short = [*settings, "DATASETS.VAL_IDS", "3", "SOLVER.MAX_EPOCHS", "3", "SOLVER.EVAL_PERIOD", "1"]
    short += ["SOLVER.EMA_DECAY", "0.9", "MODEL.TUNE", "adapter", "MODEL.ADAPTER_SHARED", "False"]
    # A random trunk: with a trained one, rounding decides which triplets are mined.
    trunk = make_model(load_config(SMALL_MODEL), 8, 2).backbone.vit.state_dict()
    torch.save({f"backbone.vit.{name}": tensor for name, tensor in trunk.items()}, tmp_path / "trunk.pth")
    short += ["MODEL.PRETRAIN_PATH_T", str(tmp_path / "trunk.pth")]
    summaries, contents = [], []
    for processes in (1, 2):
        folder = tmp_path / f"run{processes}"
        process = run(processes, [*short, "OUTPUT_DIR", str(folder)], tmp_path / "script.py")
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        summaries.append(json.loads((folder / "metrics.json").read_text())["summary"])
        contents.append(torch.load(folder / "last.pth", weights_only=True))
    one, two = summaries
    for entry in ("last epoch", "best on validation"):
        assert one[entry]["epoch"] == two[entry]["epoch"]
        assert one[entry]["pattern_3"] == pytest.approx(two[entry]["pattern_3"])
    assert one["best on validation"]["validation_mAP"] == pytest.approx(
        two["best on validation"]["validation_mAP"]
    )
    for entry in ("model", "raw_model"):
        check_same_weights(contents[0][entry], contents[1][entry])
    assert contents[0]["trunk"] == contents[1]["trunk"]
    name = "backbone.tuning.0.ni.up.weight"
    assert not torch.equal(contents[0]["model"][name], contents[0]["raw_model"][name])


def test_a_process_that_dies_ends_the_job_with_its_error(tmp_path: Path, settings: list[str]) -> None:
    more = ["DATALOADER.NUM_WORKERS", "2", "OUTPUT_DIR", str(tmp_path / "run")]
    process = run(2, [*settings, *more], tmp_path / "script.py", FAULT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode != 0
    assert "rank 1 is broken" in output
    assert time.time() - (tmp_path / "run" / "fault").stat().st_mtime < 100


def test_a_process_that_stalls_is_named_and_ends_the_job(tmp_path: Path, settings: list[str]) -> None:
    process = run(2, [*settings, "OUTPUT_DIR", str(tmp_path / "run")], tmp_path / "script.py", STALL)
    output, _ = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "rank 1 has ended, or has not answered for 0.1 minutes" in output


HANDLE_USR1 = {"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGUSR1"}
"""As `torchrun --signals-to-handle …`; without it SIGUSR1 kills torchrun."""
TORCHRUN_PASSES_ON = "signals-to-handle" in Path(torch.distributed.run.__file__).read_text()
"""Whether torchrun has this option; that of torch 2.5 has not."""


@pytest.mark.parametrize(
    ("number", "environment", "found"),
    [
        (signal.SIGTERM, {}, "SIGTERM"),
        (signal.SIGUSR1, HANDLE_USR1, "SIGUSR1" if TORCHRUN_PASSES_ON else "SIGTERM"),
        (signal.SIGUSR1, {}, "SIGTERM"),  # by the system, when torchrun has died
    ],
    ids=["SIGTERM", "SIGUSR1", "torchrun dies"],
)
def test_a_signal_to_torchrun_stops_all_processes_after_the_same_step(
    tmp_path: Path,
    settings: list[str],
    number: signal.Signals,
    environment: dict[str, str],
    found: str,
) -> None:
    folder = tmp_path / "run"
    endless = ["SOLVER.MAX_EPOCHS", "500", "SOLVER.EVAL_PERIOD", "500", "OUTPUT_DIR", str(folder)]
    process = run(2, [*settings, *endless], tmp_path / "script.py", TELL_PIDS, **environment)
    deadline = time.monotonic() + 90
    while not (folder / "last.pth").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)  # until the last process has closed the pipe
    assert f"stopped by {found}" in output
    assert len(torch.load(folder / "last.pth", weights_only=True)["random"]) == 2
    pids = [int(path.suffix[1:]) for path in tmp_path.glob("run.*")]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, pids))


LEFTOVERS = {
    "RANK=1": "RANK is set, but WORLD_SIZE is not",
    "WORLD_SIZE=1": "WORLD_SIZE is set, but RANK is not",
    "LOCAL_RANK=0": "LOCAL_RANK is set, but RANK is not",
    "RANK=first WORLD_SIZE=2": "RANK is 'first', not a number",
    "RANK=-1 WORLD_SIZE=2": "RANK is '-1', not a number",
    "RANK=0 WORLD_SIZE=": "WORLD_SIZE is '', not a number",
    "RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=x MASTER_PORT=1": "RANK (2) must be below WORLD_SIZE (2)",
    "RANK=0 WORLD_SIZE=2": "RANK is set, but LOCAL_RANK is not",
    "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0": "RANK is set, but MASTER_ADDR is not",
}


@pytest.mark.parametrize("environment", LEFTOVERS)
def test_what_another_program_left_in_the_environment_is_named(
    environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pair in environment.split():
        monkeypatch.setenv(*pair.split("="))
    with pytest.raises(UserError, match=re.escape(LEFTOVERS[environment])):
        World.from_environment()


def test_torchrun_and_a_single_process_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    assert World.from_environment() == World(0, 1, 0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert World.from_environment() == World(0, 1, 0)
    be_rank_1(monkeypatch)
    assert World.from_environment() == World(1, 2, 1)


def test_processes_that_do_not_meet_are_told_where(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank_1(monkeypatch)
    monkeypatch.setattr("engine.distributed.TIME_LIMIT", timedelta(seconds=1))
    expected = r"2 processes should meet at localhost:1, but did not .* start them with torchrun, or unset"
    with pytest.raises(UserError, match=expected), World(1, 2, 1).joined(torch.device("cpu")):
        pass


def test_one_process_needs_no_group() -> None:
    world = World()
    part = torch.ones(2, requires_grad=True)
    assert world.gather_batch(part) is part
    assert world.gather_objects({"a": 1}) == [{"a": 1}]
    assert world.any(True, torch.device("cpu"))
    assert not world.any(False, torch.device("cpu"))
    with world.joined(torch.device("cpu")), world.main_first():
        pass
