"""Checkpoints: what a run saves, and what it resumes from, once all of it is checked."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from engine.files import write_atomically
from errors import UserError, on_one_line
from evaluation.result import scores_by_pattern
from structures import BEST_ON
from weight_file import TRUNK_FILE, file_fault, is_plain, is_whole

logger = logging.getLogger(__name__)

FORMAT = "demo-sdtps-1"
"""Marks a checkpoint of this project; `modeling/weights.py` knows it by its `model` entry."""
LATER = ("initial_weights", "initial_sha256", "environments")
"""What the progress of a checkpoint of version 1 does not have."""
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
SCORES = ("mAP", "mINP", "rank_1", "rank_5", "rank_10")
"""What the end of a run reads of an evaluated epoch."""


@dataclass
class Progress:
    """How far a run has come; with weights, optimiser and random states, all that a resumed run needs."""

    epoch: int = 0  # finished epochs
    steps_in_epoch: int = 0  # steps done in the epoch after those
    step: int = 0  # steps done in all
    best_map: float = -1.0  # best mAP so far, of the last return pattern
    # Sums over the steps of the unfinished epoch, by name.
    sums: dict[str, float] = field(default_factory=dict)
    # What metrics.json says of each finished epoch.
    epochs: list[dict[str, Any]] = field(default_factory=list)
    # Training images that were replaced because they could not be read.
    unreadable: list[str] = field(default_factory=list)
    # What the run started from: `random`, or a weight file; empty if it is not known.
    initial_weights: str = ""
    initial_sha256: str = ""  # of that file; empty if there is none
    # What the run was computed with, see `describe_environment`; a resumed run adds what has changed.
    environments: list[dict[str, Any]] = field(default_factory=list)

    def as_metrics(self) -> dict[str, Any]:
        """What metrics.json says of a run, finished or not."""
        names = ("epochs", "environments", "initial_weights", "initial_sha256")
        return {name: getattr(self, name) for name in names}


def save_checkpoint(path: Path, **content: Any) -> None:
    """Save tensors and plain values, so that `torch.load(weights_only=True)` reads them."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def open_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this project, all on the CPU; empty if another program wrote it."""
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
    except Exception:  # a broken file raises errors of many kinds
        raise damaged from None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else {}


def describe_choice(content: Mapping[str, Any]) -> str:
    """Which epoch the weights of a checkpoint are of, and how it was chosen; empty if it cannot say."""
    if content.get("format") != FORMAT:
        return ""
    progress, epoch, chosen_on = (content.get(name) for name in ("progress", "epoch", "chosen_on"))
    if isinstance(progress, Mapping) and isinstance(progress.get("epoch"), int):
        return f"after epoch {progress['epoch']}, not chosen by a score"
    if not isinstance(epoch, int):
        return ""
    return f"epoch {epoch}, {BEST_ON[chosen_on]}" if chosen_on in BEST_ON else f"epoch {epoch}"


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint that training can resume from."""
    content = open_checkpoint(path)
    if not isinstance(content.get("progress"), dict):
        raise UserError(f"{path} is not a checkpoint that training can resume from; use last.pth of a run")
    return content


def find_checkpoint(resume: str | None, folder: Path) -> dict[str, Any] | None:
    """The checkpoint to resume from; None to start, also if a run was killed before its first checkpoint.

    `resume` is None to start, a path, or empty for last.pth of the run folder.
    """
    if resume is None:
        return None
    if not resume and not (folder / "last.pth").exists():
        logger.warning("%s holds no last.pth yet: the run starts from the beginning", folder)
        return None
    return load_checkpoint(Path(resume) if resume else folder / "last.pth")


def checked_keys(content: Mapping[str, Any]) -> list[str]:
    """Keys that a resumed run may change, since what they name is compared with the checkpoint itself."""
    return ["MODEL.PRETRAIN_PATH_T"] if TRUNK_FILE in content else []


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Fill an optimiser from a state dict that `check_resumable_content` has checked.

    The configuration decides on the options of the groups, which --force may have changed. Each state is
    copied into the memory order of its parameter, which the fused kernels rely on.
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
    """Refuse to resume the run of a checkpoint whose images have other fingerprints; with `force`, warn."""
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
    kind, keys, position, *rest = states["numpy"]
    if not 0 <= position <= 624 or keys.shape != (624,):  # NumPy would read beyond its memory
        raise ValueError(position)
    random.setstate(states["python"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, *rest))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def check_resumable_content(
    content: Mapping[str, Any], model: Mapping[str, Tensor], optimizer: Optimizer, device: torch.device
) -> None:
    """Refuse the content of a checkpoint that is damaged, or does not fit the run that is to continue."""
    has_scaler = content.get("scaler") != {}  # only with mixed precision
    wanted = {
        "model": model,
        "optimizer": _wanted_optimizer(content.get("optimizer"), optimizer),
        "scaler": dict.fromkeys(SCALER, lambda value: _is_number(value, at_least=0)) if has_scaler else {},
        "progress": _wanted_progress(content.get("progress")),
        "random": lambda states: _are_random_states(states, device),
        "config": str,
    }
    if "raw_model" in content:  # only with an average of the weights, which is `model` then
        wanted["raw_model"] = model
    for name in wanted:
        _refuse(name, content.get(name), wanted[name])


def held_entries(
    content: Mapping[str, Any], model: Mapping[str, Tensor], frozen: Container[str]
) -> dict[str, Tensor]:
    """What a checkpoint must hold of a state dict: all or, if it names a trunk file, what is not `frozen`."""
    whole = content.get(TRUNK_FILE) is None
    return {name: tensor for name, tensor in model.items() if whole or name not in frozen}


def check_model(state: Any, model: Mapping[str, Tensor]) -> None:
    """Refuse weights, `state`, that do not fit the state dict of a model exactly."""
    _refuse("model", state, model)


def _refuse(name: str, value: Any, wanted: Any) -> None:
    if fault := _fault(value, wanted):
        raise UserError(
            f"the checkpoint is damaged, or does not fit this configuration: {name}{fault}; resume with the "
            "settings that the run was started with, or from another checkpoint"
        )


def _fault(value: Any, wanted: Any) -> str:
    """Why a value cannot be used, as the rest of a sentence that starts with its name; empty if it can.

    Args:
        value: anything.
        wanted: a tensor of the same shape and type; a type; a function that says whether the value fits; a
            list of one of these, for lists of any length; or a mapping of them.
    """
    if isinstance(wanted, Tensor):
        return _tensor_fault(value, wanted)
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        missing = [f".{name} is missing" for name in wanted if name not in value]
        extra = [f".{on_one_line(name)[:80]} is unexpected" for name in value if name not in wanted]
        found = ((name, _fault(value[name], wanted[name])) for name in wanted)
        faults = [*missing, *extra] or (f".{name}{fault}" for name, fault in found if fault)
        return next(iter(faults), "")
    if isinstance(wanted, type):
        fits = isinstance(value, wanted)
    elif isinstance(wanted, list):
        fits = isinstance(value, list) and not any(_fault(item, wanted[0]) for item in value)
    else:
        fits = callable(wanted) and wanted(value)
    return "" if fits else " cannot be used"


def _tensor_fault(value: Any, wanted: Tensor) -> str:
    if not isinstance(value, Tensor):
        return " is not a tensor"
    if not is_plain(value):
        return " is not a plain array of numbers"
    if value.shape != wanted.shape:
        return f" has shape {tuple(value.shape)}, not {tuple(wanted.shape)}"
    if value.dtype != wanted.dtype:
        held, needed = (str(dtype).removeprefix("torch.") for dtype in (value.dtype, wanted.dtype))
        return f" holds {held} values, not {needed}"
    return ""


def _wanted_optimizer(state: Any, optimizer: Optimizer) -> dict[str, Any]:
    """The same groups of parameters; the states that there are have the shape of their parameter."""
    own = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    parameters = [parameter.detach() for group in optimizer.param_groups for parameter in group["params"]]
    found = state.get("state") if isinstance(state, Mapping) else None

    def are_groups(groups: Any) -> bool:
        return not _fault(groups, [dict]) and own == [group.get("params") for group in groups]

    def wanted(parameter: Tensor, entries: Any) -> dict[str, Any]:
        if not isinstance(optimizer, SGD):
            return {"step": _is_step, "exp_avg": parameter, "exp_avg_sq": parameter}
        # Without momentum, and before its first step, SGD has no buffer.
        if entries == {}:
            return {}
        return {"momentum_buffer": lambda value: value is None or not _tensor_fault(value, parameter)}

    states = found if isinstance(found, Mapping) else {}
    numbered = {number: value for number, value in enumerate(parameters) if number in states}
    return {"param_groups": are_groups, "state": {n: wanted(p, states[n]) for n, p in numbered.items()}}


def _wanted_progress(progress: Any) -> dict[str, Any]:
    """What each attribute of `Progress` must be."""
    found = progress if isinstance(progress, Mapping) else {}
    wanted = {
        "epoch": _is_count,
        "step": _is_count,
        "steps_in_epoch": lambda value: _is_count(value) and value <= found["step"],
        "best_map": lambda value: _is_number(value) and value <= 1,
        "sums": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
        "epochs": lambda value: isinstance(value, list) and _are_records(value, count=found["epoch"]),
        "unreadable": [str],
        "initial_weights": str,
        "initial_sha256": str,
        "environments": [dict],
    }
    return {name: fits for name, fits in wanted.items() if name in found or name not in LATER}


def _are_records(epochs: list[Any], count: int) -> bool:
    """Whether these are epochs as in metrics.json: numbered from 1, with all scores, and writable."""
    try:
        json.dumps(epochs)
        numbers = [record["epoch"] for record in epochs]
        splits = [record[name] for record in epochs for name in BEST_ON if name in record]
        found = [list(scores_by_pattern(split).values()) for split in splits]
        scores = [pattern[name] for patterns in found for pattern in patterns for name in SCORES]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return False
    in_order = len(epochs) == count and numbers == list(range(1, count + 1))
    return in_order and all(found) and all(map(_is_number, scores))


def _are_random_states(states: Any, device: torch.device) -> bool:
    """Whether the generators take the states of all processes; they are left as they were."""
    before = random_states(device)
    try:
        for state in states:
            restore_random_states(state, device)
        return len(states) > 0
    except Exception:  # each generator has errors of its own
        return False
    finally:
        restore_random_states(before, device)


def _is_number(value: Any, at_least: float = -math.inf) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= at_least


def _is_step(value: Any) -> bool:
    return _is_number(value.item() if isinstance(value, Tensor) and value.shape == () else value, at_least=0)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53  # beyond it, floating-point numbers are no longer exact
