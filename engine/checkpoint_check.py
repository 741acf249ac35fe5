"""Is a checkpoint whole, and does it fit? All of it is looked at before anything of a run is touched."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from engine.run_state import Progress
from evaluation.result import scores_by_pattern
from structures import UserError, on_one_line

STATE_OF: dict[type[Optimizer], frozenset[str]] = {
    Adam: frozenset({"step", "exp_avg", "exp_avg_sq"}),  # AdamW, too
    SGD: frozenset({"momentum_buffer"}),
}
"""What an optimiser remembers of each parameter."""

LARGEST_COUNT = 2**53
"""More epochs and steps than any run has; beyond it, numbers are no longer exact in floating point."""
KINDS: dict[type, str] = {int: "a whole number", float: "a finite number", str: "a text", list: "a list"}
"""What the types of progress are called in messages."""
ENTRIES = ("model", "optimizer", "scaler", "progress", "random", "config")
"""What a checkpoint must hold to be resumed from, in every version."""

SCALER_ENTRIES = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
SCORES = ("mAP", "mINP", "rank_1", "rank_5", "rank_10")
"""What the end of a run reads of an evaluated epoch."""

SAME_PROGRAM = "resume with the settings and the version of the program that the run was started with"


class DamagedError(UserError):
    """A checkpoint whose content is not what a run has saved."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the checkpoint is damaged: {what}; resume from another one, or start the run anew")


def check_resumable_content(
    content: Mapping[str, Any], model: Mapping[str, Tensor], optimizer: Optimizer, device: torch.device
) -> None:
    """Refuse a checkpoint that is damaged, or does not fit the run that is to go on.

    Args:
        content: of the checkpoint.
        model: the state dict of the model.
        optimizer: over its parameters.
        device: of the run.
    """
    for entry in ENTRIES:
        if entry not in content:
            raise DamagedError(f"it has no entry {entry!r}")
    check_model(content["model"], model)
    _check_optimizer(content["optimizer"], optimizer)
    _check_scaler(content["scaler"])
    _check_progress(content["progress"])
    states = content["random"]
    if not isinstance(states, (list, tuple)) or not states:
        raise DamagedError("its random states cannot be read")
    for state in states:
        _check_random_state(state, device)


def check_model(state: Any, model: Mapping[str, Tensor]) -> None:
    """Refuse weights that a model cannot take as they are.

    Args:
        state: what the checkpoint holds under `model`.
        model: the state dict of the model.
    """
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise DamagedError("its weights cannot be read")
    fault = ""
    if missing := [name for name in model if name not in state]:
        fault = f"{missing[0]} is missing"
    elif extra := [name for name in state if name not in model]:
        fault = f"it has no place for {on_one_line(extra[0])[:80]}"
    for name in model if not fault else ():
        if fault := _tensor_fault(state[name], model[name]):
            fault = f"{name} {fault}"
            break
    if fault:
        raise UserError(f"the checkpoint does not fit the model of this configuration: {fault}")


def _tensor_fault(value: Any, wanted: Tensor) -> str:
    """Why a value cannot take the place of a tensor, as the end of a sentence."""
    if not isinstance(value, Tensor):
        return "is no tensor"
    if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_meta:
        return "is not a plain array of numbers"
    if value.shape != wanted.shape:
        return f"has shape {tuple(value.shape)}, not {tuple(wanted.shape)}"
    if value.dtype != wanted.dtype:
        held, needed = (str(dtype).removeprefix("torch.") for dtype in (value.dtype, wanted.dtype))
        return f"holds {held} values, not {needed}"
    return ""


def _check_optimizer(state: Any, optimizer: Optimizer) -> None:
    """Groups and states of the same parameters, each state of the shape and kind of its parameter."""
    whole = isinstance(state, Mapping) and isinstance(state.get("state"), Mapping)
    groups = state.get("param_groups") if whole else None
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        raise DamagedError("its optimiser cannot be read")
    own = optimizer.state_dict()["param_groups"]
    if [group.get("params") for group in groups] != [group["params"] for group in own]:
        raise UserError(
            "the optimiser of the checkpoint has other groups of parameters than this configuration; "
            f"{SAME_PROGRAM}"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    wanted = next((names for kind, names in STATE_OF.items() if isinstance(optimizer, kind)), None)
    for number, entries in state["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(entries, Mapping):
            raise DamagedError("its optimiser has an entry of no parameter")
        if wanted is not None and set(entries) != wanted and (entries or "step" in wanted):
            raise UserError(
                "the optimiser of the checkpoint is of another kind than SOLVER.OPTIMIZER_NAME, or damaged; "
                f"{SAME_PROGRAM}"
            )
        for name, value in entries.items():
            if fault := _state_fault(name, value, parameters[number]):
                raise DamagedError(f"{name} of parameter {number} in its optimiser {fault}")


def _state_fault(name: str, value: Any, parameter: Tensor) -> str:
    if name == "step":
        number = value.item() if isinstance(value, Tensor) and value.shape == () else value
        return "" if _is_number(number) and number >= 0 else "is not a count of steps"
    if name == "momentum_buffer" and value is None:  # SGD without momentum, or before its first step
        return ""
    return _tensor_fault(value, parameter.detach())


def _check_scaler(state: Any) -> None:
    if not isinstance(state, Mapping) or (state and set(state) != SCALER_ENTRIES):
        raise DamagedError("its scaler of mixed precision cannot be read")
    if not all(_is_number(value) and value >= 0 for value in state.values()) or state.get("scale", 1) <= 0:
        raise DamagedError("its scaler of mixed precision has values that cannot be")


def _check_progress(progress: Any) -> None:
    known = {field.name for field in fields(Progress)}
    kept = {"epoch", "steps_in_epoch", "step", "best_map", "sums", "epochs", "unreadable"}  # in every version
    if not isinstance(progress, Mapping) or not kept <= set(progress) <= known:
        raise DamagedError("its progress cannot be read")
    defaults = Progress()
    for name, value in progress.items():
        wanted = type(getattr(defaults, name))
        if not (_is_number(value) if wanted is float else type(value) is wanted):
            raise DamagedError(f"{name} in its progress is not {KINDS.get(wanted, wanted.__name__)}")
    counts = [progress[name] for name in ("epoch", "steps_in_epoch", "step")]
    are_possible = min(counts) >= 0 and max(counts) < LARGEST_COUNT
    if not are_possible or progress["step"] < progress["steps_in_epoch"] or not progress["best_map"] <= 1:
        raise DamagedError("its progress has numbers that cannot be")
    are_readable = (
        all(isinstance(name, str) for name in progress["unreadable"])
        and all(isinstance(environment, Mapping) for environment in progress.get("environments", []))
        and _are_numbers(progress["sums"].values())
    )
    if not are_readable:
        raise DamagedError("its progress cannot be read")
    _check_epochs(progress["epochs"], progress["epoch"])


def _check_epochs(epochs: list[Any], count: int) -> None:
    """What metrics.json tells of each epoch: numbered from 1, with whole scores, and writable."""
    try:
        whole = [record["epoch"] for record in epochs] == list(range(1, len(epochs) + 1))
        whole &= len(epochs) == count
        for record in epochs:
            for split in ("test", "validation"):
                if split in record:
                    found = scores_by_pattern(record[split]).values()
                    whole &= bool(found) and all(_are_numbers(s[name] for name in SCORES) for s in found)
        json.dumps(epochs)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError("its records of the epochs cannot be read")


def _check_random_state(state: Any, device: torch.device) -> None:
    """Try the states on generators of their own."""
    try:
        kind, keys, position, *rest = state["numpy"]
        if not 0 <= position <= 624 or keys.shape != (624,):  # NumPy would read beyond its memory
            raise ValueError(position)
        random.Random().setstate(state["python"])
        np.random.RandomState().set_state((kind, keys.numpy().astype(np.uint32), position, *rest))
        torch.Generator().set_state(state["torch"])
        if state["cuda"] is not None and device.type == "cuda":
            torch.Generator(device).set_state(state["cuda"])
    except Exception:  # each generator has errors of its own
        raise DamagedError("its random states cannot be read") from None


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(_is_number(value) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
