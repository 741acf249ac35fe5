"""Run an entry point: what the user did wrong, or asked for, ends it with one line and a status."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence

from engine.arguments import restore_interrupt
from engine.interrupt import RunStopped
from engine.runtime import setup_log
from structures import UserError

logger = logging.getLogger(__name__)

_SHARED_MEMORY = (
    "the loader processes have too little shared memory (/dev/shm): give the container more, for instance "
    "with --shm-size=8g, or set DATALOADER.NUM_WORKERS 0"
)
REMEDIES = (
    (
        r"OutOfMemoryError|CUDA out of memory",
        "CUDA ran out of memory: lower SOLVER.IMS_PER_BATCH (keep it a multiple of DATALOADER.NUM_INSTANCE), "
        "TEST.IMS_PER_BATCH, or INPUT.SIZE_TRAIN and INPUT.SIZE_TEST; keep SOLVER.AMP True; or use more "
        "processes",
    ),
    (
        r"ModuleNotFoundError: .*\b(matplotlib|sklearn)\b",
        'this command draws with matplotlib and scikit-learn: run pip install -e ".[report]"',
    ),
    (
        r"Too many open files|received 0 items of ancdata",
        "too many files are open at once: raise the limit, for instance with ulimit -n 4096, or lower "
        "DATALOADER.NUM_WORKERS",
    ),
    (r"Bus error|shared memory limit|unable to .*(shared memory|/torch_\d+)", _SHARED_MEMORY),
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
"""Where the system has run out of something: how its error reads, and what to do. The first fit counts."""


def run_command(command: Callable[[Sequence[str] | None], None]) -> None:
    """Run an entry point; a user error ends it with one line and status 2, a signal with how to go on."""
    restore_interrupt()
    try:
        command(None)
    except UserError as error:
        raise SystemExit(_fail(_message_of(error))) from None
    except RunStopped as stopped:
        logger.warning("%s; go on with: %s", stopped, resume_command())
        raise SystemExit(stopped.status) from None
    except KeyboardInterrupt:
        _fail("interrupted")
        raise SystemExit(130) from None
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        remedy = _find_remedy(error)
        if remedy is None:
            raise
        sys.unraisablehook = lambda _: None  # what is half built now may fail once more when it is taken down
        raise SystemExit(_fail(remedy)) from None


def _find_remedy(error: Exception) -> str | None:
    """What to do when the system has run out of something; None for any other error."""
    text = f"{type(error).__name__}: {error}"
    return next((remedy for pattern, remedy in REMEDIES if re.search(pattern, text)), None)


def resume_command() -> str:
    """The command that goes on with this run."""
    words = [word for word in sys.argv if word != "--overwrite" and not word.startswith("--resume=")]
    if "--resume" in words:
        place = words.index("--resume")
        has_path = words[place + 1 : place + 2] and words[place + 1].endswith(".pth")
        del words[place : place + (2 if has_path else 1)]
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    launcher = "python" if processes == "1" else f"torchrun --nproc_per_node={processes}"
    return f"{launcher} {shlex.join(words)} --resume"


def _message_of(error: UserError) -> str:
    # A loader process hands its error on with a stack trace in front; the last line is the message.
    message = str(error)
    if "Original Traceback" in message:
        message = message.rstrip().rpartition("\n")[2].partition(": ")[2]
    return message


def _fail(message: str) -> int:
    if not logging.getLogger().handlers:
        setup_log(is_main=True)
    logger.error(message)
    return 2
