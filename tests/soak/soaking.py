"""Kill training runs and reports again and again, and see that nothing is lost; `make soak` runs it.

Runs on a drawn miniature, of one process and of two, are ended by SIGKILL: at random times, in a step, in an
evaluation, inside the write of a file or of TensorBoard's. They are resumed every time. In the end weights,
optimiser, metrics and what TensorBoard shows must equal, bit for bit, those of an undisturbed run. Then the
writing of a report is killed: the earlier report must be there. Files of somebody else must survive it all.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import MINIATURE, ROOT, SMALL_MODEL
from datasets.synthetic import ensure_synthetic

logger = logging.getLogger(__name__)

KILLED = Path(__file__).with_name("killed.py")
FOREIGN = ("notes.txt", "report_notes/page.txt", ".x.tmp", "old_epoch.pth")
"""Files of somebody else that lie in the run folder from the beginning."""
LONGEST = 300.0
"""Seconds after which a process that should have ended is taken to hang."""


class Kill(NamedTuple):
    """A moment at which a run is killed.

    Attributes:
        moment: a key of `MOMENTS` in killed.py, or empty for a random time.
        most: the moment is one of the first `most` calls; about as many as an epoch has.
        rank: the process that dies; with a random time, all of them do.
    """

    moment: str = ""
    most: int = 1
    rank: int = 0

    def describe(self, processes: int) -> str:
        """In words, for the log."""
        who = f"process {self.rank} of {processes}, " if self.moment and processes > 1 else ""
        return f"{who}in {self.moment}" if self.moment else "at a random time"


ONE_PROCESS = (
    Kill(),
    Kill("the write of a file", 6),
    Kill("an evaluation"),
    Kill("a record of TensorBoard", 80),
    Kill("a step", 4),
    Kill(),
    Kill("the write of a file", 6),
    Kill("a flush of TensorBoard", 4),
    Kill("an evaluation"),
    Kill(),
)
TWO_PROCESSES = (
    Kill(),
    Kill("a step", 4, rank=1),
    Kill("the write of a file", 6),
    Kill("an evaluation", rank=1),
    Kill("a record of TensorBoard", 80),
    Kill("an evaluation"),
    Kill(),
)
REPORTS = (
    Kill("the exchange of two reports", 2),  # the next start must bring back a report that was set aside
    Kill("a picture of a report", 16),
    Kill("the page of a report"),
)


def overrides(data: Path, run: Path, epochs: int) -> list[str]:
    """Arguments for a small run with everything that is random: Gumbel noise and dropout."""
    keys = {
        "DATASETS.NAMES": "RGBNT201",
        "DATASETS.ROOT_DIR": data,
        "DATALOADER.NUM_INSTANCE": 2,
        "MODEL.DEVICE": "cpu",
        "MODEL.SDTPS_USE_GUMBEL": True,
        "MODEL.DROP_OUT": 0.1,
        "SOLVER.IMS_PER_BATCH": 8,
        "SOLVER.MAX_EPOCHS": epochs,
        "SOLVER.WARMUP_ITERS": 1,
        "SOLVER.EVAL_PERIOD": 1,
        "SOLVER.EMA_DECAY": 0.9,
        "TEST.CONTROLS": True,
        "OUTPUT_DIR": run,
    }
    return ["--config_file", str(SMALL_MODEL), *(str(word) for pair in keys.items() for word in pair)]


class Command:
    """An entry point that is started again and again.

    Args:
        entry: `train_net` or `test_net`.
        run: the run folder.
        arguments: of the entry point.
        processes: how many, started by torchrun if there are several.
        mark: a file that tells that a process was killed at the moment that was asked for.
    """

    def __init__(
        self, entry: str, run: Path, arguments: Sequence[str], *, processes: int, mark: Path
    ) -> None:
        self.entry = entry
        self.run = run
        self.arguments = list(arguments)
        self.processes = processes
        self.mark = mark

    def start(self, *options: str, kill: Kill | None = None, count: int = 0) -> subprocess.Popen[bytes]:
        """Start it, with one thread per process so that the sums are always in the same order."""
        program = [f"{self.entry}.py"]
        if kill is not None and kill.moment:
            program = [str(KILLED), kill.moment, str(count), str(kill.rank), str(self.mark), self.entry]
        launcher = []
        if self.processes > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self.processes}"]
        return subprocess.Popen(
            [sys.executable, *launcher, *program, *self.arguments, *options],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def finish(self, *options: str) -> None:
        """Start it, and wait for it to end well."""
        status = wait(self.start(*options))
        if status != 0:
            raise AssertionError(f"{self.entry} ended with status {status}; see {self.run / 'log.txt'}")

    def die(self, kill: Kill, rng: random.Random, *, seconds: float, options: Sequence[str] = ()) -> None:
        """Start it, and have it killed."""
        self.mark.unlink(missing_ok=True)
        boards = _count_boards(self.run)
        process = self.start(*options, kill=kill, count=rng.randint(1, kill.most))
        if not kill.moment:
            _wait_for_training(process, self.run, boards)
            time.sleep(rng.uniform(0, seconds))
            if process.poll() is None:
                self.mark.touch()
            kill_all(process)
        status = wait(process)
        if status == 0 or not self.mark.exists():
            raise AssertionError(
                f"{self.entry} ended with status {status} before it could be killed; use more epochs, or "
                f"see {self.run / 'log.txt'}"
            )


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process; one that hangs is killed, and is an error."""
    try:
        return process.wait(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        kill_all(process)
        process.wait()
        raise AssertionError(f"a process hangs for more than {LONGEST:.0f} seconds and was killed") from None


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started: torchrun's are in sessions of their own."""
    for number in [process.pid, *_descendants(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def _descendants(number: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    found: list[int] = []
    for children in Path(f"/proc/{number}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _count_boards(run: Path) -> int:
    """How often training has begun in a run folder: each time makes a new file for TensorBoard."""
    return len(list((run / "tensorboard").glob("events*")))


def _wait_for_training(process: subprocess.Popen[bytes], run: Path, boards: int) -> None:
    """Wait until a process begins to train, or ends."""
    while process.poll() is None and _count_boards(run) <= boards:
        time.sleep(0.02)


def _time_undisturbed(command: Command) -> float:
    """Run to the end; returns the seconds that training took."""
    process = command.start()
    _wait_for_training(process, command.run, boards=0)
    began = time.perf_counter()
    status = wait(process)
    if status != 0:
        raise AssertionError(f"training ended with status {status}; see {command.run / 'log.txt'}")
    return time.perf_counter() - began


def load_progress(run: Path) -> str:
    """How far a killed run has come, by its last checkpoint."""
    if not (run / "last.pth").exists():
        return "no checkpoint yet"
    progress = torch.load(run / "last.pth", weights_only=True)["progress"]
    return f"{progress['epoch']} epochs and {progress['steps_in_epoch']} steps are saved"


def outcome(run: Path) -> dict[str, Any]:
    """All that a run ends with, by name: weights, state of the optimiser, numbers, points in TensorBoard."""
    content = torch.load(run / "last.pth", weights_only=True)
    moments = {
        f"optimizer.{number}.{name}": value
        for number, entries in content["optimizer"]["state"].items()
        for name, value in entries.items()
    }
    metrics = json.loads((run / "metrics.json").read_text())
    numbers = {name: _without_seconds(metrics[name]) for name in ("epochs", "summary", "breakdown")}
    boards = [run / "tensorboard", run / "tensorboard" / "evaluation"]
    curves = {f"{board.name}: {tag}": points for board in boards for tag, points in read_board(board).items()}
    best = torch.load(run / "best.pth", weights_only=True)["model"]
    return {
        **content["model"],
        **{f"raw.{name}": value for name, value in content["raw_model"].items()},
        **moments,
        **{f"best.{name}": best[name] for name in best},
        **numbers,
        **curves,
    }


def read_board(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """By curve or picture, the points that TensorBoard shows: step and value."""
    shown = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells what it leaves out
    shown.Reload()
    tags = shown.Tags()
    curves = {tag: [(point.step, point.value) for point in shown.Scalars(tag)] for tag in tags["scalars"]}
    pictures = {tag: [(p.step, p.encoded_image_string) for p in shown.Images(tag)] for tag in tags["images"]}
    return {**curves, **pictures}


def _without_seconds(value: Any) -> Any:
    """The value without the times in it, which differ from run to run."""
    if isinstance(value, dict):
        return {name: _without_seconds(entry) for name, entry in value.items() if name != "seconds"}
    return [_without_seconds(entry) for entry in value] if isinstance(value, list) else value


def compare(expected: dict[str, Any], found: dict[str, Any], kills: int) -> int:
    """Refuse any difference; returns how many entries were compared."""

    def is_same(name: str) -> bool:
        one, other = expected.get(name), found.get(name)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return torch.equal(one, other)
        return bool(one == other)

    different = [name for name in expected.keys() | found.keys() if not is_same(name)]
    if different:
        listed = ", ".join(sorted(different)[:3])
        raise AssertionError(
            f"{len(different)} of {len(expected)} entries differ after {kills} kills: {listed}"
        )
    return len(expected)


def put_foreign_files(run: Path) -> None:
    """Put files of somebody else into a run folder."""
    for name in FOREIGN:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)


def check_files(run: Path) -> None:
    """Refuse a run folder in which files of somebody else are missing, or half-written ones of ours left."""
    lost = [name for name in FOREIGN if not (run / name).is_file() or (run / name).read_text() != name]
    if lost:
        raise AssertionError(f"files of somebody else were removed or changed in {run}: {', '.join(lost)}")
    left_over = [path.name for path in run.glob(".*.tmp") if path.name not in FOREIGN]
    if left_over:
        raise AssertionError(f"half-written files are left over in {run}: {', '.join(left_over)}")


def soak(folder: Path, *, kills: int, epochs: int, seed: int, processes: int = 1) -> int:
    """Compare a run that is killed `kills` times with an undisturbed one.

    Args:
        folder: where to work; holds the data set under the name RGBNT201, or is empty.
        kills: how often to kill.
        epochs: length of the run.
        seed: decides the moments.
        processes: of the run.

    Returns:
        How many tensors, numbers and curves were compared, all of them equal.
    """
    if not (folder / "RGBNT201").exists():
        ensure_synthetic(folder, spec=MINIATURE).rename(folder / "RGBNT201")
    runs = [folder / f"{name}_{processes}" for name in ("undisturbed", "killed")]
    undisturbed, killed = (
        Command("train_net", run, overrides(folder, run, epochs), processes=processes, mark=folder / "mark")
        for run in runs
    )
    put_foreign_files(killed.run)
    logger.info("an undisturbed run of %d process(es), for comparison", processes)
    training = _time_undisturbed(undisturbed)
    rng = random.Random(seed)
    plan = ONE_PROCESS if processes == 1 else TWO_PROCESSES
    for number in range(kills):
        kill = plan[number % len(plan)]
        options = ["--resume"] if number else []
        killed.die(kill, rng, seconds=0.8 * training / kills, options=options)
        done = load_progress(killed.run)
        logger.info("kill %d of %d, %s: %s", number + 1, kills, kill.describe(processes), done)
    killed.finish("--resume")
    check_files(killed.run)
    return compare(outcome(undisturbed.run), outcome(killed.run), kills)


def soak_reports(folder: Path, *, kills: int, epochs: int, seed: int) -> int:
    """Kill the writing of a report `kills` times; the earlier report must be there, whole.

    Args:
        folder: after `soak`.
        kills: how often to kill.
        epochs: length of the run.
        seed: decides the moments.

    Returns:
        How many files of the report were compared.
    """
    run = folder / "killed_1"
    report = run / "report"
    arguments = [
        *overrides(folder, run, epochs),
        "--report",
        str(report),
        "TEST.WEIGHT",
        str(run / "last.pth"),
    ]
    command = Command("test_net", run, arguments, processes=1, mark=folder / "mark")
    command.finish()
    before = read_files(report)
    rng = random.Random(seed)
    for number in range(kills):
        kill = REPORTS[number % len(REPORTS)]
        command.die(kill, rng, seconds=0.0)
        found = read_files(report)
        # Between two renames there is no report for a moment: the next start brings it back.
        if found != before and (found or kill is not REPORTS[0]):
            raise AssertionError(
                f"the report {report} is not what it was before it was killed {kill.describe(1)}"
            )
        state = "is whole" if found else "was set aside, and the next start must bring it back"
        logger.info("kill %d of %d, %s: the earlier report %s", number + 1, kills, kill.describe(1), state)
    command.finish()
    if not (report / "index.html").is_file():
        raise AssertionError(f"there is no report in {report} after {kills} kills")
    check_files(run)
    return len(before)


def read_files(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
