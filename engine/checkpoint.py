"""Checkpoints: what a run saves, and what it resumes from."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from engine.files import write_atomically
from structures import BEST_ON, UserError, file_fault, is_whole

logger = logging.getLogger(__name__)

FORMAT = "demo-sdtps-1"
"""Marks a checkpoint of this project; `modeling/weights.py` knows it by its `model` entry."""


def save_checkpoint(path: Path, **content: Any) -> None:
    """Save tensors and plain values, so that `torch.load(weights_only=True)` reads them."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def open_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this project, all on the CPU; empty if the file is of somebody else."""
    if fault := file_fault(path):
        raise UserError(f"checkpoint {path} {fault}")
    damaged = UserError(f"checkpoint {path} cannot be read; it is damaged or not a checkpoint")
    if not is_whole(path):
        raise damaged
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(
            f"--resume: checkpoint {path} does not exist; name last.pth of a run, or leave the name out for "
            "that of OUTPUT_DIR"
        ) from None
    except Exception:  # what a broken file raises differs from place to place
        raise damaged from None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else {}


def describe_choice(path: Path) -> str:
    """Which epoch the weights of a checkpoint are of, and how it was chosen; empty if the file cannot say."""
    try:
        content = open_checkpoint(path)
    except UserError:
        return ""
    progress, epoch = content.get("progress"), content.get("epoch")
    if isinstance(progress, Mapping):
        epoch = progress.get("epoch")
    if not isinstance(epoch, int):
        return ""
    if isinstance(progress, Mapping):
        return f"after epoch {epoch}, not chosen by a score"
    chosen_on = content.get("chosen_on")
    return f"epoch {epoch}, {BEST_ON[chosen_on]}" if chosen_on in ("validation", "test") else f"epoch {epoch}"


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint that training can resume from."""
    content = open_checkpoint(path)
    if not isinstance(content.get("progress"), dict):
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


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Fill an optimiser with the state that a checkpoint has of it.

    The configuration decides on the settings of the groups, which --force may have changed. Each state is
    copied into the memory order of its parameter, which the fused kernels take for granted.

    Args:
        optimizer: of the run.
        saved: its state dict, checked by `check_resumable_content`.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def arranged(number: int, name: str, value: Any) -> Any:
        if name == "step" or value is None:
            return value
        return torch.empty_like(parameters[number], device="cpu").copy_(value)

    state = {
        number: {name: arranged(number, name, value) for name, value in entries.items()}
        for number, entries in saved["state"].items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def check_same_data(saved: Mapping[str, Any], now: Mapping[str, str], *, force: bool) -> None:
    """Refuse to resume a run whose images have changed.

    Args:
        saved: the content of the checkpoint.
        now: the fingerprints of the data, by split.
        force: go on all the same, with a warning.
    """
    data = saved.get("data")
    before = data.get("fingerprints") if isinstance(data, Mapping) else None
    if not isinstance(before, Mapping):
        logger.info("the checkpoint has no fingerprint of the data, so they are not compared")
        return
    changed = " and ".join(split for split in now if before.get(split) != now[split])
    if changed and not force:
        raise UserError(
            f"the {changed} images are not those that the run was started with (files, sizes, identities, "
            "cameras or scenes differ); restore them, or add --force"
        )
    if changed:
        logger.warning("the %s images are not those that the run was started with", changed)


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
