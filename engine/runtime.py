"""What every command needs before it works: log, seed, device, and a record of what it is computed with."""

from __future__ import annotations

import io
import logging
import os
import platform
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from engine.distributed import World
from errors import UserError

logger = logging.getLogger(__name__)

CLOSED_PIPE = 141
"""Exit status of a command whose output nobody reads any more: 128 + SIGPIPE, as for other programs."""


def setup_log(log_file: Path | None = None, *, is_main: bool | None = None) -> None:
    """Log to the console and to `log_file`; processes other than the main one log errors only.

    Whether this is the main process is read from the environment, which may be wrong, unless it is given.
    """
    if is_main is None:
        is_main = World.from_environment().is_main
    _prepare_streams()
    log_file = log_file if is_main else None
    handlers: list[logging.Handler] = [_Console(may_fail=log_file is not None or not is_main)]
    if log_file is not None:
        handlers.append(_LogFile(log_file))
    root = logging.getLogger()
    root.setLevel(logging.INFO if is_main else logging.ERROR)
    root.handlers.clear()
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        root.addHandler(handler)
    logging.captureWarnings(True)


def _prepare_streams() -> None:
    """Show letters that a stream cannot encode by their codes; replace a stream that is closed already."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed with >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Console(logging.Handler):
    """Writes log lines above the progress bar.

    Args:
        may_fail: the log also goes to a file, or does not matter. Then a console that fails is given up with
            a warning. Otherwise it ends the command: silently for a closed pipe, else with a sentence.
    """

    def __init__(self, *, may_fail: bool) -> None:
        super().__init__()
        self.may_fail = may_fail

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record))
            sys.stdout.flush()
        except OSError as error:
            # From now on the standard output, with what its buffer holds, goes nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            if self.may_fail:
                logger.warning("the console cannot be written (%s); the log continues in its file", error)
                return
            if isinstance(error, BrokenPipeError):
                raise SystemExit(CLOSED_PIPE) from None
            with suppress(OSError):
                sys.stderr.write(f"the output cannot be written ({error})\n")
            raise SystemExit(2) from None


class _LogFile(logging.FileHandler):
    """A log file that may become unwritable: one warning on the console, and the run continues."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._warned:
            self._warned = True
            message = "%s cannot be written (%s); the log continues on the console"
            logger.warning(message, self.baseFilename, error)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def choose_device(name: str, device_id: str, local_rank: int | None = None) -> torch.device:
    """The device that MODEL.DEVICE names: `cuda`, `cpu`, or `auto` for CUDA where there is one.

    A single process takes the CUDA device that MODEL.DEVICE_ID names; of several, each takes its own number.
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
        f"commit {git_commit()}, torch {torch.__version__}, CPU threads: {torch.get_num_threads()}, "
        f"CUDA devices: {torch.cuda.device_count()}, processes: {World.from_environment().size}"
    )


def describe_environment(device: torch.device, world: World) -> dict[str, Any]:
    """What a run is computed with, for its checkpoint: on the CPU, the same gives the same bits."""
    return {
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),  # a class of its own, which no checkpoint may hold
        "processor": _processor_name(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": world.size,
    }


def _processor_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def compare_environments(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What has changed, as `threads 2 → 1, …`; empty if nothing has."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    return ", ".join(f"{name} {before[name]} → {now[name]}" for name in changed)
