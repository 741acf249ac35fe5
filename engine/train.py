"""The training loop."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from engine.board import open_board
from engine.checkpoint import (
    Progress,
    check_resumable_content,
    held_entries,
    load_optimizer,
    random_states,
    restore_random_states,
    save_checkpoint,
)
from engine.distributed import World
from engine.files import save_json
from engine.interrupt import RunStopped, StopRequested, StopSwitch, leave_children_alone
from engine.meter import Meter, NonFiniteLossError, Reading, Step, check_state, gradient_norm
from engine.run_folder import BOARD, EVALUATION_BOARD, list_new_events, list_run_files
from engine.runtime import compare_environments, describe_environment
from errors import UserError
from evaluation.loop import Evaluate
from evaluation.result import EvaluationResult
from structures import ModalBatch, ModelOutput
from weight_file import TRUNK_FILE

logger = logging.getLogger(__name__)


class Loader(Iterable[ModalBatch], Sized, Protocol):
    """Batches of one epoch, their number known."""


class Schedule(Protocol):
    """The learning rate of each epoch, counted from 1. It depends on the epoch alone, so it has no state."""

    def step(self, epoch: float) -> None:
        """Set the rates of the epoch that is about to start; 2.5 is half-way between the second and third."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of training."""

    epochs: int  # number of epochs
    lr_per_step: bool = False  # the learning rate changes with every step, not with every epoch
    clip_grad: float = 0.0  # largest gradient norm; 0 for no clipping
    ema_decay: float = 0.0  # of the moving average of the weights, which is tested then; 0 for none
    mixed_precision: bool = True  # on CUDA; the CPU always computes in float32
    half: torch.dtype = torch.float16  # of mixed precision; bfloat16 cannot overflow, and is not scaled
    log_period: int = 10  # steps between two log lines
    eval_period: int = 1  # epochs between two evaluations; the last epoch is always evaluated
    # What epochs are evaluated on, and the best is chosen by: `validation` or `test`.
    eval_split: str = "test"
    checkpoint_period: int = 0  # also keep the weights of every n-th epoch; 0 for none
    config: str = ""  # the configuration as YAML, to be kept in the checkpoints
    # What the model was built for, and fingerprints of the data, to be kept in the checkpoints.
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Trainer:
    """Trains a model, evaluates it or its average, and keeps the last and the best weights."""

    # Maps a batch, and a function that joins the features of all processes, to a `ModelOutput`.
    model: nn.Module
    # Maps an output and (B,) identities to named, weighted losses.
    criterion: Callable[[ModelOutput, Tensor], dict[str, Tensor]]
    optimizer: Optimizer  # over the model's parameters
    schedule: Schedule
    loader: Loader  # training batches; with several processes, this one's part of each
    # Tells the sampler of the loader which epoch comes, and how many of its batches are done.
    set_epoch: Callable[[int, int], None]
    evaluate: Evaluate  # scores the model on the split that `options` names, under one condition
    device: torch.device  # where the model is
    folder: Path  # the run folder
    options: TrainOptions
    world: World = field(default_factory=World)  # the processes of the run
    # Draws a model as it is, by name, each (3, H, W) in [0, 1], for TensorBoard; called after each
    # evaluation, in the main process. It must not change the model or draw random numbers.
    draw_pictures: Callable[[nn.Module], Mapping[str, Tensor]] = lambda model: {}
    progress: Progress = field(default_factory=Progress)  # how far the run has come
    # Brings the weights in a checkpoint of an earlier version under the names of today.
    rename: Callable[[Any], Any] = lambda weights: weights
    frozen: Container[str] = ()  # names of the weights that do not learn and that a file may hold
    # Which file that is; checkpoints then leave these weights out. Empty if they hold everything.
    trunk_file: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        on_cuda = self.device.type == "cuda"
        self.environment = describe_environment(self.device, self.world)
        self.stop = StopSwitch()
        self.mixed_precision = self.options.mixed_precision and on_cuda
        is_scaled = self.mixed_precision and self.options.half == torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=is_scaled)
        # What is evaluated and kept: the model, or its average over the steps. Buffers are averaged as well:
        # the statistics of batch normalisation lag behind as the weights do. The decay grows from 0, so that
        # the start is soon forgotten; it depends on the step alone, so the average has no other state.
        self.tested, self.average, decay = self.model, None, self.options.ema_decay
        if decay:
            self.average = ModelEmaV3(self.model, decay=decay, use_warmup=True)
            self.tested = self.average.module
        self.parallel = self.model
        if self.world.size > 1:
            device_ids = [self.device] if on_cuda else None
            self.parallel = DistributedDataParallel(self.model, device_ids=device_ids)
        self.lag = 1 if on_cuda else 0  # steps after which a number is read; see `Meter`
        self._stop_flags: deque[Reading] = deque()
        self._last_losses: Mapping[str, float] = {}

    def resume(self, content: Mapping[str, Any]) -> None:
        """Continue from the content of a checkpoint that `run` has written."""
        # Check everything before anything is touched.
        if self.average is not None and "raw_model" not in content:
            raise UserError(
                "SOLVER.EMA_DECAY is on, but the checkpoint holds no average of the weights; resume with "
                "SOLVER.EMA_DECAY 0, or start the run again with --overwrite"
            )
        names = [name for name in ("model", "raw_model") if name in content]
        content = {**content, **{name: self.rename(content[name]) for name in names}}
        held = held_entries(content, self.model.state_dict(), self.frozen)
        check_resumable_content(content, held, self.optimizer, self.device)
        progress = Progress(**content["progress"])
        self.set_epoch(progress.epoch + 1, 0)  # epochs differ in length
        if progress.steps_in_epoch > len(self.loader):
            raise UserError(
                f"the checkpoint is at step {progress.steps_in_epoch} of an epoch, which now has only "
                f"{len(self.loader)}; resume with the settings that the run was started with"
            )
        best = self.folder / "best.pth"
        if self.options.eval_split == "validation" and progress.best_map >= 0 and not best.exists():
            raise UserError(
                f"{best} is missing: it holds the best epoch so far, which is scored on the test split at "
                "the end; copy it there from the folder that the run was started in"
            )
        # Restore weights, optimiser, progress and random states.
        self.model.load_state_dict(content.get("raw_model", content["model"]), strict=False)
        if self.average is not None:
            self.average.module.load_state_dict(content["model"], strict=False)
        load_optimizer(self.optimizer, content["optimizer"])
        if content["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(content["scaler"])
        self.progress = progress
        states = content["random"]
        if len(states) == self.world.size:
            restore_random_states(states[self.world.rank], self.device)
        else:
            logger.warning("the number of processes was %d: dropout and noise differ now", len(states))
        # Say what is not as before.
        for before in progress.environments[-1:]:
            if changed := compare_environments(before, self.environment):
                logger.warning(
                    "the run continues in another environment (%s): its result will not be the same, bit for "
                    "bit, as without the interruption",
                    changed,
                )
        logger.info("resuming after epochs: %d, steps: %d", progress.epoch, progress.steps_in_epoch)

    def checkpoints_to_come(self) -> list[str]:
        """The names of the files that the remaining epochs will keep, besides last.pth and best.pth."""
        period, first = self.options.checkpoint_period, self.progress.epoch + 1
        epochs = range(first, self.options.epochs + 1) if period else ()
        return [f"epoch_{epoch}.pth" for epoch in epochs if epoch % period == 0]

    def run(self) -> EvaluationResult:
        """Train the remaining epochs; returns the evaluation of the last one.

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
        if self.average is not None:
            which = "the moving average of the weights (SOLVER.EMA_DECAY %g), not the last weights"
            logger.info(f"evaluated and kept: {which}", self.average.decay)
        # TensorBoard counts steps and epochs apart: a repeated evaluation is known by its epoch alone.
        board = self._open_board(BOARD, first=progress.step + 1)
        self.evaluation_board = self._open_board(EVALUATION_BOARD, first=progress.epoch + 1)
        self.meter = Meter(progress, self.options.epochs, board, self.lag, self.scaler.is_enabled())
        # Train; whatever happens, close TensorBoard.
        result: EvaluationResult | None = None
        try:
            with self.stop.listen():  # also while it saves: a signal that follows the first must not end that
                try:
                    while progress.epoch < self.options.epochs or result is None:
                        result = self._run_epoch(min(progress.epoch + 1, self.options.epochs))
                except StopRequested:
                    self._save()
                    raise self._stopped() from None
        except NonFiniteLossError as error:
            raise NonFiniteLossError(f"{error}; {self._what_is_kept()}") from None
        finally:
            for opened in (board, self.evaluation_board):
                if opened is not None:
                    opened.close()
        if progress.unreadable:
            names = "\n  ".join(progress.unreadable)
            logger.warning("unreadable training images: %d\n  %s", len(progress.unreadable), names)
        return result

    def _open_board(self, name: str, first: int) -> SummaryWriter | None:
        """Open a folder of TensorBoard; points from `first` on that an earlier start has drawn are hidden."""
        if not self.world.is_main:
            return None
        with list_new_events(self.folder):
            return open_board(self.folder / name, first)

    def _run_epoch(self, epoch: int) -> EvaluationResult | None:
        """Train what is left of an epoch, evaluate if it is time, save."""
        progress = self.progress
        # Train and evaluate.
        is_new = progress.epoch < epoch
        record = {"epoch": epoch, **self._train_epoch(epoch)} if is_new else {}
        result = None
        if epoch % self.options.eval_period == 0 or epoch == self.options.epochs:
            if is_new:
                self._save()  # an evaluation that fails must not cost the epoch
            result = self._evaluate_epoch(epoch)
        if not is_new:  # a finished run was resumed: it is evaluated again, and nothing else
            return result
        # Record the epoch.
        if result is not None:
            self._show_evaluation(result, epoch)
            record[self.options.eval_split] = result.as_dict()
        progress.epochs.append(record)
        progress.epoch, progress.steps_in_epoch, progress.sums = epoch, 0, {}
        is_best = result is not None and result.main.mean_ap > progress.best_map
        if result is not None and is_best:
            progress.best_map = result.main.mean_ap
        # Save; last.pth comes last: a run that is killed before it repeats the epoch and the other files.
        if self.world.is_main:
            weights = {"model": self._held(self.tested), "epoch": epoch, **self._description()}
            if is_best:
                choice = {"chosen_on": self.options.eval_split, "chosen_mAP": 100 * progress.best_map}
                save_checkpoint(self.folder / "best.pth", **weights, **choice)
            if self.options.checkpoint_period and epoch % self.options.checkpoint_period == 0:
                list_run_files(self.folder, [f"epoch_{epoch}.pth"])
                save_checkpoint(self.folder / f"epoch_{epoch}.pth", **weights)
            save_json(self.folder / "metrics.json", progress.as_metrics())
        self._save()
        return result

    def _train_epoch(self, epoch: int) -> dict[str, Any]:
        """One pass over the remaining batches; returns the means of the epoch."""
        progress, meter = self.progress, self.meter
        # Tell everything that depends on the epoch.
        if not self.options.lr_per_step:
            self.schedule.step(epoch)
        self.set_epoch(epoch, progress.steps_in_epoch)
        self.model.train()
        num_steps = progress.steps_in_epoch + len(self.loader)
        meter.begin_epoch(num_steps, self._rates())
        # Train step by step, under a progress bar.
        title, first = f"epoch {epoch}/{self.options.epochs}", progress.steps_in_epoch
        is_quiet = None if self.world.is_main else True
        bar = tqdm(
            self._batches(), title, num_steps, leave=False, disable=is_quiet, unit="step", initial=first
        )
        for batch in bar:
            if self.options.lr_per_step:
                self.schedule.step(epoch - 1 + (progress.steps_in_epoch + 1) / num_steps)
                meter.rates = self._rates()
            num_images = batch.num_images * self.world.size  # here, where it waits for no device
            step, norm = self._train_step(batch.to(self.device), epoch)
            meter.record_step(step, norm, num_images=num_images)
            bar.set_postfix_str(meter.status())
            done = progress.steps_in_epoch
            if done % self.options.log_period == 0 or done == num_steps:
                logger.info("%s step %d/%d %s %s", title, done, num_steps, meter.status(), meter.details())
            self._check_stop()
        # Nothing that is not finite may be saved.
        means = meter.end_epoch(epoch)
        check_state(self.model, self.optimizer, self.world, progress.step)
        return {**means, "lr": self._rates()}

    def _rates(self) -> dict[str, float]:
        """The learning rate of each group of parameters."""
        return {group["name"]: group["lr"] for group in self.optimizer.param_groups}

    def _what_is_kept(self) -> str:
        last = self.folder / "last.pth"
        if last.exists():
            return f"{last} is kept as it was, and --resume --force continues from it with other settings"
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

    def _train_step(self, batch: ModalBatch, epoch: int) -> tuple[Step, Reading]:
        """One optimiser step; returns its numbers, and the gradient norm, which may still be on its way.

        The loss is read and checked after the backward pass has begun and before the step: the device has
        work while the host waits, and no weight ever takes a step from a loss that is not finite.
        """
        # Forward: the features of all processes make one batch.
        with torch.autocast(self.device.type, self.options.half, enabled=self.mixed_precision):
            output: ModelOutput = self.parallel(batch, self.world.gather_batch)
            person_ids = self.world.gather_batch(batch.person_ids)
            losses = self.criterion(output, person_ids)
        loss = torch.stack(list(losses.values())).sum()
        reading = Reading({**losses, "loss": loss, "accuracy": _accuracy(output, person_ids)})
        # Backward, then check the loss.
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        values = reading.wait()
        accuracy = values.pop("accuracy")
        step = Step(epoch, self.progress.step + 1, values, self._last_losses, accuracy, batch.names)
        if not math.isfinite(values["loss"]):
            raise step.error("loss")
        self._last_losses = values
        # Clip, check the gradient, step.
        self.scaler.unscale_(self.optimizer)
        norm = gradient_norm(self.model.parameters(), self.options.clip_grad)
        # CUDA is not waited for: there `Meter` reads the norm one step later, before anything is saved.
        if self.lag == 0 and not self.scaler.is_enabled() and not norm.isfinite():
            raise step.error("gradient")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:  # also after a skipped step, since asking would wait for the device
            self.average.update(self.model, step.number)
        return step, Reading({"gradient_norm": norm})

    def _evaluate_epoch(self, epoch: int) -> EvaluationResult:
        with self.stop.excuse_loader():
            (result,) = self.evaluate(self.tested, check_stop=self._check_stop).values()
        scores = f"mAP {100 * result.main.mean_ap:.1f}, Rank-1 {100 * result.main.rank(1):.1f}"
        which = f"(return pattern {max(result.ranking)})"
        logger.info("epoch %d: %s %s %s", epoch, self.options.eval_split, scores, which)
        return result

    def _show_evaluation(self, result: EvaluationResult, epoch: int) -> None:
        """The points and pictures of an epoch in TensorBoard."""
        board, split = self.evaluation_board, self.options.eval_split
        if board is None:
            return
        for pattern, metrics in result.ranking.items():
            board.add_scalar(f"{split}/mAP_pattern_{pattern}", 100 * metrics.mean_ap, epoch)
            board.add_scalar(f"{split}/rank_1_pattern_{pattern}", 100 * metrics.rank(1), epoch)
        for name, picture in self.draw_pictures(self.tested).items():
            board.add_image(name, picture, epoch)

    def _save(self) -> None:
        """Write last.pth: all that `resume` needs. If it is not finite, the earlier one stays."""
        self.meter.flush()
        check_state(self.model, self.optimizer, self.world, self.progress.step)
        # Gather what the other processes know.
        states = self.world.gather_objects(random_states(self.device))
        unreadable = self.world.gather_objects(self.progress.unreadable)
        self.progress.unreadable = sorted(set().union(*unreadable))
        for board in (self.meter.board, self.evaluation_board):
            if board is not None:
                board.flush()  # a resumed run does not draw again what comes before its checkpoint
        if self.world.is_main:
            raw = {} if self.average is None else {"raw_model": self._held(self.model)}
            save_checkpoint(
                self.folder / "last.pth",
                model=self._held(self.tested),
                **raw,
                optimizer=self.optimizer.state_dict(),
                scaler=self.scaler.state_dict(),
                progress=asdict(self.progress),
                random=states,
                **self._description(),
            )

    def _held(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights of a model that checkpoints hold."""
        return held_entries(self._description(), model.state_dict(), self.frozen)

    def _description(self) -> dict[str, Any]:
        """What checkpoints say beside the weights."""
        trunk = {TRUNK_FILE: dict(self.trunk_file)} if self.trunk_file else {}
        return {"config": self.options.config, "data": self.options.data, **trunk}

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

    def _stopped(self) -> RunStopped:
        name = self.stop.signal.name if self.stop.signal else "a signal to another process"
        done = f"finished epochs: {self.progress.epoch}, steps of the next: {self.progress.steps_in_epoch}"
        message = f"stopped by {name}; everything is saved in {self.folder} ({done})"
        return RunStopped(message, 128 + (self.stop.signal or 15))


def _accuracy(output: ModelOutput, person_ids: Tensor) -> Tensor:
    """Share of the samples whose identity a head predicts, mean over heads."""
    hits = [(head.logits.argmax(dim=1) == person_ids).float().mean() for head in output.heads]
    return torch.stack(hits).mean()
