"""The training loop."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from engine.board import open_board
from engine.checkpoint import random_states, restore_random_states, save_checkpoint
from engine.distributed import World
from engine.files import save_json
from engine.interrupt import RunStopped, StopRequested, StopSwitch, leave_children_alone
from engine.meter import Meter, Reading
from engine.results import EvaluationResult
from engine.run_state import Loader, Progress, Schedule, SetEpoch, TrainSettings
from structures import ModalBatch, ModelOutput, UserError, on_one_line

logger = logging.getLogger(__name__)


class NonFiniteLossError(UserError):
    """The loss, or its gradient, became NaN or infinite."""


class Trainer:
    """Trains a model, evaluates it, and keeps the last and the best weights.

    Args:
        model: maps a batch to a `ModelOutput`. With several processes its heads see the whole batch.
        criterion: maps an output and (B,) identities to named, weighted losses.
        optimizer: over the model's parameters.
        schedule: of the learning rates.
        loader: training batches; with several processes, this one's part of each.
        set_epoch: see `SetEpoch`.
        evaluate: scores the model as it is, on the split that `settings` names; calls its argument now and
            then, so that a signal can stop it.
        device: where the model is.
        folder: the run folder.
        settings: see `TrainSettings`.
        world: the processes of the run.
        on_epoch: called with the number of each epoch, from 1, before it is trained.
        draw_pictures: draws the model as it is, by name, each (3, H, W) in [0, 1], for TensorBoard; called
            after each evaluation, in the main process. It must not change the model or draw random numbers.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        criterion: Callable[[ModelOutput, Tensor], dict[str, Tensor]],
        optimizer: Optimizer,
        schedule: Schedule,
        loader: Loader,
        set_epoch: SetEpoch,
        evaluate: Callable[[Callable[[], None]], EvaluationResult],
        device: torch.device,
        folder: Path,
        settings: TrainSettings,
        world: World | None = None,
        on_epoch: Callable[[int], None] = lambda epoch: None,
        draw_pictures: Callable[[], Mapping[str, Tensor]] = dict,
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
        self.world = world or World()
        self.on_epoch = on_epoch
        self.draw_pictures = draw_pictures
        self.progress = Progress()
        self.stop = StopSwitch()
        self.mixed_precision = settings.mixed_precision and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.mixed_precision)
        self.parallel: nn.Module = model
        if self.world.size > 1:
            self.parallel = DistributedDataParallel(
                model, device_ids=[device] if device.type == "cuda" else None, broadcast_buffers=False
            )
        self.lag = 1 if device.type == "cuda" else 0  # steps after which a number is read; see `Meter`
        self._stop_flags: deque[Reading] = deque()
        self._last_losses: Mapping[str, float] = {}

    def resume(self, content: Mapping[str, Any]) -> None:
        """Go on from the content of a checkpoint that `run` has written."""
        try:
            self.model.load_state_dict(content["model"])
        except RuntimeError as error:
            reason = on_one_line(str(error))[:200]
            raise UserError(
                f"the checkpoint does not fit the model of this configuration: {reason}"
            ) from None
        # The configuration decides on the settings of the groups, which --force may have changed.
        groups = self.optimizer.state_dict()["param_groups"]
        earlier = content["optimizer"]
        if [group["params"] for group in earlier["param_groups"]] != [group["params"] for group in groups]:
            raise UserError(
                "the optimiser of the checkpoint has other groups of parameters than this configuration; "
                "resume with the settings and the version of the program that the run was started with"
            )
        self.optimizer.load_state_dict({"state": earlier["state"], "param_groups": groups})
        if content["scaler"] and self.mixed_precision:
            self.scaler.load_state_dict(content["scaler"])
        self.progress = Progress(**content["progress"])
        best = self.folder / "best.pth"
        if self.settings.eval_split == "validation" and self.progress.best_map >= 0 and not best.exists():
            raise UserError(
                f"{best} is missing: it holds the best epoch so far, which is scored on the test split at "
                "the end; copy it there from the folder that the run was started in"
            )
        states = content["random"]
        if len(states) == self.world.size:
            restore_random_states(states[self.world.rank], self.device)
        else:
            logger.warning("%d processes started this run: dropout and noise differ now", len(states))
        progress = self.progress
        logger.info("resuming after %d epochs and %d steps", progress.epoch, progress.steps_in_epoch)

    def run(self) -> EvaluationResult:
        """Train the epochs that are left; returns the evaluation of the last one.

        Raises:
            RunStopped: a signal asked to stop, and everything is saved.
        """
        progress = self.progress
        if len(set(self.world.gather_objects(progress.step))) > 1:
            raise UserError(
                "the processes resume from different steps; give all machines the same run folder"
            )
        board: SummaryWriter | None = None
        if self.world.is_main:
            purge_step = progress.step + 1 if progress.step else None
            board = open_board(self.folder / "tensorboard", purge_step)
        self.meter = Meter(progress, epochs=self.settings.epochs, board=board, lag=self.lag)
        result: EvaluationResult | None = None
        try:
            with self.stop.listen():
                while progress.epoch < self.settings.epochs or result is None:
                    result = self._run_epoch(min(progress.epoch + 1, self.settings.epochs))
        except StopRequested:
            self._save()
            raise RunStopped(*self._stop_message()) from None
        finally:
            if board is not None:
                board.close()
        if progress.unreadable:
            names = "\n  ".join(progress.unreadable)
            logger.warning("%d training images could not be read:\n  %s", len(progress.unreadable), names)
        return result

    def _run_epoch(self, epoch: int) -> EvaluationResult | None:
        """Train what is left of an epoch, evaluate if it is time, save."""
        progress = self.progress
        is_new = progress.epoch < epoch
        record = {"epoch": epoch, **self._train_epoch(epoch)} if is_new else {}
        result = None
        if epoch % self.settings.eval_period == 0 or epoch == self.settings.epochs:
            if is_new:
                self._save()  # an evaluation that fails must not cost the epoch
            result = self._evaluate_epoch(epoch)
        if not is_new:  # a finished run was resumed: it is evaluated again, and nothing else
            return result
        if result is not None:
            record[self.settings.eval_split] = result.as_dict()
        progress.epochs.append(record)
        progress.epoch, progress.steps_in_epoch, progress.sums = epoch, 0, {}
        is_best = result is not None and result.main.mean_ap > progress.best_map
        if result is not None and is_best:
            progress.best_map = result.main.mean_ap
        if self.world.is_main:
            weights = {"model": self.model.state_dict(), "epoch": epoch, "config": self.settings.config}
            # The last checkpoint comes last: a run that is killed before it repeats the epoch and the others.
            if is_best:
                choice = {"chosen_on": self.settings.eval_split, "chosen_mAP": 100 * progress.best_map}
                save_checkpoint(self.folder / "best.pth", **weights, **choice)
            if self.settings.checkpoint_period and epoch % self.settings.checkpoint_period == 0:
                save_checkpoint(self.folder / f"epoch_{epoch}.pth", **weights)
            save_json(self.folder / "metrics.json", {"epochs": progress.epochs})
        self._save()
        return result

    def _train_epoch(self, epoch: int) -> dict[str, Any]:
        """One pass over the batches that are left; returns the means of the epoch."""
        progress, meter = self.progress, self.meter
        self.schedule.step(epoch)
        self.on_epoch(epoch)
        self.set_epoch(epoch, progress.steps_in_epoch)
        self.model.train()
        rates = {group["name"]: group["lr"] for group in self.optimizer.param_groups}
        num_steps = progress.steps_in_epoch + len(self.loader)
        meter.begin_epoch(num_steps, rates)
        bar = tqdm(
            self._batches(),
            f"epoch {epoch}/{self.settings.epochs}",
            total=num_steps,
            initial=progress.steps_in_epoch,
            unit="step",
            leave=False,
            disable=None if self.world.is_main else True,
        )
        for batch in bar:
            values, gradient_norm = self._train_step(batch.to(self.device), epoch)
            progress.step += 1
            progress.steps_in_epoch += 1
            meter.book(values, gradient_norm, num_images=3 * len(batch) * self.world.size)
            status, remaining = meter.status(), meter.remaining()
            bar.set_postfix_str(f"{status} ETA {remaining}")
            done = progress.steps_in_epoch
            if done % self.settings.log_period == 0 or done == num_steps:
                where = f"epoch {epoch}/{self.settings.epochs} step {done}/{num_steps}"
                logger.info("%s %s %s ETA %s", where, status, meter.details(), remaining)
            self._check_stop()
        meter.settle()
        return {**meter.means(), "lr": rates}

    def _batches(self) -> Iterator[ModalBatch]:
        """The loader's batches; remembers the images that it had to replace."""
        batches = iter(self.loader)
        leave_children_alone()
        with self.stop.excuse_loader():
            for batch in batches:
                self.progress.unreadable += [
                    name for name in batch.unreadable if name not in self.progress.unreadable
                ]
                yield batch

    def _train_step(self, batch: ModalBatch, epoch: int) -> tuple[dict[str, float], Reading]:
        """One optimiser step.

        The loss is read and checked after the backward pass has begun and before the step: the device has
        work while the host looks, and no weight ever takes a step from a loss that is not finite.

        Returns:
            The named losses, their sum and the accuracy; the gradient norm before clipping.
        """
        with torch.autocast(self.device.type, torch.float16, enabled=self.mixed_precision):
            output: ModelOutput = self.parallel(batch)
            person_ids = self.world.gather_batch(batch.person_ids)
            losses = self.criterion(output, person_ids)
        loss = torch.stack(list(losses.values())).sum()
        reading = Reading({**losses, "loss": loss, "accuracy": _accuracy(output, person_ids)})
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        values = reading.wait()
        loss_values = {name: values[name] for name in (*losses, "loss")}
        if not math.isfinite(values["loss"]):
            raise NonFiniteLossError(self._non_finite_message(loss_values, batch, epoch))
        self._last_losses = loss_values
        self.scaler.unscale_(self.optimizer)
        norm = gradient_norm(self.model.parameters(), self.settings.clip_grad)
        if self.lag == 0 and not norm.isfinite():  # CUDA is not waited for; there the next loss tells
            raise NonFiniteLossError(self._non_finite_message(loss_values, batch, epoch, what="gradient"))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return values, Reading({"gradient_norm": norm})

    def _non_finite_message(
        self, values: Mapping[str, float], batch: ModalBatch, epoch: int, what: str = "loss"
    ) -> str:
        def show(losses: Mapping[str, float]) -> str:
            return ", ".join(f"{name} {value:.4g}" for name, value in losses.items()) or "none yet"

        return (
            f"the {what} is not finite in epoch {epoch}, step {self.progress.step + 1}: {show(values)}; "
            f"last good losses: {show(self._last_losses)}; images: {', '.join(batch.names)}. "
            "Lower SOLVER.BASE_LR, set SOLVER.CLIP_GRAD, or set SOLVER.AMP False"
        )

    def _evaluate_epoch(self, epoch: int) -> EvaluationResult:
        with self.stop.excuse_loader():
            result = self.evaluate(self._check_stop)
        split = self.settings.eval_split
        for pattern, metrics in result.ranking.items():
            self.meter.scalar(f"{split}/mAP_pattern_{pattern}", 100 * metrics.mean_ap, epoch)
            self.meter.scalar(f"{split}/rank_1_pattern_{pattern}", 100 * metrics.rank(1), epoch)
        if self.meter.board is not None:
            for name, picture in self.draw_pictures().items():
                self.meter.board.add_image(name, picture, epoch)
        logger.info(
            "epoch %d: %s mAP %.1f, Rank-1 %.1f (return pattern %d)",
            epoch,
            split,
            100 * result.main.mean_ap,
            100 * result.main.rank(1),
            max(result.ranking),
        )
        return result

    def _save(self) -> None:
        """Write last.pth: all that `resume` needs."""
        self.meter.settle()
        states = self.world.gather_objects(random_states(self.device))
        unreadable = self.world.gather_objects(self.progress.unreadable)
        self.progress.unreadable = sorted(set().union(*unreadable))
        if self.world.is_main:
            save_checkpoint(
                self.folder / "last.pth",
                model=self.model.state_dict(),
                optimizer=self.optimizer.state_dict(),
                scaler=self.scaler.state_dict(),
                progress=asdict(self.progress),
                random=states,
                config=self.settings.config,
            )

    def _check_stop(self) -> None:
        """Stop if a signal has reached any of the processes; all of them stop after the same step.

        Several processes on CUDA stop one step later, since no step waits for the answer of the others.
        """
        stop = self.stop.signal is not None
        if self.world.size > 1:
            self._stop_flags.append(Reading({"stop": self.world.any(stop, self.device)}))
            stop = len(self._stop_flags) > self.lag and bool(self._stop_flags.popleft().wait()["stop"])
        if stop:
            raise StopRequested

    def _stop_message(self) -> tuple[str, int]:
        name = self.stop.signal.name if self.stop.signal else "a signal to another process"
        message = (
            f"stopped by {name} after {self.progress.epoch} epochs and {self.progress.steps_in_epoch} steps; "
            f"everything is saved in {self.folder}"
        )
        return message, 128 + (self.stop.signal or 15)


def gradient_norm(parameters: Iterable[nn.Parameter], limit: float = 0.0) -> Tensor:
    """The norm of all gradients, before they are clipped to `limit`; with 0 they stay as they are."""
    if limit:
        return nn.utils.clip_grad_norm_(parameters, limit)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def _accuracy(output: ModelOutput, person_ids: Tensor) -> Tensor:
    """Share of training samples whose identity the heads name rightly, mean over heads."""
    hits = [(head.logits.argmax(dim=1) == person_ids).float().mean() for head in output.heads]
    return torch.stack(hits).mean()
