"""The training loop."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from engine.checkpoint import save_checkpoint, save_json
from engine.evaluate import EvaluationResult
from structures import ModalBatch, ModelOutput, UserError

logger = logging.getLogger(__name__)


class NonFiniteLossError(UserError):
    """The loss became NaN or infinite."""


class Loader(Protocol):
    """Batches of one epoch, their number known."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class Schedule(Protocol):
    """The learning rate of each epoch, counted from 1."""

    def step(self, epoch: int) -> None:
        """Set the rates of the epoch that is about to start."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep."""


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Attributes:
        epochs: number of epochs.
        clip_grad: largest gradient norm; 0 for no clipping.
        mixed_precision: float16 on CUDA; the CPU always computes in float32.
        log_period: steps between two log lines.
        eval_period: epochs between two evaluations; the last epoch is always evaluated.
        checkpoint_period: also keep the weights of every n-th epoch; 0 for none.
        config: the configuration as YAML, to be kept in the checkpoints.
    """

    epochs: int
    clip_grad: float = 0.0
    mixed_precision: bool = True
    log_period: int = 10
    eval_period: int = 1
    checkpoint_period: int = 0
    config: str = ""


class Trainer:
    """Trains a model, evaluates it, and keeps the last and the best weights.

    Args:
        model: maps a batch to a `ModelOutput`.
        criterion: maps an output and (B,) identities to named, weighted losses.
        optimizer: over the model's parameters.
        schedule: of the learning rates.
        loader: training batches.
        set_epoch: tells the loader's sampler which epoch comes.
        evaluate: scores the model as it is.
        device: where the model is.
        folder: the run folder.
        settings: see `TrainSettings`.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        criterion: Callable[[ModelOutput, Tensor], dict[str, Tensor]],
        optimizer: Optimizer,
        schedule: Schedule,
        loader: Loader,
        set_epoch: Callable[[int], None],
        evaluate: Callable[[], EvaluationResult],
        device: torch.device,
        folder: Path,
        settings: TrainSettings,
    ) -> None:
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer
        self.schedule = schedule
        self.loader = loader
        self.set_epoch = set_epoch
        self.evaluate = evaluate
        self.device = device
        self.folder = folder
        self.settings = settings
        self.mixed_precision = settings.mixed_precision and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.mixed_precision)
        self.step = 0
        self.best_map = -1.0
        self.metrics: dict[str, Any] = {"epochs": []}
        self._last_losses: Mapping[str, float] = {}

    def run(self) -> EvaluationResult:
        """Train all epochs; returns the evaluation of the last one."""
        self._start = time.perf_counter()
        result: EvaluationResult | None = None
        with SummaryWriter(str(self.folder / "tensorboard")) as board:
            for epoch in range(1, self.settings.epochs + 1):
                record = {"epoch": epoch, **self._train_epoch(epoch, board)}
                result = None
                if epoch % self.settings.eval_period == 0 or epoch == self.settings.epochs:
                    result = self._evaluate_epoch(epoch, board)
                    record["test"] = result.as_dict()
                self.metrics["epochs"].append(record)
                save_json(self.folder / "metrics.json", self.metrics)
                self._save(epoch, result)
        assert result is not None, "the last epoch is always evaluated"
        return result

    def _train_epoch(self, epoch: int, board: SummaryWriter) -> dict[str, Any]:
        """One pass over the training batches; returns the means of the epoch."""
        self.schedule.step(epoch)
        self.set_epoch(epoch)
        self.model.train()
        rates = self._learning_rates()
        sums: dict[str, float] = {}
        num_images = 0
        start = time.perf_counter()
        bar = tqdm(
            self.loader, f"epoch {epoch}/{self.settings.epochs}", unit="step", disable=None, leave=False
        )
        for number, batch in enumerate(bar, start=1):
            values = self._train_step(batch.to(self.device), epoch)
            self.step += 1
            num_images += 3 * len(batch)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value
                board.add_scalar(f"train/{name}", value, self.step)
            for name, rate in rates.items():
                board.add_scalar("lr/" + re.sub(r"\W+", "_", name), rate, self.step)
            speed = num_images / (time.perf_counter() - start)
            means = {name: total / number for name, total in sums.items()}
            status = f"loss {means['loss']:.3f} accuracy {means['accuracy']:.1%} {speed:.0f} images/s"
            bar.set_postfix_str(f"{status} ETA {self._remaining()}")
            if number % self.settings.log_period == 0 or number == len(self.loader):
                logger.info(
                    "epoch %d/%d step %d/%d %s gradient %.2f lr %s ETA %s",
                    epoch,
                    self.settings.epochs,
                    number,
                    len(self.loader),
                    status,
                    means["gradient_norm"],
                    " ".join(f"{name} {rate:.2e}" for name, rate in rates.items()),
                    self._remaining(),
                )
        return {**means, "images_per_second": speed, "lr": rates}

    def _train_step(self, batch: ModalBatch, epoch: int) -> dict[str, float]:
        """One optimiser step; returns the named losses, their sum, accuracy and gradient norm."""
        with torch.autocast(self.device.type, torch.float16, enabled=self.mixed_precision):
            output: ModelOutput = self.model(batch)
            losses = self.criterion(output, batch.person_ids)
        loss = torch.stack(list(losses.values())).sum()
        values = {name: value.item() for name, value in losses.items()} | {"loss": loss.item()}
        if not math.isfinite(values["loss"]):
            raise NonFiniteLossError(self._non_finite_message(values, batch, epoch))
        self._last_losses = values

        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        limit = self.settings.clip_grad or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return values | {"accuracy": _accuracy(output, batch.person_ids), "gradient_norm": norm.item()}

    def _non_finite_message(self, values: Mapping[str, float], batch: ModalBatch, epoch: int) -> str:
        def show(losses: Mapping[str, float]) -> str:
            return ", ".join(f"{name} {value:.4g}" for name, value in losses.items()) or "none yet"

        return (
            f"the loss is not finite in epoch {epoch}, step {self.step + 1}: {show(values)}; "
            f"last good losses: {show(self._last_losses)}; images: {', '.join(batch.names)}. "
            "Lower SOLVER.BASE_LR, set SOLVER.CLIP_GRAD, or set SOLVER.AMP False"
        )

    def _evaluate_epoch(self, epoch: int, board: SummaryWriter) -> EvaluationResult:
        result = self.evaluate()
        for pattern, metrics in result.ranking.items():
            board.add_scalar(f"test/mAP_pattern_{pattern}", 100 * metrics.mean_ap, epoch)
            board.add_scalar(f"test/rank_1_pattern_{pattern}", 100 * metrics.rank(1), epoch)
        logger.info(
            "epoch %d: mAP %.1f, Rank-1 %.1f (return pattern %d)",
            epoch,
            100 * result.main.mean_ap,
            100 * result.main.rank(1),
            max(result.ranking),
        )
        return result

    def _save(self, epoch: int, result: EvaluationResult | None) -> None:
        """Write last.pth and, if this epoch was evaluated as the best so far, best.pth."""
        is_best = result is not None and result.main.mean_ap > self.best_map
        if result is not None and is_best:
            self.best_map = result.main.mean_ap
        common = {"epoch": epoch, "best_map": self.best_map, "config": self.settings.config}
        weights = self.model.state_dict()
        save_checkpoint(
            self.folder / "last.pth",
            model=weights,
            optimizer=self.optimizer.state_dict(),
            schedule=self.schedule.state_dict(),
            scaler=self.scaler.state_dict(),
            **common,
        )
        if is_best:
            save_checkpoint(self.folder / "best.pth", model=weights, **common)
        if self.settings.checkpoint_period and epoch % self.settings.checkpoint_period == 0:
            save_checkpoint(self.folder / f"epoch_{epoch}.pth", model=weights, **common)

    def _learning_rates(self) -> dict[str, float]:
        """The rates that are really used, by group name."""
        return {group["name"]: group["lr"] for group in self.optimizer.param_groups}

    def _remaining(self) -> str:
        """Estimated time to the end of training."""
        total = self.settings.epochs * len(self.loader)
        left = max(total - self.step, 0)  # the number of steps differs a little between epochs
        seconds = (time.perf_counter() - self._start) * left / max(self.step, 1)
        return time.strftime("%H:%M:%S", time.gmtime(seconds))


def _accuracy(output: ModelOutput, person_ids: Tensor) -> float:
    """Share of training samples whose identity the heads name rightly, mean over heads."""
    hits = [(head.logits.argmax(dim=1) == person_ids).float().mean() for head in output.heads]
    return torch.stack(hits).mean().item()
