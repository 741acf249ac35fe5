"""Checkpoints: what a run saves, and what it resumes from."""

from __future__ import annotations

import logging
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.files import write_atomically
from structures import BEST_ON, UserError

logger = logging.getLogger(__name__)

FORMAT = "demo-sdtps-1"
"""Marks a checkpoint of this project; `modeling/weights.py` knows it by its `model` entry."""


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
