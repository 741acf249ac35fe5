"""Run an entry point: what the user did wrong, or asked for, ends it with one line and a status."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence

import torch

from engine.interrupt import RunStopped
from engine.runtime import setup_log
from structures import UserError

logger = logging.getLogger(__name__)


def run_command(command: Callable[[Sequence[str] | None], None]) -> None:
    """Run an entry point; a user error ends it with one line and status 2, a signal with how to go on."""
    try:
        command(None)
    except UserError as error:
        raise SystemExit(_fail(error)) from None
    except RunStopped as stopped:
        logger.warning("%s; go on with: %s", stopped, resume_command())
        raise SystemExit(stopped.status) from None
    except torch.OutOfMemoryError:
        logger.error(
            "CUDA ran out of memory: lower SOLVER.IMS_PER_BATCH (keep it a multiple of "
            "DATALOADER.NUM_INSTANCE), TEST.IMS_PER_BATCH, or INPUT.SIZE_TRAIN and INPUT.SIZE_TEST; keep "
            "SOLVER.AMP True; or use more processes (the settings of this run: %s)",
            " ".join(sys.argv[1:]),
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        logger.error("interrupted")
        raise SystemExit(130) from None


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


def _fail(error: UserError) -> int:
    # A loader process hands its error on with a stack trace in front; the last line is the message.
    message = str(error)
    if "Original Traceback" in message:
        message = message.rstrip().rpartition("\n")[2].partition(": ")[2]
    if not logging.getLogger().handlers:
        setup_log()
    logger.error(message)
    return 2
