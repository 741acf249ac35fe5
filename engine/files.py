"""Files that matter are written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from structures import UserError


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a temporary name, flush it to disk, then give it its name.

    A reader sees the old file or the new one, never a part; if `write` fails, the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch.save turns a failed write into a RuntimeError
        reason = getattr(error, "strerror", None) or "the disk is full or failing"
        raise UserError(f"{path} cannot be written: {reason}; its earlier version is untouched") from None
    finally:
        temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make a new name in a folder outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_text(path: Path, text: str) -> None:
    """Save a text file."""
    write_atomically(path, lambda file: file.write(text.encode()))


def save_json(path: Path, content: Any) -> None:
    """Save plain values as indented JSON."""
    save_text(path, f"{json.dumps(content, indent=2)}\n")


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Save named arrays as .npz, readable with `numpy.load`."""
    write_atomically(path, lambda file: np.savez(file, **arrays))
