"""The learning rate of each epoch: warm-up, then a cosine."""

from __future__ import annotations

import logging

from timm.scheduler import CosineLRScheduler
from torch.optim import Optimizer

# It warns that a schedule of one epoch has no effect, which is wrong for warm-up and for steps in an epoch.
logging.getLogger("timm.scheduler.cosine_lr").setLevel(logging.ERROR)

NOISE_PCT = 0.67
NOISE_SEED = 42


class WarmCosine(CosineLRScheduler):
    """timm's schedule, whose formulas hold within an epoch as well."""

    def step(self, epoch: float, metric: float | None = None) -> None:
        """Set the rates; see `build_schedule`."""
        super().step(epoch, metric)  # type: ignore[arg-type]


def build_schedule(
    optimizer: Optimizer,
    *,
    epochs: int,
    base_lr: float,
    warmup_epochs: int,
    noise: bool,
    proportional_warmup: bool,
) -> WarmCosine:
    """Make the schedule; call its `step(epoch)` at the start of every epoch, with epoch = 1, 2, …, `epochs`.

    The rate rises linearly over `warmup_epochs` from 0.1 * `base_lr` and falls along a cosine to
    0.001 * `base_lr` in the last epoch. It depends on the epoch alone, not on the steps taken before, and may
    be set within an epoch: `step(2.5)` is half-way between the second and the third.

    Without `proportional_warmup` the two ends are the same for every group, as in DeMo: a backbone whose own
    rate is below 0.1 * `base_lr` starts above it and falls during the warm-up. With it, every group goes from
    0.1 to 0.001 of its *own* rate, so that the groups keep their ratios all the way. With `noise`, as
    in DeMo, the rate of each epoch but the last is multiplied by a seeded factor in 1 ± 0.67.
    """
    if proportional_warmup:
        # timm multiplies the scheduled rate by `lr_scale`, so every group follows the curve of `base_lr`.
        for group in optimizer.param_groups:
            group.setdefault("lr_scale", group["lr"] / base_lr)
            group["initial_lr"] = base_lr
    return WarmCosine(
        optimizer,
        t_initial=epochs,
        lr_min=0.001 * base_lr,
        warmup_lr_init=0.1 * base_lr,
        warmup_t=warmup_epochs,
        cycle_limit=1,
        noise_range_t=(0, epochs) if noise else None,
        noise_pct=NOISE_PCT,
        noise_seed=NOISE_SEED,
    )
