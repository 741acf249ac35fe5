"""The numbers of training: read while the device works on, checked to be finite, summed, and shown."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter

from engine.checkpoint import Progress
from engine.distributed import World
from errors import UserError

logger = logging.getLogger(__name__)

MANY_SKIPPED = 0.1
"""Share of skipped steps in an epoch above which there is a warning."""


class NonFiniteLossError(UserError):
    """The loss, its gradient, the weights or the state of the optimiser became NaN or infinite."""


class Reading:
    """Named scalars of one device on their way to the host.

    On CUDA the copy is queued after the work that computes them. `wait` waits for that work alone: what has
    been queued since keeps the device busy.
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
class Step:
    """One step of training."""

    epoch: int  # of the step, from 1
    number: int  # of the step in the run, from 1
    losses: Mapping[str, float]  # by name, and their sum as `loss`
    previous: Mapping[str, float]  # the losses of the step before
    accuracy: float  # share of the samples whose identity the heads predict
    images: Sequence[str]  # names of the images in the batch

    def error(self, what: str) -> NonFiniteLossError:
        """The error for a loss or a gradient, `what`, that is not finite, and what to do."""

        def show(values: Mapping[str, float]) -> str:
            return ", ".join(f"{name} {value:.4g}" for name, value in values.items()) or "none yet"

        return NonFiniteLossError(
            f"the {what} is not finite in epoch {self.epoch}, step {self.number}: {show(self.losses)}; "
            f"last good losses: {show(self.previous)}; images: {', '.join(self.images)}; "
            "lower SOLVER.BASE_LR, set SOLVER.CLIP_GRAD, or set SOLVER.AMP False"
        )


@dataclass(eq=False)
class Meter:
    """Records the steps: sums over the epoch, TensorBoard, and the text of log lines."""

    progress: Progress  # how far the run has come; its `sums` are added to
    epochs: int  # length of the run, for the estimate of the remaining time
    board: SummaryWriter | None  # TensorBoard; None where another process writes
    # How many steps later the gradient norm of a step is read; on CUDA, reading it at once would leave the
    # device without work.
    lag: int
    # Whether mixed precision skips steps whose gradients overflow; otherwise such a step ends the run.
    is_scaled: bool

    def __post_init__(self) -> None:
        self._norms: deque[tuple[Step, Reading]] = deque()
        self._run_start = (time.perf_counter(), self.progress.step)

    def begin_epoch(self, num_steps: int, rates: Mapping[str, float]) -> None:
        """A new epoch of `num_steps` steps, with the learning rates of the parameter groups."""
        self._num_steps = num_steps
        self.rates = rates
        self._num_images = 0
        self._epoch_start = time.perf_counter()

    def record_step(self, step: Step, gradient_norm: Reading, num_images: int) -> None:
        """Record a step that was taken; the norm of its gradient is read `lag` steps later."""
        self.progress.step += 1
        self.progress.steps_in_epoch += 1
        self._num_images += num_images
        self._add({**step.losses, "accuracy": step.accuracy}, step.number)
        for name, rate in self.rates.items():
            self._draw("lr/" + re.sub(r"\W+", "_", name), rate, step.number)
        self._norms.append((step, gradient_norm))
        self.flush(keep=self.lag)

    def flush(self, keep: int = 0) -> None:
        """Read the gradient norms that are still on their way, all but the last `keep`."""
        while len(self._norms) > keep:
            step, reading = self._norms.popleft()
            norm = reading.wait()["gradient_norm"]
            if not math.isfinite(norm) and not self.is_scaled:  # the step was taken
                raise step.error("gradient")
            # Mixed precision skips a step whose gradients overflow, and lowers its scale.
            self._add({"gradient_norm": norm} if math.isfinite(norm) else {"skipped_steps": 1.0}, step.number)

    def _add(self, values: Mapping[str, float], step: int) -> None:
        sums = self.progress.sums
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value
            self._draw(f"train/{name}", value, step)

    def _draw(self, tag: str, value: float, step: int) -> None:
        if self.board is not None:
            self.board.add_scalar(tag, value, step)

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """The means of the epoch; stops if mixed precision has skipped all of its steps, warns if many."""
        self.flush()
        skipped, steps = int(self.progress.sums.get("skipped_steps", 0)), self.progress.steps_in_epoch
        if skipped and skipped == steps:
            raise NonFiniteLossError(
                f"no step of epoch {epoch} was taken: the gradients of all its steps overflowed in mixed "
                "precision; set SOLVER.AMP False, or lower SOLVER.BASE_LR"
            )
        if skipped > MANY_SKIPPED * steps:
            logger.warning(
                f"epoch {epoch}: mixed precision skipped {skipped} of {steps} steps, whose gradients "
                "overflowed; if this continues, set SOLVER.AMP False or lower SOLVER.BASE_LR"
            )
        return self.means()

    def means(self) -> dict[str, float]:
        """Means over the steps of the epoch so far."""
        return {name: total / self.progress.steps_in_epoch for name, total in self.progress.sums.items()}

    def status(self) -> str:
        """The state of the epoch and the remaining time, for the progress bar."""
        means = self.means()
        speed = self._num_images / (time.perf_counter() - self._epoch_start)
        text = f"loss {means['loss']:.3f} accuracy {means['accuracy']:.1%} {speed:.0f} images/s"
        return f"{text} ETA {self.remaining()}"

    def details(self) -> str:
        """What a log line says besides."""
        known = max(self.progress.steps_in_epoch - len(self._norms), 1)
        norm = self.progress.sums.get("gradient_norm", math.nan) / known
        rates = " ".join(f"{name} {rate:.2e}" for name, rate in self.rates.items())
        return f"gradient {norm:.2f} lr {rates}"

    def remaining(self) -> timedelta:
        """Estimated time to the end of training."""
        start, first_step = self._run_start
        left = max(self.epochs * self._num_steps - self.progress.step, 0)
        seconds = (time.perf_counter() - start) * left / max(self.progress.step - first_step, 1)
        return timedelta(seconds=round(seconds))


def gradient_norm(parameters: Iterable[nn.Parameter], limit: float = 0.0) -> Tensor:
    """The norm of all gradients, before they are clipped to `limit`; with 0 they stay as they are."""
    if limit:
        return nn.utils.clip_grad_norm_(parameters, limit)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def check_state(model: nn.Module, optimizer: Optimizer, world: World, step: int) -> None:
    """Stop if weights, or the state of the optimiser, are not finite in any process after a step."""
    moments = {
        f"{entry} of {name}": value
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    problems = [
        f"the {what} not finite ({len(bad)} of {len(tensors)} tensors, first {bad[0]})"
        for what, tensors in (("weights are", model.state_dict()), ("state of the optimiser is", moments))
        if (bad := find_non_finite(tensors))
    ]
    for problem in filter(None, world.gather_objects("".join(problems[:1]))):
        raise NonFiniteLossError(
            f"{problem} after step {step}; lower SOLVER.BASE_LR, or set SOLVER.CLIP_GRAD"
        )


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
