"""How long something takes, and how much memory: by turns in one process, or in a process of its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How often something is measured: `repeats` times, fewer once `seconds` are over, but `least` times."""

    repeats: int
    seconds: float
    least: int = 2


@dataclass(frozen=True)
class Timing(Generic[T]):
    """What several ways of the same work took, and what they gave.

    Attributes:
        seconds: by way, of each repeat.
        results: by way, of the first run.
    """

    seconds: dict[str, list[float]]
    results: dict[str, T]

    def median(self, way: str) -> float:
        """The median of the repeats."""
        return median(self.seconds[way])

    def ratio(self, slow: str, fast: str) -> float:
        """How many times as fast the second way is as the first."""
        return self.median(slow) / self.median(fast)


def by_turns(
    ways: Mapping[str, Callable[[], T]], effort: Effort, *, calls: int = 1, warm_up: bool = True
) -> Timing[T]:
    """Run the ways one after the other, again and again, so that what else the machine does meets them all.

    Args:
        ways: by name, what is timed.
        effort: how often.
        calls: how many calls of a way are timed together, for work that is short.
        warm_up: run each way once before it is timed; not needed for long work without caches.
    """
    start = time.perf_counter()
    results = {way: work() for way, work in ways.items()} if warm_up else {}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(effort.repeats):
        if repeat >= effort.least and time.perf_counter() - start > effort.seconds:
            break
        for way, work in ways.items():
            begin = time.perf_counter()
            for _ in range(calls):
                result = work()
            seconds[way].append((time.perf_counter() - begin) / calls)
            results.setdefault(way, result)
    return Timing(seconds, results)


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a process of a data loader: torch computes with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class ChildRun:
    """What work in a process of its own took.

    Attributes:
        seconds: of the work.
        growth: bytes of memory that it took at its peak, beside its inputs and the program.
        peak: bytes of memory at that peak, with everything.
    """

    seconds: float
    growth: int
    peak: int


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
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    start = time.perf_counter()
    work(inputs)
    seconds = time.perf_counter() - start
    peak = _status("VmHWM")
    sender.send(ChildRun(seconds, max(peak - before, 0), peak))


def _status(field: str) -> int:
    """A figure of this process in bytes, from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
