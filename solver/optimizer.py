"""Which parameter learns at which rate, and the optimiser that applies it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

BACKBONE_PREFIX = "backbone.vit."
"""Parameters below this name are the trunk; the camera embedding beside it learns like a head."""
TUNING_PREFIX = "backbone.tuning."
"""Adapters and LoRA are new weights: they learn like a head too, and have a name of their own in the log."""

FUSED_DEVICES = {"cpu", "cuda"}
"""Where torch 2.5 and later have fused kernels for all three optimisers."""


def parameter_groups(
    model: nn.Module,
    *,
    base_lr: float,
    backbone_lr: float,
    bias_lr_factor: float,
    weight_decay: float,
    weight_decay_bias: float,
    large_fc_lr: bool,
    fc_lr_factor: float = 2.0,
) -> list[dict[str, Any]]:
    """Sort the trainable parameters into groups of one learning rate and weight decay each.

    The trunk learns at `backbone_lr`, biases and all. Elsewhere, adapters included, weights learn at
    `base_lr`, biases at `bias_lr_factor * base_lr` and, with `large_fc_lr`, classifiers at `fc_lr_factor *
    base_lr`. Biases have a weight decay of their own everywhere. Frozen parameters are left out. The names of
    the parameters decide.

    Returns:
        Groups with `name`, `params`, `lr` and `weight_decay`, in the order of their first parameter.
        The name tells what is inside, for example `heads bias`, joined by ` + ` where kinds share a group.
    """
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    kinds: dict[tuple[float, float], list[str]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_bias = "bias" in name
        if name.startswith(BACKBONE_PREFIX):
            kind, lr = "backbone", backbone_lr
        elif large_fc_lr and "classifier" in name:
            kind, lr = "classifiers", fc_lr_factor * base_lr
        else:
            kind = "tuning" if name.startswith(TUNING_PREFIX) else "heads"
            lr = base_lr * bias_lr_factor if is_bias else base_lr
        kind = f"{kind} bias" if is_bias else kind
        decay = weight_decay_bias if is_bias else weight_decay
        group = groups.setdefault((lr, decay), {"params": [], "lr": lr, "weight_decay": decay})
        group["params"].append(parameter)
        kinds.setdefault((lr, decay), []).append(kind)
    return [{"name": _join(kinds[key]), **group} for key, group in groups.items()]


def _join(kinds: list[str]) -> str:
    """Name a group: `heads`, `heads bias`, `backbone` -> `heads + backbone`, since biases go with weights."""
    distinct = dict.fromkeys(kinds)
    with_weights = {f"{kind} bias" for kind in distinct}
    return " + ".join(kind for kind in distinct if kind not in with_weights)


def build_optimizer(name: str, groups: list[dict[str, Any]], *, momentum: float) -> Optimizer:
    """Make an optimiser, Adam, AdamW or SGD with `momentum`, for the groups of `parameter_groups`.

    Where torch has a fused kernel, one call updates all tensors of a group. On CUDA it also lets mixed
    precision leave out a step without asking the host.
    """
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    fused = devices <= FUSED_DEVICES or None  # None: torch chooses among its other ways
    makers: dict[str, Callable[[], Optimizer]] = {
        "Adam": lambda: Adam(groups, fused=fused),
        "AdamW": lambda: AdamW(groups, fused=fused),
        "SGD": lambda: SGD(groups, momentum=momentum, fused=fused),
    }
    if name not in makers:
        raise ValueError(f"unknown optimizer {name!r}; choose from {sorted(makers)}")
    return makers[name]()
