"""What every command needs before it works: log, seed, device, and a word on the software."""

from __future__ import annotations

import ctypes
import logging
import platform
import random
import subprocess
from pathlib import Path

import numpy as np
import torch

from engine.console import Console, LogFile, prepare_streams
from engine.distributed import World
from structures import UserError

logger = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt`, from its malloc.h."""


def setup_log(log_file: Path | None = None, *, is_main: bool | None = None) -> None:
    """Log to the console and to `log_file`; other processes than the main one log errors alone.

    Args:
        log_file: None for the console alone.
        is_main: whether this is the main process; None to ask the environment, which may be wrong.
    """
    if is_main is None:
        is_main = World.from_environment().is_main
    handlers: list[logging.Handler] = []
    if log_file is not None and is_main:
        handlers.append(LogFile(log_file))
    handlers.insert(0, Console(may_fail=bool(handlers) or not is_main))
    prepare_streams()
    root = logging.getLogger()
    root.setLevel(logging.INFO if is_main else logging.ERROR)
    root.handlers.clear()
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        root.addHandler(handler)
    logging.captureWarnings(True)


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
    count = torch.cuda.device_count()
    if local_rank is not None:
        if local_rank >= count:
            raise UserError(
                f"each process needs a CUDA device of its own, and this machine has {count}; set torchrun's "
                f"--nproc_per_node to {count} or less, or MODEL.DEVICE to cpu"
            )
        return torch.device("cuda", local_rank)
    if not device_id.isdigit() or int(device_id) >= count:
        raise UserError(f"MODEL.DEVICE_ID is {device_id!r}, but CUDA devices go from 0 to {count - 1} here")
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
    """The commit of this checkout, shortened; "unknown" without git or without a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return git.stdout.strip() or "unknown"


def describe_software() -> str:
    """Versions and commit, for the log."""
    return (
        f"commit {git_commit()}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, "
        f"{torch.cuda.device_count()} CUDA devices, {World.from_environment().size} processes"
    )
