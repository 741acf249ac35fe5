"""The training loop."""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from engine.board import open_board
from engine.checkpoint import load_optimizer, random_states, restore_random_states, save_checkpoint
from engine.checkpoint_check import check_resumable_content
from engine.distributed import World
from engine.environment import compare_environments, describe_environment
from engine.files import save_json
from engine.finite import NonFiniteLossError, describe_bad_state, describe_bad_step
from engine.interrupt import RunStopped, StopRequested, StopSwitch, leave_children_alone
from engine.meter import Meter, Reading, StepNumbers
from engine.run_folder import BOARD, EVALUATION_BOARD, list_new_events, list_run_files
from engine.run_state import Loader, Progress, Schedule, SetEpoch, TrainSettings
from evaluation.loop import Evaluate
from evaluation.result import EvaluationResult
from structures import ModalBatch, ModelOutput, UserError

logger = logging.getLogger(__name__)

_BUFFERS = "forward_sync_buffers"  # of DistributedDataParallel; its older name is deprecated since torch 2.13
if _BUFFERS not in inspect.signature(DistributedDataParallel.__init__).parameters:
    _BUFFERS = "broadcast_buffers"


MANY_SKIPPED = 0.1
"""Share of the steps of an epoch from which on a warning says that they were left out."""


class Trainer:
    """Trains a model, evaluates it, and keeps the last and the best weights.

    Args:
        model: maps a batch, and a function that joins the features of all processes, to a `ModelOutput`.
        criterion: maps an output and (B,) identities to named, weighted losses.
        optimizer: over the model's parameters.
        schedule: of the learning rates.
        loader: training batches; with several processes, this one's part of each.
        set_epoch: see `SetEpoch`.
        evaluate: scores the model on the split that `settings` names, under one condition.
        device: where the model is.
        folder: the run folder.
        settings: see `TrainSettings`.
        world: the processes of the run.
        on_epoch: called with the number of each epoch, from 1, before it is trained.
        draw_pictures: draws the model as it is, by name, each (3, H, W) in [0, 1], for TensorBoard; called
            after each evaluation, in the main process. It must not change the model or draw random numbers.
        progress: of a run that begins; None for one that keeps nothing of its start.
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
        evaluate: Evaluate,
        device: torch.device,
        folder: Path,
        settings: TrainSettings,
        world: World | None = None,
        on_epoch: Callable[[int], None] = lambda epoch: None,
        draw_pictures: Callable[[], Mapping[str, Tensor]] = dict,
        progress: Progress | None = None,
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
        self.progress = progress or Progress()
        self.environment = describe_environment(device, self.world)
        self.stop = StopSwitch()
        self.mixed_precision = settings.mixed_precision and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.mixed_precision)
        self.parallel: nn.Module = model
        if self.world.size > 1:
            options: dict[str, Any] = {_BUFFERS: False}
            device_ids = [device] if device.type == "cuda" else None
            self.parallel = DistributedDataParallel(model, device_ids=device_ids, **options)
        self.lag = 1 if device.type == "cuda" else 0  # steps after which a number is read; see `Meter`
        self._stop_flags: deque[Reading] = deque()
        self._last_losses: Mapping[str, float] = {}

    def resume(self, content: Mapping[str, Any]) -> None:
        """Go on from the content of a checkpoint that `run` has written."""
        check_resumable_content(content, self.model.state_dict(), self.optimizer, self.device)
        progress = Progress(**content["progress"])
        self.set_epoch(progress.epoch + 1, 0)  # epochs differ in length
        if progress.steps_in_epoch > len(self.loader):
            raise UserError(
                f"the checkpoint is {progress.steps_in_epoch} steps into an epoch, which now has only "
                f"{len(self.loader)}; resume with the settings that the run was started with"
            )
        best = self.folder / "best.pth"
        if self.settings.eval_split == "validation" and progress.best_map >= 0 and not best.exists():
            raise UserError(
                f"{best} is missing: it holds the best epoch so far, which is scored on the test split at "
                "the end; copy it there from the folder that the run was started in"
            )
        self.model.load_state_dict(content["model"])
        load_optimizer(self.optimizer, content["optimizer"])
        if content["scaler"] and self.mixed_precision:
            self.scaler.load_state_dict(content["scaler"])
        self.progress = progress
        states = content["random"]
        if len(states) == self.world.size:
            restore_random_states(states[self.world.rank], self.device)
        else:
            logger.warning("%d processes started this run: dropout and noise differ now", len(states))
        self._compare_environment()
        logger.info("resuming after %d epochs and %d steps", progress.epoch, progress.steps_in_epoch)

    def checkpoints_to_come(self) -> list[str]:
        """The names of the files that the epochs that are left will keep, beside the last and the best."""
        period, first = self.settings.checkpoint_period, self.progress.epoch + 1
        epochs = range(first, self.settings.epochs + 1) if period else ()
        return [checkpoint_name(epoch) for epoch in epochs if epoch % period == 0]

    def _compare_environment(self) -> None:
        """Warn if the run goes on with something else than before, by which its result may change."""
        for before in self.progress.environments[-1:]:
            changed = compare_environments(before, self.environment)
            if changed:
                logger.warning(
                    "the run goes on with something else than before (%s): its result will not be the same, "
                    "bit for bit, as without the interruption",
                    changed,
                )

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
        if self.environment not in progress.environments[-1:]:
            progress.environments.append(self.environment)
        board = self._open_board(BOARD, first=progress.step + 1)
        # Steps and epochs are counted apart: an evaluation that is done again is known by its epoch alone.
        self.evaluation_board = self._open_board(EVALUATION_BOARD, first=progress.epoch + 1)
        self.meter = Meter(
            progress,
            epochs=self.settings.epochs,
            board=board,
            lag=self.lag,
            mixed_precision=self.mixed_precision,
        )
        result: EvaluationResult | None = None
        try:
            with self.stop.listen():  # also while it saves: a signal that follows the first must not end that
                try:
                    while progress.epoch < self.settings.epochs or result is None:
                        result = self._run_epoch(min(progress.epoch + 1, self.settings.epochs))
                except StopRequested:
                    self._save()
                    raise RunStopped(*self._stop_message()) from None
        finally:
            for opened in (board, self.evaluation_board):
                if opened is not None:
                    opened.close()
        if progress.unreadable:
            names = "\n  ".join(progress.unreadable)
            logger.warning("%d training images could not be read:\n  %s", len(progress.unreadable), names)
        return result

    def _open_board(self, name: str, first: int) -> SummaryWriter | None:
        """Opens a folder of TensorBoard, which hides what an earlier start has left there from `first` on."""
        if not self.world.is_main:
            return None
        with list_new_events(self.folder):
            return open_board(self.folder / name, first)

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
            self._show_evaluation(result, epoch)
            record[self.settings.eval_split] = result.as_dict()
        progress.epochs.append(record)
        progress.epoch, progress.steps_in_epoch, progress.sums = epoch, 0, {}
        is_best = result is not None and result.main.mean_ap > progress.best_map
        if result is not None and is_best:
            progress.best_map = result.main.mean_ap
        if self.world.is_main:
            kept = {"config": self.settings.config, "data": self.settings.data}
            weights = {"model": self.model.state_dict(), "epoch": epoch, **kept}
            # The last checkpoint comes last: a run that is killed before it repeats the epoch and the others.
            if is_best:
                choice = {"chosen_on": self.settings.eval_split, "chosen_mAP": 100 * progress.best_map}
                save_checkpoint(self.folder / "best.pth", **weights, **choice)
            if self.settings.checkpoint_period and epoch % self.settings.checkpoint_period == 0:
                list_run_files(self.folder, [checkpoint_name(epoch)])
                save_checkpoint(self.folder / checkpoint_name(epoch), **weights)
            save_json(self.folder / "metrics.json", progress.as_metrics())
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
            numbers = self._train_step(batch.to(self.device), epoch)
            progress.step += 1
            progress.steps_in_epoch += 1
            meter.book(numbers, num_images=3 * len(batch) * self.world.size)
            status, remaining = meter.status(), meter.remaining()
            bar.set_postfix_str(f"{status} ETA {remaining}")
            done = progress.steps_in_epoch
            if done % self.settings.log_period == 0 or done == num_steps:
                where = f"epoch {epoch}/{self.settings.epochs} step {done}/{num_steps}"
                logger.info("%s %s %s ETA %s", where, status, meter.details(), remaining)
            self._check_stop()
        meter.settle()
        self._check_skipped(epoch)
        self._check_state()
        return {**meter.means(), "lr": rates}

    def _check_skipped(self, epoch: int) -> None:
        """Stop if mixed precision has left out all steps of an epoch; warn if it has left out many."""
        skipped, steps = int(self.progress.sums.get("skipped_steps", 0)), self.progress.steps_in_epoch
        if skipped and skipped == steps:
            raise NonFiniteLossError(
                f"no step of epoch {epoch} was taken, since the gradients of all {steps} steps overflowed in "
                f"mixed precision; {self._what_is_kept()}: set SOLVER.AMP False, or lower SOLVER.BASE_LR"
            )
        if skipped > MANY_SKIPPED * steps:
            logger.warning(
                "epoch %d: %d of %d steps were left out, since their gradients overflowed in mixed "
                "precision; if it goes on, set SOLVER.AMP False or lower SOLVER.BASE_LR",
                epoch,
                skipped,
                steps,
            )

    def _check_state(self) -> None:
        """Stop before weights, or a state of the optimiser, that are not finite are saved."""
        problems = self.world.gather_objects(describe_bad_state(self.model, self.optimizer))
        for problem in filter(None, problems):
            raise NonFiniteLossError(
                f"{problem} after step {self.progress.step}; {self._what_is_kept()}: "
                "lower SOLVER.BASE_LR, or set SOLVER.CLIP_GRAD"
            )

    def _what_is_kept(self) -> str:
        last = self.folder / "last.pth"
        if last.exists():
            return f"{last} is kept as it was, and --resume --force goes on from it with other settings"
        return "nothing has been saved yet"

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

    def _train_step(self, batch: ModalBatch, epoch: int) -> StepNumbers:
        """One optimiser step.

        The loss is read and checked after the backward pass has begun and before the step: the device has
        work while the host looks, and no weight ever takes a step from a loss that is not finite.
        """
        with torch.autocast(self.device.type, torch.float16, enabled=self.mixed_precision):
            output: ModelOutput = self.parallel(batch, self.world.gather_batch)
            person_ids = self.world.gather_batch(batch.person_ids)
            losses = self.criterion(output, person_ids)
        loss = torch.stack(list(losses.values())).sum()
        reading = Reading({**losses, "loss": loss, "accuracy": _accuracy(output, person_ids)})
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        values = reading.wait()
        loss_values = {name: values[name] for name in (*losses, "loss")}
        describe = partial(
            describe_bad_step,
            epoch=epoch,
            step=self.progress.step + 1,
            losses=loss_values,
            last_losses=self._last_losses,
            names=batch.names,
        )
        if not math.isfinite(values["loss"]):
            raise NonFiniteLossError(describe("loss"))
        self._last_losses = loss_values
        self.scaler.unscale_(self.optimizer)
        norm = gradient_norm(self.model.parameters(), self.settings.clip_grad)
        # CUDA is not waited for: there `Meter` reads the norm one step later, before anything is saved.
        if self.lag == 0 and not self.mixed_precision and not norm.isfinite():
            raise NonFiniteLossError(describe("gradient"))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return StepNumbers(values, Reading({"gradient_norm": norm}), partial(describe, "gradient"))

    def _evaluate_epoch(self, epoch: int) -> EvaluationResult:
        with self.stop.excuse_loader():
            (result,) = self.evaluate(self.model, check_stop=self._check_stop).values()
        logger.info(
            "epoch %d: %s mAP %.1f, Rank-1 %.1f (return pattern %d)",
            epoch,
            self.settings.eval_split,
            100 * result.main.mean_ap,
            100 * result.main.rank(1),
            max(result.ranking),
        )
        return result

    def _show_evaluation(self, result: EvaluationResult, epoch: int) -> None:
        """The points and pictures of an epoch in TensorBoard."""
        board, split = self.evaluation_board, self.settings.eval_split
        if board is None:
            return
        for pattern, metrics in result.ranking.items():
            board.add_scalar(f"{split}/mAP_pattern_{pattern}", 100 * metrics.mean_ap, epoch)
            board.add_scalar(f"{split}/rank_1_pattern_{pattern}", 100 * metrics.rank(1), epoch)
        for name, picture in self.draw_pictures().items():
            board.add_image(name, picture, epoch)

    def _save(self) -> None:
        """Write last.pth: all that `resume` needs. It must be finite, or the earlier one stays."""
        self.meter.settle()
        self._check_state()
        states = self.world.gather_objects(random_states(self.device))
        unreadable = self.world.gather_objects(self.progress.unreadable)
        self.progress.unreadable = sorted(set().union(*unreadable))
        for board in (self.meter.board, self.evaluation_board):
            if board is not None:
                board.flush()  # a resumed run does not draw again what comes before its checkpoint
        if self.world.is_main:
            save_checkpoint(
                self.folder / "last.pth",
                model=self.model.state_dict(),
                optimizer=self.optimizer.state_dict(),
                scaler=self.scaler.state_dict(),
                progress=asdict(self.progress),
                random=states,
                config=self.settings.config,
                data=self.settings.data,
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


def checkpoint_name(epoch: int) -> str:
    """The file that keeps the weights of an epoch."""
    return f"epoch_{epoch}.pth"


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
