"""What the steps of training give: brought to the host while the device goes on, summed, and shown."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from engine.finite import NonFiniteLossError
from engine.run_state import Progress


class Reading:
    """Numbers on their way to the host.

    On CUDA the copy is queued behind the work that computes them. `wait` waits for that work alone: what has
    been queued since keeps the device busy.

    Args:
        scalars: by name, all on one device.
    """

    def __init__(self, scalars: Mapping[str, Tensor]) -> None:
        values = torch.stack([value.detach().float() for value in scalars.values()])
        self._names = tuple(scalars)
        self._values = values.to("cpu", non_blocking=True)  # from CUDA into pinned memory
        self._arrived = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None

    def wait(self) -> dict[str, float]:
        """The numbers, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return dict(zip(self._names, self._values.tolist(), strict=True))


@dataclass(frozen=True)
class StepNumbers:
    """What a step gives.

    Attributes:
        values: the named losses, their sum and the accuracy.
        gradient_norm: before clipping, on its way to the host.
        describe_overflow: one sentence for the case that the norm is not finite.
    """

    values: Mapping[str, float]
    gradient_norm: Reading
    describe_overflow: Callable[[], str]


class Meter:
    """Keeps account of the steps: sums of the epoch, TensorBoard, and what a log line says.

    Args:
        progress: how far the run has come; its `sums` are added to.
        epochs: length of the run, for the estimate of the time that is left.
        board: TensorBoard; None where another process writes.
        lag: how many steps later the gradient norm of a step is asked for. It is known at the end of the
            step; on CUDA, to ask at once would mean to wait until the device has nothing left to do.
        mixed_precision: steps whose gradients overflow are left out; without it, such a step ends the run.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        epochs: int,
        board: SummaryWriter | None,
        lag: int,
        mixed_precision: bool,
    ) -> None:
        self.progress = progress
        self.epochs = epochs
        self.board = board
        self.lag = lag
        self.mixed_precision = mixed_precision
        self._steps: deque[tuple[int, StepNumbers]] = deque()
        self._run_start = (time.perf_counter(), progress.step)

    def begin_epoch(self, num_steps: int, rates: Mapping[str, float]) -> None:
        """A new epoch of `num_steps` steps, with the learning rates of the parameter groups."""
        self._num_steps = num_steps
        self._rates = rates
        self._num_images = 0
        self._epoch_start = time.perf_counter()

    def book(self, numbers: StepNumbers, num_images: int) -> None:
        """Take down the step that `progress` has counted last."""
        step = self.progress.step
        self._num_images += num_images
        self._add(numbers.values, step)
        for name, rate in self._rates.items():
            self.scalar("lr/" + re.sub(r"\W+", "_", name), rate, step)
        self._steps.append((step, numbers))
        self._settle(keep=self.lag)

    def settle(self) -> None:
        """Take down all that is still on its way."""
        self._settle(keep=0)

    def _settle(self, keep: int) -> None:
        while len(self._steps) > keep:
            step, numbers = self._steps.popleft()
            norm = numbers.gradient_norm.wait()["gradient_norm"]
            if not math.isfinite(norm) and not self.mixed_precision:  # the step was taken
                raise NonFiniteLossError(numbers.describe_overflow())
            # Mixed precision leaves out a step whose gradients overflow, and lowers its scale.
            self._add({"gradient_norm": norm} if math.isfinite(norm) else {"skipped_steps": 1.0}, step)

    def _add(self, values: Mapping[str, float], step: int) -> None:
        sums = self.progress.sums
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value
            self.scalar(f"train/{name}", value, step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        """A point of a curve in TensorBoard."""
        if self.board is not None:
            self.board.add_scalar(tag, value, step)

    def means(self) -> dict[str, float]:
        """Means over the steps of the epoch."""
        return {name: total / self.progress.steps_in_epoch for name, total in self.progress.sums.items()}

    def status(self) -> str:
        """The state of the epoch for the progress bar."""
        means = self.means()
        speed = self._num_images / (time.perf_counter() - self._epoch_start)
        return f"loss {means['loss']:.3f} accuracy {means['accuracy']:.1%} {speed:.0f} images/s"

    def details(self) -> str:
        """What a log line tells besides."""
        known = max(self.progress.steps_in_epoch - len(self._steps), 1)
        norm = self.progress.sums.get("gradient_norm", math.nan) / known
        rates = " ".join(f"{name} {rate:.2e}" for name, rate in self._rates.items())
        return f"gradient {norm:.2f} lr {rates}"

    def remaining(self) -> str:
        """Estimated time to the end of training."""
        start, first_step = self._run_start
        left = max(self.epochs * self._num_steps - self.progress.step, 0)
        seconds = (time.perf_counter() - start) * left / max(self.progress.step - first_step, 1)
        return format_duration(seconds)


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds; days in front of them where there are any: `1d 02:03:04`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours:02}:{minutes:02}:{seconds:02}"
