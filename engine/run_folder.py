"""The run folder: made, locked, and cleared of an earlier run when the new one is ready.

A run keeps a list of the files that it wrote. Nothing else in its folder is ever removed or replaced.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.distributed import World
from engine.files import TEMPORARY, check_destination, check_regular, save_json, save_text, take_lock
from engine.runtime import describe_software, setup_log
from errors import UserError

logger = logging.getLogger(__name__)

LIST = ".run_files.json"
"""In each run folder: the files that the run wrote, or is about to write, but for the log and the lock."""
QUERY_SCORES = {"last": "query_scores.npz", "best": "query_scores_best.npz"}
"""The scores of every query by checkpoint; those of the best one only with a validation split."""
MAIN_FILES = ("last.pth", "best.pth", "metrics.json", "config.yml", *QUERY_SCORES.values())
"""What a run writes."""
BOARD = "tensorboard"
EVALUATION_BOARD = f"{BOARD}/evaluation"
_RUN_FILE = (
    r"last\.pth|best\.pth|metrics\.json|config\.yml|query_scores(_best)?\.npz|epoch_\d+\.pth"
    rf"|({BOARD}|{EVALUATION_BOARD})/events\.out\.tfevents\.[^/]+"
)
"""What a list may name; anything else in it is not believed."""

_locks: dict[Path, IO[bytes]] = {}
"""Lock files of the run folders of this process, open as long as it lives."""
# A loader process that outlives this one for a moment must not hold its locks.
os.register_at_fork(after_in_child=_locks.clear)


def open_run_folder(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Make the run folder, lock it, and log into it; only the main process does.

    With `overwrite` it may hold an earlier run, which `reset_run_folder` removes; with `resume`, this one.
    """
    if overwrite and resume:
        raise UserError("--resume and --overwrite contradict each other; give one of them")
    if not World.from_environment().is_main:
        setup_log()
        return
    try:
        # Refuse a folder with a run in it, or in use, or with somebody else's files.
        earlier = _earlier_run(folder)
        if earlier and not (overwrite or resume):
            raise UserError(
                f"{folder} already holds a run ({earlier[0]}); add --resume to continue it, "
                "--overwrite to replace it, or choose another OUTPUT_DIR"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _lock(folder)
        _check_files(folder, resume=resume)
        # Clean up after a killed run, and log.
        _remove_half_written(folder)
        check_regular(folder / "log.txt")
        setup_log(folder / "log.txt")
    except OSError as error:
        raise UserError(f"the run folder {folder} cannot be written: {error.strerror}") from None
    logger.info("run folder %s, %s", folder, describe_software())


def _lock(folder: Path) -> None:
    """Refuse a folder that another process writes into; the lock ends with this process."""
    path = folder.resolve()
    if path not in _locks:
        file = take_lock(folder / ".lock")
        if file is None:
            raise UserError(f"{folder} is in use by another run; wait for it, or choose another OUTPUT_DIR")
        _locks[path] = file


def _earlier_run(folder: Path) -> list[str]:
    """The names of the files of a run that has begun; a configuration alone is not a run yet."""
    listed = {*(_read_list(folder) or ()), *MAIN_FILES} - {"config.yml"}
    return sorted(name for name in listed if os.path.lexists(folder / name))


def _read_list(folder: Path) -> set[str] | None:
    """The files that the run in a folder has written; None if it has no list, as before version 2."""
    path = folder / LIST
    try:
        names = list(json.loads(path.read_text() if path.is_file() else "")["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return {name for name in names if isinstance(name, str) and re.fullmatch(_RUN_FILE, name)}


def list_run_files(folder: Path, names: Iterable[str]) -> None:
    """Add files to the list of a run, before they are written."""
    known = _read_list(folder)
    wanted = {*(known or ()), *names}
    if wanted != known:
        save_json(folder / LIST, {"files": sorted(wanted)})


@contextmanager
def list_new_events(folder: Path) -> Iterator[None]:
    """Add the event files that TensorBoard makes in this block to the list of the run in `folder`."""
    before = set((folder / BOARD).rglob("*"))
    yield
    new = set((folder / BOARD).rglob("*")) - before
    list_run_files(folder, [path.relative_to(folder).as_posix() for path in new if path.is_file()])


def check_outputs(*outputs: tuple[Path | None, str]) -> None:
    """Refuse paths where results cannot be written; each with the ending of the files that it may replace."""
    wanted = [(path, ending) for path, ending in outputs if path is not None]
    for path, ending in wanted:
        check_destination(path, replaces=ending)
        if path.name in (_read_list(path.parent) or ()):
            raise UserError(f"{path} belongs to the run in that folder; name another output file")
        if [other.absolute() for other, _ in wanted].count(path.absolute()) > 1:
            raise UserError(f"{path} is named for two outputs; name two files")


def _check_files(folder: Path, *, resume: bool, later: Sequence[str] = ()) -> None:
    """Refuse a folder in which the run would replace a file that no run wrote.

    A run that continues and has no list is believed to have written `MAIN_FILES`. `later` are the names of
    the checkpoints that the run will keep.
    """
    check_regular(folder / LIST)
    for board in (folder / BOARD, folder / EVALUATION_BOARD):
        if board.is_symlink() or (board.exists() and not board.is_dir()):
            raise UserError(
                f"{board} is a file or a link, not a folder; remove it or choose another OUTPUT_DIR"
            )
    listed = _read_list(folder)
    for name in sorted({*(listed or ()), *MAIN_FILES, *later}):
        path = folder / name
        is_ours = name in listed if listed is not None else resume and name in MAIN_FILES
        if check_regular(path) and not is_ours:
            raise UserError(
                f"{path} is not in {LIST}, the list of what the run in this folder wrote, and is left alone; "
                "move it away or choose another OUTPUT_DIR"
            )


def _remove_half_written(folder: Path) -> None:
    """Remove what a killed run left of the files that it was writing."""
    for path in folder.glob(".*.tmp"):
        is_ours = re.fullmatch(rf"\.({_RUN_FILE}|{re.escape(LIST)}){TEMPORARY}", path.name)
        if is_ours and stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


def reset_run_folder(folder: Path, config: str, *, keep: bool, checkpoints: Sequence[str] = ()) -> None:
    """Once everything is ready: remove what an earlier run wrote, and nothing else; save the configuration.

    With `keep` the run continues, and nothing is removed. `checkpoints` are the names of the files that it
    will keep besides last.pth and best.pth.
    """
    if not World.from_environment().is_main:
        return
    _check_files(folder, resume=keep, later=checkpoints)
    try:
        for name in () if keep else (*sorted(_read_list(folder) or ()), LIST):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"the earlier run in {folder} cannot be removed: {error.strerror}; choose another OUTPUT_DIR"
        ) from None
    list_run_files(folder, MAIN_FILES)
    save_text(folder / "config.yml", config)
