"""What a run needs before it starts: folder, log, seed, device; and a clean end for user errors."""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

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


def start_run(folder: Path, *, overwrite: bool) -> Path:
    """Make the run folder and log into it.

    Args:
        folder: where the run writes.
        overwrite: remove an earlier run that the folder holds, instead of refusing.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("training with several processes is not implemented; start it without torchrun")
    earlier = [folder / name for name in RUN_FILES if (folder / name).exists()]
    earlier += sorted(folder.glob("epoch_*.pth"))
    if earlier and not overwrite:
        raise UserError(
            f"{folder} already holds a run ({earlier[0].name}); choose another OUTPUT_DIR or add --overwrite"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in earlier:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        setup_log(folder / "log.txt")
    except OSError as error:
        raise UserError(f"the run folder {folder} cannot be written: {error.strerror}") from None
    return folder


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def choose_device(name: str, device_id: str) -> torch.device:
    """The device that MODEL.DEVICE and MODEL.DEVICE_ID name.

    Args:
        name: `cuda`, `cpu`, or `auto` for CUDA where there is one.
        device_id: number of the CUDA device.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("MODEL.DEVICE is cuda, but torch finds no CUDA device; use auto or cpu")
    if not device_id.isdigit() or int(device_id) >= torch.cuda.device_count():
        raise UserError(
            f"MODEL.DEVICE_ID must be one number below {torch.cuda.device_count()}, not {device_id!r}"
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
    return f"commit {commit}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads"


def add_config_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """The arguments that both entry points take."""
    parser.add_argument(
        "--config_file",
        metavar="FILE",
        help=f"YAML with the settings that differ from the defaults (without it: {default})",
    )
    parser.add_argument(
        "--allow_partial", action="store_true", help="load the weights that fit even if others are missing"
    )
    parser.add_argument(
        "settings",
        metavar="KEY VALUE",
        nargs="*",
        help="settings that override the file, such as SOLVER.MAX_EPOCHS 20; docs/configuration.md lists all",
    )


def run_command(command: Callable[[Sequence[str] | None], None]) -> None:
    """Run an entry point; a user error ends it with one line and status 2, Ctrl-C with status 130."""
    try:
        command(None)
    except UserError as error:
        raise SystemExit(_fail(error)) from None
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
