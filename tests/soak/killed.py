"""Run an entry point that is ended by SIGKILL at a chosen moment; started by soaking.py alone.

`python tests/soak/killed.py MOMENT COUNT RANK MARK ENTRY ARGUMENT …` runs ENTRY, train_net or test_net. In
the process of that RANK, when MOMENT comes for the COUNT-th time, it makes the file MARK and kills itself.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MOMENTS = {
    "a step": ("engine.train", "Trainer", "_train_step"),
    "an evaluation": ("evaluation.loop", "", "_collect"),
    "the write of a file": ("os", "", "fsync"),  # its content is there, its name is not
    "a record of TensorBoard": ("tensorboard.summary.writer.record_writer", "RecordWriter", "write"),
    "a flush of TensorBoard": ("torch.utils.tensorboard", "SummaryWriter", "flush"),
    "a picture of a report": ("reporting.folder", "ReportFolder", "write_image"),
    "the page of a report": ("shutil", "", "copytree"),
    "the exchange of two reports": ("reporting.folder", "ReportFolder", "publish"),
}
"""By its name, the function whose call is the moment: module, class and name."""


def install(moment: str, count: int, mark: Path) -> None:
    """Make this process end at the moment."""
    module, kind, name = MOMENTS[moment]
    owner = importlib.import_module(module)
    owner = getattr(owner, kind) if kind else owner

    def kill(*_: Any, **__: Any) -> None:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def tear(writer: Any, record: bytes) -> None:
        """Write the length of a record, and nothing after it."""
        writer._writer.write(struct.pack("<Q", len(record)))
        writer.flush()
        kill()

    def exchange(report: Any) -> Any:
        """Publish a report, and end when a folder is renamed: the new one, or the one before it."""
        calls = itertools.count(1)
        for function in ("rename", "replace"):
            _end_at_call(os, function, calls, count, kill)
        return publish(report)

    if moment == "the exchange of two reports":
        publish = getattr(owner, name)
        setattr(owner, name, exchange)
        return
    _end_at_call(owner, name, itertools.count(1), count, tear if name == "write" else kill)


def _end_at_call(
    owner: Any, name: str, calls: Iterator[int], count: int, kill: Callable[..., object]
) -> None:
    """Have `kill` called in the place of `owner.name` when `calls` comes to `count`."""
    usual = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        return kill(*args, **kwargs) if next(calls) == count else usual(*args, **kwargs)

    setattr(owner, name, counted)


def main(argv: Sequence[str]) -> None:
    """Run the entry point until the moment comes."""
    moment, count, rank, mark, entry, *arguments = argv
    if rank == os.environ.get("RANK", "0"):
        install(moment, int(count), Path(mark))
    importlib.import_module(entry).main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
