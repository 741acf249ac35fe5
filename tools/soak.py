"""Kill a training run again and again, and see that it ends as if nothing happened: `python -m tools.soak`.

A run on a drawn miniature is ended by SIGKILL at random moments, every third time inside the write of a
checkpoint, and resumed each time. Its last weights must equal, bit for bit, those of an undisturbed run.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import soak_arguments

if __name__ == "__main__":
    answer_early(soak_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from datasets.synthetic import SyntheticSpec, ensure_synthetic
from engine.command import run_command
from engine.runtime import setup_log
from structures import UserError

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent
MINIATURE = SyntheticSpec(train_ids=8, test_ids=4, cameras=2, train_shots=2, test_shots=2)
KILLED_IN_WRITE = """
import os, signal, sys
writes = 0
def fsync(file):
    global writes
    writes += 1
    if writes == {write}:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
import train_net
train_net.main(sys.argv[1:])
"""
"""Runs train_net and ends it when a file has been written but does not have its name yet."""


def train_command(data: Path, run: Path, epochs: int) -> list[str]:
    """Arguments of train_net.py for a small run with everything that is random: Gumbel noise and dropout."""
    settings = {
        "DATASETS.NAMES": "RGBNT201",
        "DATASETS.ROOT_DIR": data,
        "DATALOADER.NUM_INSTANCE": 2,
        "MODEL.SDTPS_USE_GUMBEL": True,
        "MODEL.DROP_OUT": 0.1,
        "SOLVER.IMS_PER_BATCH": 8,
        "SOLVER.MAX_EPOCHS": epochs,
        "SOLVER.WARMUP_ITERS": 1,
        "SOLVER.EVAL_PERIOD": 1,
        "TEST.CONTROLS": False,
        "OUTPUT_DIR": run,
    }
    config = ROOT / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
    return ["--config_file", str(config), *(str(word) for pair in settings.items() for word in pair)]


def start(arguments: list[str], *, die_in_write: int | None = None) -> subprocess.Popen[bytes]:
    """Start train_net.py, with one thread so that the sums are always in the same order."""
    program = ["train_net.py"] if die_in_write is None else ["-c", KILLED_IN_WRITE.format(write=die_in_write)]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def finish(process: subprocess.Popen[bytes], run: Path) -> None:
    """Wait for train_net.py to end well."""
    if process.wait() != 0:
        raise UserError(f"training ended with status {process.returncode}; see {run / 'log.txt'}")


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights, and the optimiser's state, at the end of a run."""
    content = torch.load(run / "last.pth", weights_only=True)
    moments = {
        f"optimizer.{number}.{name}": value
        for number, entries in content["optimizer"]["state"].items()
        for name, value in entries.items()
    }
    return {**content["model"], **moments}


def load_progress(run: Path) -> str:
    """How far a killed run has come, by its last checkpoint."""
    if not (run / "last.pth").exists():
        return "no checkpoint yet"
    progress = torch.load(run / "last.pth", weights_only=True)["progress"]
    return f"{progress['epoch']} epochs and {progress['steps_in_epoch']} steps are saved"


def _count_boards(run: Path) -> int:
    """How often training has begun in a run folder: each time makes a new file for TensorBoard."""
    return len(list((run / "tensorboard").glob("*")))


def _wait_for_training(process: subprocess.Popen[bytes], run: Path, boards: int) -> None:
    """Wait until a process begins to train, or ends."""
    while process.poll() is None and _count_boards(run) <= boards:
        time.sleep(0.02)


def _time_undisturbed(arguments: list[str], run: Path) -> float:
    """Run to the end; returns the seconds that training took."""
    process = start(arguments)
    _wait_for_training(process, run, boards=0)
    began = time.perf_counter()
    finish(process, run)
    return time.perf_counter() - began


def soak(folder: Path, *, kills: int, epochs: int, seed: int) -> int:
    """Compare a run that is killed `kills` times with an undisturbed one.

    Args:
        folder: an empty folder to work in.
        kills: how often to kill.
        epochs: length of the run.
        seed: decides the moments.

    Returns:
        How many tensors were compared, all of them equal.
    """
    ensure_synthetic(folder, spec=MINIATURE).rename(folder / "RGBNT201")
    undisturbed, killed = (train_command(folder, folder / name, epochs) for name in ("undisturbed", "killed"))
    training = _time_undisturbed(undisturbed, folder / "undisturbed")

    rng = random.Random(seed)
    for number in tqdm(range(kills), "kills", disable=None):
        arguments = [*killed, *(["--resume"] if number else [])]
        if number % 3 == 1:
            process = start(arguments, die_in_write=rng.randint(1, 5))
        else:
            boards = _count_boards(folder / "killed")
            process = start(arguments)
            _wait_for_training(process, folder / "killed", boards)
            time.sleep(rng.uniform(0, 0.8) * training / kills)
            process.kill()
        if process.wait() != -signal.SIGKILL:
            raise UserError(f"start {number + 1} ended before it could be killed; use more --epochs")
        done = load_progress(folder / "killed")
        logger.info("kill %d%s: %s", number + 1, " (in a write)" if number % 3 == 1 else "", done)
    finish(start([*killed, "--resume"]), folder / "killed")

    expected, found = final_weights(folder / "undisturbed"), final_weights(folder / "killed")
    different = [name for name in expected if not torch.equal(expected[name], found[name])]
    if expected.keys() != found.keys() or different:
        raise UserError(
            f"{len(different)} of {len(expected)} tensors differ after {kills} kills: {different[:3]}"
        )
    left_over = [path.name for path in (folder / "killed").glob(".*.tmp")]
    if left_over:
        raise UserError(f"half-written files are left over: {left_over}")
    return len(expected)


def main(argv: Sequence[str] | None = None) -> None:
    """Soak, and say what was compared."""
    args = soak_arguments(argv)
    setup_log()
    with tempfile.TemporaryDirectory() as folder:
        compared = soak(Path(folder), kills=args.kills, epochs=args.epochs, seed=args.seed)
    logger.info("%d kills, %d tensors compared, all equal bit for bit", args.kills, compared)


if __name__ == "__main__":
    run_command(main)
