"""The run folder: made, locked, and cleared of an earlier run when the new one is ready."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path
from typing import IO

from engine.distributed import World
from engine.files import save_text
from engine.runtime import describe_software, setup_log
from structures import UserError

logger = logging.getLogger(__name__)

RUN_FILES = ("metrics.json", "last.pth", "best.pth", "tensorboard", "report")
"""What a run that has begun leaves in its folder, besides epoch_<n>.pth, config.yml and log.txt."""

_locks: dict[Path, IO[str]] = {}
"""Lock files of the run folders of this process, open as long as it lives."""
# A loader process that outlives this one for a moment must not hold its locks.
os.register_at_fork(after_in_child=_locks.clear)


def open_run_folder(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Make the run folder, lock it, and log into it. Only the main process writes.

    Args:
        folder: where the run writes.
        overwrite: the folder may hold an earlier run, which `reset_run_folder` removes.
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


def reset_run_folder(folder: Path, config: str, *, keep: bool) -> None:
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
