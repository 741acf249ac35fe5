"""Run an entry point; user errors and signals end it with one line and an exit status."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from engine.arguments import restore_interrupt
from engine.interrupt import RunStopped
from engine.runtime import setup_log
from errors import UserError

logger = logging.getLogger(__name__)

REMEDIES = (
    (
        r"OutOfMemoryError|CUDA out of memory",
        "CUDA ran out of memory: lower SOLVER.IMS_PER_BATCH (keep it a multiple of DATALOADER.NUM_INSTANCE), "
        "TEST.IMS_PER_BATCH, or INPUT.SIZE_TRAIN and INPUT.SIZE_TEST; keep SOLVER.AMP True; or use more "
        "processes",
    ),
    (
        r"Too many open files|received 0 items of ancdata",
        "too many files are open at once: raise the limit, for instance with ulimit -n 4096, or lower "
        "DATALOADER.NUM_WORKERS",
    ),
    (
        r"Bus error|shared memory limit|unable to .*(shared memory|/torch_\d+)",
        "the loader processes have too little shared memory (/dev/shm): give the container more, for "
        "instance with --shm-size=8g, or set DATALOADER.NUM_WORKERS 0",
    ),
    (
        r"DataLoader worker .*(killed|exited unexpectedly)",
        "a loader process was killed, probably because memory ran out: lower DATALOADER.NUM_WORKERS, set "
        "DATALOADER.CACHE none, or give the machine or container more memory, also shared memory (/dev/shm)",
    ),
    (
        r"MemoryError|DefaultCPUAllocator|Cannot allocate memory|can't allocate memory",
        "memory ran out: lower SOLVER.IMS_PER_BATCH (keep it a multiple of DATALOADER.NUM_INSTANCE), "
        "TEST.IMS_PER_BATCH or DATALOADER.NUM_WORKERS, or set DATALOADER.CACHE none",
    ),
)
"""When something has run out: how the error reads, and what to do. The first match counts."""


def run_command(command: Callable[[Sequence[str] | None], None]) -> None:
    """Run an entry point; a user error ends it with one line and status 2, a signal with how to continue."""
    restore_interrupt()
    try:
        command(None)
    except UserError as error:
        # A loader process hands its error on with a stack trace in front; the last line is the message.
        message = str(error)
        if "Original Traceback" in message:
            message = message.rstrip().rpartition("\n")[2].partition(": ")[2]
        _end(message, 2)
    except RunStopped as stopped:
        logger.warning("%s; continue with: %s", stopped, resume_command())
        raise SystemExit(stopped.status) from None
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except (MemoryError, OSError, RuntimeError) as error:
        text = f"{type(error).__name__}: {error}"
        remedy = next((remedy for pattern, remedy in REMEDIES if re.search(pattern, text)), None)
        if remedy is None:
            raise
        sys.unraisablehook = lambda _: None  # what is half built now may fail once more when it is taken down
        _end(remedy, 2)


def _end(message: str, status: int) -> NoReturn:
    if not logging.getLogger().handlers:
        setup_log(is_main=True)
    logger.error(message)
    raise SystemExit(status) from None


def resume_command() -> str:
    """The command that continues this run."""
    words = [word for word in sys.argv if word != "--overwrite" and not word.startswith("--resume=")]
    if "--resume" in words:
        index = words.index("--resume")
        has_path = words[index + 1 : index + 2] and words[index + 1].endswith(".pth")
        del words[index : index + (2 if has_path else 1)]
    processes, nodes = (os.environ.get(name, "1") for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    launcher = "python" if processes == nodes == "1" else f"torchrun --nproc_per_node={processes}"
    if nodes != "1":  # how they find each other, only their launcher knows
        launcher = launcher.replace("torchrun", f"torchrun --nnodes={nodes} …")
    return f"{launcher} {shlex.join(words)} --resume"
