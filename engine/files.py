"""Files are written whole or not at all, and never over something that the user may want to keep."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from errors import UserError

TEMPORARY = r"\.\d+(-[0-9a-f]+)?\.tmp"
"""How the name of a half-written file ends, after a dot and the name of the file; a regular expression."""


def check_regular(path: Path) -> bool:
    """Whether there is a file, which would be replaced; folders, links, devices and the like are refused."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:  # ValueError: a character that no name may have
        raise _cannot_be_written(path, error) from None
    if stat.S_ISREG(mode):
        return True
    what = "not a regular file; name another one"
    if stat.S_ISLNK(mode):
        what = "a symbolic link, which is left alone; name the file itself, or remove the link"
    elif stat.S_ISDIR(mode):
        what = "a folder; name a file in it"
    raise UserError(f"{path} cannot be written: it is {what}")


def check_destination(path: Path, *, replaces: str | None = None, makes_folder: bool = False) -> None:
    """Refuse a path that cannot be written, or only over somebody else's file, before any work is done.

    A file may be replaced if it ends in `replaces`, such as ".json". With `makes_folder`, its folder may be
    missing.
    """
    _check_kind(path, replaces)
    folder = path.parent
    while makes_folder and not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {folder}")
    probe = _temporary(folder / path.name)
    try:
        os.close(_create(probe))
        probe.unlink()
    except OSError as error:
        raise _cannot_be_written(path, error) from None


def _check_kind(path: Path, ending: str | None) -> None:
    """Refuse to replace a file of another kind."""
    if check_regular(path) and (ending is None or path.suffix.lower() != ending):
        what = "exists" if ending is None else f"exists and is not a {ending} file"
        raise UserError(f"{path} {what}; name another output file or remove it")


def make_folder(folder: Path) -> None:
    """Make a folder for output, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be made: {error.strerror}") from None


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a temporary name, flush it to disk, then give it its name.

    A reader sees the old file or the new one, never a part; if `write` fails, the old file stays.
    """
    check_regular(path)
    temporary = _temporary(path)
    handled = sys.exc_info()[1]
    try:
        with open(_create(temporary), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        cause = _cause(error, handled)
        if isinstance(cause, OSError):
            raise _cannot_be_written(path, cause, "; its earlier version is untouched") from None
        if cause is error:
            raise
        raise cause from None
    finally:
        with suppress(OSError):  # it is gone, or was never made; the message is the one above
            temporary.unlink()
    _flush_folder(path.parent)


def _temporary(path: Path) -> Path:
    """A name beside `path` that nobody else uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _create(path: Path) -> int:
    """A new file, open for writing; its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _cause(error: Exception, handled: BaseException | None) -> BaseException:
    """The interrupt or the OSError that torch or NumPy hide in an error of their own; else the error.

    What was being handled before the write, `handled`, has nothing to do with it.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link is not handled:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    interrupts = [cause for cause in chain if not isinstance(cause, Exception)]
    return [*interrupts, *(cause for cause in chain if isinstance(cause, OSError)), error][0]


def _cannot_be_written(path: Path, error: Exception, rest: str = "") -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(f"{path} cannot be written: {reason}{rest}")


def _flush_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut, on file systems that can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        with suppress(OSError):
            os.fsync(descriptor)
        os.close(descriptor)


def save_bytes(path: Path, content: bytes) -> None:
    """Save bytes."""
    write_atomically(path, lambda file: file.write(content))


def save_text(path: Path, text: str) -> None:
    """Save a text file."""
    save_bytes(path, text.encode())


def save_json(path: Path, content: Any) -> None:
    """Save plain values as indented JSON; a file that does not end in .json is not replaced."""
    _check_kind(path, ".json")
    save_text(path, f"{json.dumps(content, indent=2)}\n")


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Save named arrays, readable with `numpy.load`; a file that does not end in .npz is not replaced."""
    _check_kind(path, ".npz")
    write_atomically(path, lambda file: np.savez(file, **arrays))


def take_lock(path: Path) -> IO[bytes] | None:
    """Lock a file, which is made if necessary; None if another process holds the lock.

    The open file that is returned holds the lock as long as it lives.
    """
    check_regular(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    file = open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
