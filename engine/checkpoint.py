"""Files that matter are written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

FORMAT = "demo-sdtps-1"
"""Marks a checkpoint of this project; `modeling/weights.py` knows it by its `model` entry."""


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
    finally:
        temporary.unlink(missing_ok=True)


def save_checkpoint(path: Path, **content: Any) -> None:
    """Save tensors and plain values, so that `torch.load(weights_only=True)` reads them."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def save_json(path: Path, content: Any) -> None:
    """Save plain values as indented JSON."""
    write_atomically(path, lambda file: file.write(f"{json.dumps(content, indent=2)}\n".encode()))


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Save named arrays as .npz, readable with `numpy.load`."""
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
