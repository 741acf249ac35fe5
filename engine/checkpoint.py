"""Files that matter are written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from structures import BEST_ON, UserError

logger = logging.getLogger(__name__)

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


def save_checkpoint(path: Path, **content: Any) -> None:
    """Save tensors and plain values, so that `torch.load(weights_only=True)` reads them."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def open_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this project, all on the CPU; empty if the file is of somebody else."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"checkpoint {path} does not exist") from None
    except (RuntimeError, EOFError, ValueError, OSError, pickle.UnpicklingError):
        raise UserError(f"checkpoint {path} cannot be read; it is damaged or not a checkpoint") from None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else {}


def describe_choice(path: Path) -> str:
    """Which epoch the weights of a checkpoint are of, and how it was chosen; empty if the file cannot say."""
    try:
        content = open_checkpoint(path)
    except UserError:
        return ""
    if "progress" in content:
        return f"after epoch {content['progress']['epoch']}, not chosen by a score"
    how = f", {BEST_ON[content['chosen_on']]}" if "chosen_on" in content else ""
    return f"epoch {content['epoch']}{how}" if "epoch" in content else ""


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint that training can resume from."""
    content = open_checkpoint(path)
    if "progress" not in content:
        raise UserError(f"{path} is not a checkpoint that training can resume from; use last.pth of a run")
    return content


def find_checkpoint(resume: str | None, folder: Path) -> dict[str, Any] | None:
    """The checkpoint to resume from.

    Args:
        resume: None to start anew, a path, or empty for last.pth of the run folder.
        folder: the run folder.

    Returns:
        None to start from the beginning, also where a run was killed before its first checkpoint.
    """
    if resume is None:
        return None
    if not resume and not (folder / "last.pth").exists():
        logger.warning("%s holds no last.pth yet: the run starts from the beginning", folder)
        return None
    return load_checkpoint(Path(resume) if resume else folder / "last.pth")


def random_states(device: torch.device) -> dict[str, Any]:
    """The states of all global random generators that a run on `device` uses, as plain values and tensors."""
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Set the global random generators to what `random_states` gave."""
    kind, keys, *rest = states["numpy"]
    random.setstate(states["python"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def save_json(path: Path, content: Any) -> None:
    """Save plain values as indented JSON."""
    save_text(path, f"{json.dumps(content, indent=2)}\n")


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Save named arrays as .npz, readable with `numpy.load`."""
    write_atomically(path, lambda file: np.savez(file, **arrays))
