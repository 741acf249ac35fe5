"""How a row is measured and written: `compare` times two ways of the same work and gives a `Row`."""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch

from engine.runtime import git_commit

T = TypeVar("T")

HEADINGS = ("row", "project", "plain", "ratio", "target", "met", "difference", "notes")


@dataclass(frozen=True)
class Sizes:
    """How much work the rows do."""

    repeats: int = 7  # how often each way is timed
    seconds: float = 90  # once these are over, `least` times are enough
    least: int = 3
    share: float = 1.0  # of the queries and of the gallery in the rows on ranking
    evaluated: int = 836  # test triples of the rows on evaluation; RGBNT201 has as many
    million: tuple[int, int] | None = (1000, 1_000_000)  # the largest ranking; None leaves the row out
    backbone: str = "ViT-B-16"  # of the rows on training
    batch: int = 4  # triples of a training step
    triples: int = 96  # of the row on data
    pairs: tuple[int, int] = (16, 40)  # images and texts of SEPS
    exported: bool = True  # whether to measure the rows on exported files; an export takes a while


FULL = Sizes()
QUICK = replace(FULL, repeats=5, seconds=6, least=1, million=None)
TINY = Sizes(
    repeats=1,
    seconds=0,
    least=1,
    share=0.1,
    evaluated=12,
    million=(10, 500),
    backbone="vit_tiny_stem_patch8",
    triples=4,
    pairs=(2, 3),
    exported=False,
)


@dataclass(frozen=True)
class Row:
    """What was measured."""

    title: str  # the work, with its size
    plain: float | None  # median CPU seconds of the plain way; None if it cannot be run
    project: float  # median CPU seconds of the project's way
    at_least: float | None = None  # the target of the ratio plain / project
    difference: float | None = None  # the largest between the results; None where they are meant to differ
    tolerance: float = 0.0  # how large it may be
    notes: dict[str, str] = field(default_factory=dict)  # further figures, as text by name
    repeats: int = 1  # how often each way was timed

    @property
    def ratio(self) -> float | None:
        """How many times as fast the project is as the plain way."""
        return None if self.plain is None else self.plain / self.project

    @property
    def met(self) -> bool:
        """Whether the target is met and the results agree."""
        fast = self.at_least is None or self.ratio is None or self.ratio >= self.at_least
        return fast and (self.difference is None or self.difference <= self.tolerance)

    def cells(self) -> list[str]:
        """The row as text, in the order of `HEADINGS`."""
        return [
            self.title,
            show_seconds(self.project),
            "–" if self.plain is None else show_seconds(self.plain),
            "–" if self.ratio is None else f"{self.ratio:.2f} x",
            "–" if self.at_least is None else f"≥ {self.at_least:g} x",
            "yes" if self.met else "NO",
            "–" if self.difference is None else f"{self.difference:.0e} (≤ {self.tolerance:.0e})",
            ", ".join(f"{name} {value}" for name, value in self.notes.items()) or "–",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def compare(
    title: str,
    ways: Mapping[str, Callable[[], T]],
    sizes: Sizes,
    *,
    at_least: float | None,
    difference: Callable[[T, T], float] | None = None,
    tolerance: float = 0.0,
    warm_up: bool = True,
    notes: Mapping[str, str] | None = None,
) -> Row:
    """Run two ways by turns, so that what else the machine does meets them both, and compare their results.

    CPU time counts: that of all threads, which other programs change little.

    Args:
        title: of the row.
        ways: `plain` and `project`; the times of any others become notes.
        sizes: how often.
        at_least: the target of the ratio, if there is one.
        difference: between the results of the first runs; None where they are meant to differ.
        tolerance: how large it may be.
        warm_up: run each way once before it is timed; not needed for long work without caches.
        notes: see `Row`.
    """
    # By turns.
    start = time.perf_counter()
    results = {way: work() for way, work in ways.items()} if warm_up else {}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(sizes.repeats):
        if repeat >= sizes.least and time.perf_counter() - start > sizes.seconds:
            break
        for way, work in ways.items():
            begin = time.process_time()
            result = work()
            seconds[way].append(time.process_time() - begin)
            results.setdefault(way, result)
    # The medians, and how far the first results differ.
    others = {way: show_seconds(median(seconds[way])) for way in ways if way not in ("plain", "project")}
    return Row(
        title,
        median(seconds["plain"]),
        median(seconds["project"]),
        at_least,
        None if difference is None else difference(results["plain"], results["project"]),
        tolerance,
        {**others, **(notes or {})},
        len(seconds["plain"]),
    )


class ChildRun(NamedTuple):
    """What work in a process of its own took."""

    seconds: float
    cpu_seconds: float  # of all threads
    growth: int  # bytes at the peak, beside the inputs and the program
    peak: int  # bytes of the whole process


def in_child(prepare: Callable[[], T], work: Callable[[T], object]) -> ChildRun:
    """Make inputs and work on them in a new process, whose peak of memory is not that of earlier work.

    Args:
        prepare: makes the inputs; not measured. Like `work` it must be importable.
        work: is measured.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run_child, args=(prepare, work, sender, torch.get_num_threads()))
    child.start()
    sender.close()
    try:
        found: ChildRun = receiver.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"the measured process ended early, with status {child.exitcode}") from None
    child.join()
    return found


def _run_child(prepare: Callable[[], Any], work: Callable[[Any], object], sender: Any, threads: int) -> None:
    torch.set_num_threads(threads)
    inputs = prepare()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    start, cpu_start = time.perf_counter(), time.process_time()
    work(inputs)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = _status("VmHWM")
    sender.send(ChildRun(seconds, cpu_seconds, max(peak - before, 0), peak))


def _status(name: str) -> int:
    """A figure of this process in bytes, from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def show_seconds(seconds: float) -> str:
    """A time with a fitting unit."""
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def table_of(rows: Iterable[Row]) -> str:
    """A Markdown table, for the console and for docs/performance.md."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def describe_machine() -> dict[str, Any]:
    """Where and with what the rows are measured."""
    packages = ("torchvision", "timm", "numpy", "scipy", "pillow")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,  # with the build, such as +cu132
        **{name: version(name) for name in packages},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
