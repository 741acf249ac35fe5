"""What a run needs before it starts: folder, log, seed, device; and a clean end for user errors."""

from __future__ import annotations

import logging
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from engine.interrupt import RunStopped
from structures import UserError

logger = logging.getLogger(__name__)

RUN_FILES = ("config.yml", "log.txt", "metrics.json", "last.pth", "best.pth", "tensorboard")
"""What a run writes into its folder, besides epoch_<n>.pth."""


class _ConsoleHandler(logging.Handler):
    """Writes log lines above the progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record))


def is_main_process() -> bool:
    """Whether this process writes and logs: rank 0, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def setup_log(log_file: Path | None = None) -> None:
    """Log to the console and to `log_file`; processes other than the main one only warn."""
    root = logging.getLogger()
    root.setLevel(logging.INFO if is_main_process() else logging.WARNING)
    handlers: list[logging.Handler] = [_ConsoleHandler()]
    if log_file is not None and is_main_process():
        handlers.append(logging.FileHandler(log_file))
    root.handlers.clear()
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        root.addHandler(handler)
    logging.captureWarnings(True)


def start_run(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Make the run folder and log into it. Only the main process writes.

    Args:
        folder: where the run writes.
        overwrite: remove an earlier run that the folder holds, instead of refusing.
        resume: go on with the run that the folder holds.
    """
    if not is_main_process():
        setup_log()
        return
    earlier = [folder / name for name in RUN_FILES if (folder / name).exists()]
    earlier += sorted(folder.glob("epoch_*.pth"))
    if earlier and not (overwrite or resume):
        raise UserError(
            f"{folder} already holds a run ({earlier[0].name}); add --resume to go on with it, "
            "--overwrite to replace it, or choose another OUTPUT_DIR"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in [*([] if resume else earlier), *folder.glob(".*.tmp")]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        setup_log(folder / "log.txt")
        logger.info("run folder %s, %s", folder, describe_software())
    except OSError as error:
        raise UserError(f"the run folder {folder} cannot be written: {error.strerror}") from None


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def choose_device(name: str, device_id: str, local_rank: int | None = None) -> torch.device:
    """The device that MODEL.DEVICE and MODEL.DEVICE_ID name.

    Args:
        name: `cuda`, `cpu`, or `auto` for CUDA where there is one.
        device_id: number of the CUDA device, for a single process.
        local_rank: number of this process among several; it takes the CUDA device of that number.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("MODEL.DEVICE is cuda, but torch finds no CUDA device; use auto or cpu")
    if local_rank is not None:
        device_id = str(local_rank)
    if not device_id.isdigit() or int(device_id) >= torch.cuda.device_count():
        raise UserError(
            f"MODEL.DEVICE_ID, or the number of a process, must be one number below the "
            f"{torch.cuda.device_count()} CUDA devices, not {device_id!r}"
        )
    return torch.device("cuda", int(device_id))


def describe_software() -> str:
    """Versions and commit, for the log."""
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    commit = git.stdout.strip() or "unknown"
    processes = os.environ.get("WORLD_SIZE", "1")
    return (
        f"commit {commit}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, "
        f"{torch.cuda.device_count()} CUDA devices, {processes} processes"
    )


def run_command(command: Callable[[Sequence[str] | None], None]) -> None:
    """Run an entry point; a user error ends it with one line and status 2, a signal with how to go on."""
    try:
        command(None)
    except UserError as error:
        raise SystemExit(_fail(error)) from None
    except RunStopped as stopped:
        command_line = " ".join(shlex.quote(word) for word in sys.argv if word != "--overwrite")
        resume = command_line if "--resume" in sys.argv else f"{command_line} --resume"
        logger.warning("%s; go on with: python %s", stopped, resume)
        raise SystemExit(stopped.status) from None
    except KeyboardInterrupt:
        logger.error("interrupted")
        raise SystemExit(130) from None


def _fail(error: UserError) -> int:
    # A loader process hands its error on with a stack trace in front; the last line is the message.
    message = str(error)
    if "Original Traceback" in message:
        message = message.rstrip().rpartition("\n")[2].partition(": ")[2]
    if not logging.getLogger().handlers:
        setup_log()
    logger.error(message)
    return 2
