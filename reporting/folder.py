"""The folder of a report: written whole or not at all, and replaced without touching anybody else's files.

A report lists its files. When a new one is whole, the old one is renamed, the new one gets its name, and then
the listed files of the old one are removed; others move into the new report. If the process is killed in
between, the next start finds the renamed report.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image

from errors import UserError

logger = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
JPEG_QUALITY = 85
LIST = "data/files.json"
"""In each report: the files that it consists of."""
FORMAT = "demo-sdtps-report-1"
_SCRATCH, _ASIDE, _REPLACED = "tmp", "old", "gone"
"""How the names end of a folder that is being written, that was set aside, and that is being removed."""


class ReportFolder:
    """Collects the files of a report in a scratch folder beside the final one; `publish` renames it.

    Args:
        path: where the report will be. An earlier report there is replaced, anything else is refused.
        num_processes: that evaluate; must be 1.
    """

    def __init__(self, path: Path, num_processes: int = 1) -> None:
        if num_processes > 1:
            raise UserError(
                "--report needs all test triples in one process; run test_net.py without torchrun"
            )
        self.path = path
        self._discard_scratch: Callable[[], object] = lambda: None
        with self._clear_errors():
            _check_target(path)
            self._target = path.resolve()
            self._target.parent.mkdir(parents=True, exist_ok=True)
            _recover(self._target)
            _remove_left_over(self._target)
            self.scratch, lock = _make_scratch(self._target)
            self._discard_scratch = weakref.finalize(self, _discard, self.scratch, lock, os.getpid())
            for name in ("images", "data/triples"):
                (self.scratch / name).mkdir(parents=True)

    def write_image(self, row: int, strip: Image.Image) -> None:
        """The picture of the test triple with this row."""
        with self._clear_errors():
            strip.save(self.scratch / "images" / f"{row}.jpg", quality=JPEG_QUALITY)

    def write_data(self, name: str, content: Mapping[str, Any]) -> None:
        """Write data/<name>.js, a script: a page that is opened from disk may load nothing else."""
        plain = json.loads(json.dumps(content), parse_constant=lambda _: None)  # JSON has no NaN
        text = json.dumps(plain, separators=(",", ":"))
        with self._clear_errors():
            file = self.scratch / "data" / f"{name}.js"
            file.write_text(f'REPORT.receive("{name}",{text});\n', encoding="ascii")

    def publish(self) -> Path:
        """Add the page and the list, and put the folder into place of an earlier one.

        Returns:
            The page.
        """
        with self._clear_errors():
            shutil.copytree(PAGE, self.scratch, dirs_exist_ok=True)
            names = sorted(path.relative_to(self.scratch).as_posix() for path in _files_of(self.scratch))
            content = json.dumps({"format": FORMAT, "files": [*names, LIST]}, indent=0)
            (self.scratch / LIST).write_text(content, encoding="ascii")
            _check_target(self.path)
            _put_into_place(self.scratch, self._target)
        self._discard_scratch()
        _recover(self._target)
        return self.path / "index.html"

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._discard_scratch()
            raise UserError(f"the report {self.path} cannot be written: {error.strerror}") from None


def _check_target(path: Path) -> None:
    """Refuse a path that holds anything but an earlier report."""
    if path.is_symlink():
        raise UserError(
            f"{path} is a symbolic link, which is left alone; name the folder itself for --report"
        )
    try:
        is_free = path.is_dir() and (not any(path.iterdir()) or _read_list(path) is not None)
        path.lstat()
    except FileNotFoundError:
        return
    if not is_free:
        raise UserError(
            f"{path} exists and is not a report with a list of its files ({LIST}); name another folder for "
            "--report, or remove it"
        )


def _read_list(folder: Path) -> set[str] | None:
    """The files that a report consists of; None if the folder is no report, or one of an earlier version."""
    try:
        content = json.loads((folder / LIST).read_text())
        names = content["files"] if content["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return set(names)


def _files_of(folder: Path) -> list[Path]:
    """All that is not a folder; links are not followed."""
    return [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]


def _beside(target: Path, ending: str) -> Path:
    """A new name beside a report."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.{ending}")


def _folders_beside(target: Path, ending: str) -> list[Path]:
    """The folders that were named by `_beside`, the newest first."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.{ending}")
    named = [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
    folders = [path for path in named if path.is_dir() and not path.is_symlink()]
    return sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)


def _make_scratch(target: Path) -> tuple[Path, int]:
    """A new folder beside a report, and a descriptor that locks it as long as this process lives."""
    while True:
        scratch = _beside(target, _SCRATCH)
        scratch.mkdir()
        lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks: then nobody removes what others have left
            fcntl.flock(lock, fcntl.LOCK_EX)
        if scratch.is_dir():
            return scratch, lock
        os.close(lock)  # another start has taken it for left over before it was locked


def _discard(scratch: Path, lock: int, pid: int) -> None:
    """Remove a scratch folder that is of no more use; not in a process that was forked from its owner."""
    if os.getpid() == pid:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _remove_left_over(target: Path) -> None:
    """Remove the scratch folders of processes that were killed; those of living ones are locked."""
    for scratch in _folders_beside(target, _SCRATCH):
        with suppress(OSError):  # it is in use, or gone
            descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)
            finally:
                os.close(descriptor)


def _put_into_place(new: Path, target: Path) -> None:
    """Rename a whole report to its place, and what is there to a name beside it."""
    while True:
        aside = _beside(target, _ASIDE)
        with suppress(FileNotFoundError):
            shutil.copymode(target, new)
            os.rename(target, aside)
        try:
            os.rename(new, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process was quicker: it is replaced
                continue
            if aside.exists():
                os.rename(aside, target)
            raise
        return


def _recover(target: Path) -> None:
    """Bring back a report that was set aside and never replaced; remove those that were replaced."""
    try:
        for aside in _folders_beside(target, _ASIDE):
            if not target.exists():
                os.rename(aside, target)
                logger.warning("%s was set aside when a process was killed, and is back in its place", target)
            elif _read_list(target) is not None:
                os.rename(aside, _beside(target, _REPLACED))
        for replaced in _folders_beside(target, _REPLACED):
            _remove_report(replaced, target)
    except FileNotFoundError:
        logger.debug("another process recovers %s", target)
    except OSError as error:
        logger.warning("an earlier report beside %s cannot be removed: %s", target, error.strerror)


def _remove_report(replaced: Path, target: Path) -> None:
    """Remove the files of a report that was replaced; others move to the same path in the new one."""
    ours = _read_list(replaced) or set()
    for folder, folders, files in os.walk(replaced):
        if not (folders or files) and Path(folder) != replaced:  # somebody's, and empty
            (target / Path(folder).relative_to(replaced)).mkdir(parents=True, exist_ok=True)
    for path in _files_of(replaced):
        name = path.relative_to(replaced).as_posix()
        if name not in ours or path.is_symlink():
            _move(path, target / name)
        elif name != LIST:
            path.unlink(missing_ok=True)
    if ours:  # the list comes last: a process that is killed before leaves it to the next
        (replaced / LIST).unlink(missing_ok=True)
    for folder, _, _ in os.walk(replaced, topdown=False):
        with suppress(OSError):  # it holds a file that could not be moved
            os.rmdir(folder)


def _move(path: Path, destination: Path) -> None:
    """Move a foreign file into a new report; it stays where it is if the name is taken."""
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(destination):
            os.rename(path, destination)
            return
    except FileNotFoundError:  # another process has moved it
        return
    except FileExistsError:
        pass
    logger.warning("%s replaces a file that is not of a report; that one is kept in %s", destination, path)
