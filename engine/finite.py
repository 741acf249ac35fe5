"""What must stay finite in training: losses, gradients, weights and the state of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from structures import UserError


class NonFiniteLossError(UserError):
    """The loss, its gradient, the weights or the state of the optimiser became NaN or infinite."""


def describe_bad_step(
    what: str,
    *,
    epoch: int,
    step: int,
    losses: Mapping[str, float],
    last_losses: Mapping[str, float],
    names: Sequence[str],
) -> str:
    """One sentence on a step whose loss or gradient is not finite, and what to do.

    Args:
        what: `loss` or `gradient`.
        epoch: of the step, from 1.
        step: its number in the run, from 1.
        losses: of the step, by name.
        last_losses: of the step before.
        names: of the images in its batch.
    """

    def show(values: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in values.items()) or "none yet"

    return (
        f"the {what} is not finite in epoch {epoch}, step {step}: {show(losses)}; "
        f"last good losses: {show(last_losses)}; images: {', '.join(names)}. "
        "Lower SOLVER.BASE_LR, set SOLVER.CLIP_GRAD, or set SOLVER.AMP False"
    )


def describe_bad_state(model: nn.Module, optimizer: Optimizer) -> str:
    """Which weights, or which state of the optimiser, are not finite; empty if all are finite."""
    moments = {
        f"{entry} of {name}": value
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    for what, tensors in (("weights", model.state_dict()), ("state of the optimiser", moments)):
        bad = find_non_finite(tensors)
        if bad:
            verb = "are" if what == "weights" else "is"
            return f"the {what} {verb} not finite ({len(bad)} of {len(tensors)} tensors, first {bad[0]})"
    return ""


def find_non_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold NaN or an infinite number; the host waits for the device once."""
    checked = {name: value for name, value in tensors.items() if value.is_floating_point() and value.numel()}
    if not checked:
        return []
    # The largest absolute value of each: unlike the sum of squares, it overflows for no finite number.
    peaks = torch._foreach_norm(list(checked.values()), math.inf)
    device = peaks[0].device  # Adam may count its steps on the host
    finite = torch.stack([peak.to(device, torch.float64) for peak in peaks]).isfinite().tolist()
    return [name for name, is_finite in zip(checked, finite, strict=True) if not is_finite]
