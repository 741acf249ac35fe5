"""What a run needs before it starts: folder, log, seed, device; and a clean end for user errors."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from tqdm import tqdm

from engine.checkpoint import save_text
from engine.distributed import World
from engine.interrupt import RunStopped
from structures import UserError

logger = logging.getLogger(__name__)

RUN_FILES = ("metrics.json", "last.pth", "best.pth", "tensorboard", "report")
"""What a run that has begun leaves in its folder, besides epoch_<n>.pth, config.yml and log.txt."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt`, from its malloc.h."""

_locks: dict[Path, IO[str]] = {}
"""Lock files of the run folders of this process, open as long as it lives."""


class _ConsoleHandler(logging.Handler):
    """Writes log lines above the progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record))


def setup_log(log_file: Path | None = None) -> None:
    """Log to the console and to `log_file`; other processes than the main one log errors alone."""
    root = logging.getLogger()
    root.setLevel(logging.INFO if World.from_environment().is_main else logging.ERROR)
    handlers: list[logging.Handler] = [_ConsoleHandler()]
    if log_file is not None and World.from_environment().is_main:
        handlers.append(logging.FileHandler(log_file))
    root.handlers.clear()
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        root.addHandler(handler)
    logging.captureWarnings(True)


def start_run(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Make the run folder, lock it, and log into it. Only the main process writes.

    Args:
        folder: where the run writes.
        overwrite: the folder may hold an earlier run; `begin_run` removes it when the new one is ready.
        resume: go on with the run that the folder holds.
    """
    if overwrite and resume:
        raise UserError("--resume and --overwrite contradict each other; give one of them")
    if not World.from_environment().is_main:
        setup_log()
        return
    earlier = _earlier_run(folder)
    if earlier and not (overwrite or resume):
        raise UserError(
            f"{folder} already holds a run ({earlier[0].name}); add --resume to go on with it, "
            "--overwrite to replace it, or choose another OUTPUT_DIR"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _lock(folder)
        for half_written in folder.glob(".*.tmp"):
            if half_written.is_file():  # an interrupted report leaves a folder, which the next report clears
                half_written.unlink()
        setup_log(folder / "log.txt")
        logger.info("run folder %s, %s", folder, describe_software())
    except OSError as error:
        raise UserError(f"the run folder {folder} cannot be written: {error.strerror}") from None


def _lock(folder: Path) -> None:
    """Refuse a folder that another process writes into; the lock ends with this process."""
    place = folder.resolve()
    if place in _locks:
        return
    file = (folder / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder} is in use by another run; wait for it, or choose another OUTPUT_DIR"
        ) from None
    _locks[place] = file


def _earlier_run(folder: Path) -> list[Path]:
    """The files that a run has left in the folder."""
    return [path for name in (*RUN_FILES, "epoch_*.pth") for path in sorted(folder.glob(name))]


def begin_run(folder: Path, config: str, *, keep: bool) -> None:
    """Now that everything is ready: remove what an earlier run has left, and nothing else; save the settings.

    Args:
        folder: the run folder.
        config: the configuration as YAML.
        keep: do not remove anything, since the run goes on.
    """
    if not World.from_environment().is_main:
        return
    for path in [] if keep else _earlier_run(folder):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    save_text(folder / "config.yml", config)


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


def keep_freed_memory() -> None:
    """Keep memory that was freed in this process, for what comes next. For processes that compute on the CPU.

    By default the C library gives large blocks back to the system and asks for them again, several times in a
    step. The system then clears them page by page, which can take longer than the work on them. The peak of
    memory stays what it was. Only glibc can be told; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if platform.libc_ver()[0] == "glibc" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)  # no block is mapped by itself, whatever its size
        mallopt(M_TRIM_THRESHOLD, -1)  # the end of the heap is never given back
    logger.debug("freed memory is %s", "kept" if mallopt is not None else "left to the C library")


def git_commit() -> str:
    """The commit of this checkout, shortened."""
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip() or "unknown"


def describe_software() -> str:
    """Versions and commit, for the log."""
    return (
        f"commit {git_commit()}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, "
        f"{torch.cuda.device_count()} CUDA devices, {World.from_environment().size} processes"
    )


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
