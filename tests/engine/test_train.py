import itertools
import json
import math
import signal
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor
from toy_training import ConstantSchedule, ToyLoader, cross_entropy, results

from config import load_config
from conftest import ToyModel
from engine.build import make_train_options
from engine.checkpoint import load_checkpoint, save_checkpoint
from engine.interrupt import RunStopped
from engine.meter import NonFiniteLossError, Reading, gradient_norm
from engine.train import Trainer, TrainOptions
from errors import UserError
from evaluation.result import EvaluationResult
from structures import ModalBatch, ModelOutput

BatchMaker = Callable[..., ModalBatch]


@pytest.fixture
def make_trainer(tmp_path: Path, toy_model: ToyModel, make_batch: BatchMaker) -> Callable[..., Trainer]:
    def make(
        options: TrainOptions,
        evaluate: Callable[..., dict[str, EvaluationResult]],
        criterion: Callable[[ModelOutput, Tensor], dict[str, Tensor]] = cross_entropy,
        lr: float = 0.5,
    ) -> Trainer:
        loader = ToyLoader([make_batch([0, 1, 2, 3], seed=seed) for seed in range(3)])
        optimizer = torch.optim.SGD([{"params": toy_model.parameters(), "lr": lr, "name": "all"}])
        return Trainer(
            model=toy_model,
            criterion=criterion,
            optimizer=optimizer,
            schedule=ConstantSchedule(),
            loader=loader,
            set_epoch=loader.set_epoch,
            evaluate=evaluate,
            device=torch.device("cpu"),
            folder=tmp_path,
            options=options,
        )

    return make


def test_training_lowers_the_loss_and_writes_what_it_promises(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer = make_trainer(TrainOptions(epochs=4, config="A: 1"), results(0.1, 0.4, 0.3, 0.2))
    last = trainer.run()
    assert last.main.mean_ap == 0.2

    epochs = json.loads((tmp_path / "metrics.json").read_text())["epochs"]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert [epoch["test"]["pattern_1"]["mAP"] for epoch in epochs] == [10.0, 40.0, 30.0, 20.0]

    best = torch.load(tmp_path / "best.pth", weights_only=True)
    final = torch.load(tmp_path / "last.pth", weights_only=True)
    assert (best["epoch"], best["config"], final["config"]) == (2, "A: 1", "A: 1")
    assert (final["progress"]["epoch"], final["progress"]["best_map"]) == (4, 0.4)
    assert torch.equal(final["model"]["linear.weight"], trainer.model.state_dict()["linear.weight"])
    assert not torch.equal(best["model"]["linear.weight"], final["model"]["linear.weight"])
    assert list((tmp_path / "tensorboard").iterdir())


def test_the_rate_may_change_with_every_step(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(TrainOptions(epochs=2, lr_per_step=True), results(0.1, 0.2))
    trainer.run()
    steps = len(trainer.loader)
    assert steps > 1
    expected = [step / steps for step in range(1, 2 * steps + 1)]
    assert trainer.schedule.epochs == pytest.approx(expected)  # type: ignore[attr-defined]


def test_periods(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    options = TrainOptions(epochs=5, eval_period=2, checkpoint_period=3)
    trainer = make_trainer(options, results(0.1, 0.2, 0.3))
    trainer.run()
    tested = [epoch["epoch"] for epoch in trainer.progress.epochs if "test" in epoch]
    assert tested == [2, 4, 5]
    assert [path.name for path in tmp_path.glob("epoch_*.pth")] == ["epoch_3.pth"]
    assert trainer.schedule.epochs == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(
    make_trainer: Callable[..., Trainer], tmp_path: Path, toy_model: ToyModel
) -> None:
    steps = []

    def turns_nan(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        steps.append(1)
        losses = cross_entropy(output, person_ids)
        return losses if len(steps) < 5 else {**losses, "ori/triplet": torch.tensor(math.nan)}

    trainer = make_trainer(TrainOptions(epochs=3), results(0.1, 0.2, 0.3), turns_nan)
    with pytest.raises(NonFiniteLossError) as caught:
        trainer.run()
    message = str(caught.value)
    assert "epoch 2, step 5" in message
    assert "ori/triplet nan" in message
    assert "000003.jpg" in message
    assert f"last good losses: ori/id {trainer._last_losses['ori/id']:.4g}" in message
    assert all(parameter.isfinite().all() for parameter in toy_model.parameters())
    assert torch.load(tmp_path / "last.pth", weights_only=True)["progress"]["epoch"] == 1


@pytest.mark.parametrize("clip_grad", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_stops_the_run_before_the_step(
    make_trainer: Callable[..., Trainer], toy_model: ToyModel, clip_grad: float
) -> None:
    before = toy_model.linear.weight.detach().clone()
    trainer = make_trainer(TrainOptions(epochs=1, clip_grad=clip_grad), results(0.1))
    toy_model.linear.weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFiniteLossError, match="the gradient is not finite in epoch 1, step 1: ori/id"):
        trainer.run()
    assert torch.equal(toy_model.linear.weight, before)


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_gradient_norm_is_that_of_torch(limit: float) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)]
    for layer in layers:
        layer.weight.grad = torch.arange(15.0).view(3, 5)  # the bias has no gradient
    ours, theirs = (layer.parameters() for layer in layers)
    norm = gradient_norm(ours, limit)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(theirs, limit or math.inf))
    torch.testing.assert_close(layers[0].weight.grad, layers[1].weight.grad)


def test_the_loss_is_read_between_the_backward_pass_and_the_step(
    make_trainer: Callable[..., Trainer],
    toy_model: ToyModel,
    make_batch: BatchMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Earlier, CUDA would run out of work; later, a loss that is not finite would spoil the weights."""
    events = []
    wait = Reading.wait

    def watched_wait(reading: Reading) -> dict[str, float]:
        events.append("read")
        return wait(reading)

    monkeypatch.setattr(Reading, "wait", watched_wait)
    trainer = make_trainer(TrainOptions(epochs=1), results(0.1))
    toy_model.linear.weight.register_hook(lambda gradient: events.append("backward"))
    trainer.optimizer.register_step_pre_hook(lambda *_: events.append("step"))
    trainer._train_step(make_batch([0, 1, 2, 3]), 1)
    assert events == ["backward", "read", "step"]


def test_clipping_bounds_the_step(make_trainer: Callable[..., Trainer], toy_model: ToyModel) -> None:
    def steep(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        return {"ori/id": 1e4 * cross_entropy(output, person_ids)["ori/id"]}

    before = torch.nn.utils.parameters_to_vector(toy_model.parameters()).detach().clone()
    trainer = make_trainer(TrainOptions(epochs=1, clip_grad=0.01), results(0.1), steep, lr=1.0)
    trainer.run()
    after = torch.nn.utils.parameters_to_vector(toy_model.parameters()).detach()
    assert 0 < (after - before).norm() <= 3 * 0.01 * 1.001  # three steps of at most 0.01
    assert trainer.progress.epochs[0]["gradient_norm"] > 1  # what is logged is the norm before clipping


def test_the_cpu_never_computes_in_half_precision(make_trainer: Callable[..., Trainer]) -> None:
    dtypes = set()

    def watch(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        dtypes.add(output.heads[0].logits.dtype)
        return cross_entropy(output, person_ids)

    make_trainer(TrainOptions(epochs=1, mixed_precision=True), results(0.1), watch).run()
    assert dtypes == {torch.float32}


def run_with_signal(trainer: Trainer, number: signal.Signals, at_step: int) -> None:
    """Send this process a signal in the middle of a step."""

    def send(module: torch.nn.Module, _: object) -> None:
        if module.training and trainer.progress.step + 1 == at_step:
            signal.raise_signal(number)

    handle = trainer.model.register_forward_pre_hook(send)
    try:
        trainer.run()
    finally:
        handle.remove()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
@pytest.mark.parametrize("at_step", [1, 3, 5])
@pytest.mark.parametrize(("lag", "ema_decay"), [(0, 0.0), (1, 0.0), (1, 0.9)])
def test_a_signal_finishes_the_step_and_saves_and_the_resumed_run_ends_the_same(
    make_trainer: Callable[..., Trainer],
    tmp_path: Path,
    toy_model: ToyModel,
    number: signal.Signals,
    at_step: int,
    lag: int,
    ema_decay: float,
) -> None:
    options = TrainOptions(epochs=3, ema_decay=ema_decay)
    initial = {name: value.clone() for name, value in toy_model.state_dict().items()}
    undisturbed = make_trainer(options, results(0.3, 0.1, 0.2))
    undisturbed.run()
    expected = {name: value.clone() for name, value in toy_model.state_dict().items()}

    toy_model.load_state_dict(initial)
    finished = (at_step - 1) // 3
    stopped = make_trainer(options, results(0.3, 0.1, 0.2))
    stopped.lag = lag  # as on CUDA
    with pytest.raises(RunStopped, match=f"stopped by {number.name}; .*epochs: {finished}") as caught:
        run_with_signal(stopped, number, at_step)
    assert caught.value.status == 128 + number
    assert stopped.progress.step == at_step
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    toy_model.load_state_dict(initial)
    resumed = make_trainer(options, results(*(0.3, 0.1, 0.2)[finished:]))
    resumed.lag = lag
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    resumed.run()
    assert all(torch.equal(expected[name], value) for name, value in toy_model.state_dict().items())
    average = undisturbed.tested.state_dict()
    assert all(torch.equal(average[name], value) for name, value in resumed.tested.state_dict().items())
    assert resumed.progress.epochs == undisturbed.progress.epochs
    assert resumed.progress.best_map == 0.3


def test_a_finished_run_that_is_resumed_is_only_evaluated(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    options = TrainOptions(epochs=1)
    make_trainer(options, results(0.1)).run()
    before = (tmp_path / "last.pth").read_bytes()
    resumed = make_trainer(options, results(0.1))
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    assert resumed.run().main.mean_ap == 0.1
    assert (tmp_path / "last.pth").read_bytes() == before
    assert len(resumed.progress.epochs) == 1


def test_a_failing_evaluation_does_not_cost_the_epoch(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> dict[str, EvaluationResult]:
        raise UserError("a test image is broken")

    with pytest.raises(UserError, match="broken"):
        make_trainer(TrainOptions(epochs=2), fail).run()
    progress = load_checkpoint(tmp_path / "last.pth")["progress"]
    assert (progress["epoch"], progress["steps_in_epoch"]) == (0, 3)


def test_forced_settings_of_the_optimiser_win_over_the_checkpoint(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    make_trainer(TrainOptions(epochs=1), results(0.1), lr=0.5).run()
    changed = make_trainer(TrainOptions(epochs=2), results(0.1), lr=0.25)
    content = load_checkpoint(tmp_path / "last.pth")
    content["optimizer"]["param_groups"][0]["lr_scale"] = 3.0  # of a proportional warm-up, switched off since
    changed.resume(content)
    assert changed.optimizer.param_groups[0]["lr"] == 0.25
    assert "lr_scale" not in changed.optimizer.param_groups[0]


def test_a_checkpoint_with_other_parameter_groups_is_refused(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    make_trainer(TrainOptions(epochs=1), results(0.1)).run()
    content = load_checkpoint(tmp_path / "last.pth")
    (group,) = content["optimizer"]["param_groups"]
    content["optimizer"]["param_groups"] = [{**group, "params": [0]}, {**group, "params": [1]}]
    with pytest.raises(UserError, match=r"optimizer\.param_groups cannot be used"):
        make_trainer(TrainOptions(epochs=1), results(0.1)).resume(content)


def test_a_run_of_the_plain_optimiser_goes_on_with_the_fused_one(
    make_trainer: Callable[..., Trainer], tmp_path: Path, toy_model: ToyModel
) -> None:
    """Checkpoints of earlier versions have the steps of Adam on the host and know no fused kernels."""
    options: dict[str, Any] = {"lr": 0.1, "name": "all", "params": list(toy_model.parameters())}
    plain = make_trainer(TrainOptions(epochs=1), results(0.1))
    plain.optimizer = torch.optim.Adam([dict(options)])
    plain.run()
    fused = make_trainer(TrainOptions(epochs=2), results(0.1))
    fused.optimizer = torch.optim.Adam([dict(options)], fused=True)
    fused.resume(load_checkpoint(tmp_path / "last.pth"))
    assert fused.optimizer.param_groups[0]["fused"] is True
    fused.run()
    assert {state["step"].item() for state in fused.optimizer.state.values()} == {6.0}


def test_a_checkpoint_of_another_model_is_refused(
    make_trainer: Callable[..., Trainer], tmp_path: Path, toy_model: ToyModel
) -> None:
    make_trainer(TrainOptions(epochs=1), results(0.1)).run()
    content = load_checkpoint(tmp_path / "last.pth")
    content["model"]["linear.weight"] = torch.zeros(9, 9)
    with pytest.raises(UserError, match=r"does not fit this configuration: model.linear.weight has shape"):
        make_trainer(TrainOptions(epochs=1), results(0.1)).resume(content)


def test_the_average_of_the_weights_is_evaluated_and_kept(
    make_trainer: Callable[..., Trainer],
    tmp_path: Path,
    toy_model: ToyModel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By hand: the first step is copied, and the decay is min(0.5, 1 - t^(-2/3)) at step t."""
    steps: list[Tensor] = []
    evaluated: list[Tensor] = []
    scores = results(0.1, 0.2)

    def evaluate(model: ToyModel, check_stop: Callable[[], None]) -> dict[str, EvaluationResult]:
        evaluated.append(model.linear.weight.detach().clone())
        return scores(model, check_stop)

    trainer = make_trainer(TrainOptions(epochs=2, ema_decay=0.5), evaluate)
    trainer.optimizer.register_step_post_hook(
        lambda *_: steps.append(toy_model.linear.weight.detach().clone())
    )
    with caplog.at_level("INFO"):
        trainer.run()
    expected = steps[0]
    for t, weight in enumerate(steps[1:], start=2):
        decay = min(0.5, 1 - t ** (-2 / 3))
        expected = decay * expected + (1 - decay) * weight
        if t == 3:
            torch.testing.assert_close(evaluated[0], expected)
    torch.testing.assert_close(evaluated[1], expected)
    last, best = (torch.load(tmp_path / f"{name}.pth", weights_only=True) for name in ("last", "best"))
    assert torch.equal(last["model"]["linear.weight"], evaluated[1])
    assert torch.equal(best["model"]["linear.weight"], evaluated[1])
    assert torch.equal(last["raw_model"]["linear.weight"], steps[-1])
    assert "raw_model" not in best
    assert "evaluated and kept: the moving average of the weights (SOLVER.EMA_DECAY 0.5)" in caplog.text


def test_an_average_needs_a_checkpoint_that_holds_one(
    make_trainer: Callable[..., Trainer], tmp_path: Path, toy_model: ToyModel
) -> None:
    make_trainer(TrainOptions(epochs=1), results(0.1)).run()
    content = load_checkpoint(tmp_path / "last.pth")
    assert "raw_model" not in content
    with pytest.raises(UserError, match=r"EMA_DECAY is on, but the checkpoint holds no average"):
        make_trainer(TrainOptions(epochs=2, ema_decay=0.5), results(0.1)).resume(content)
    # Without an average, training goes on from the weights that were trained.
    make_trainer(TrainOptions(epochs=1, ema_decay=0.5), results(0.1)).run()
    trained = toy_model.linear.weight.detach().clone()
    content = load_checkpoint(tmp_path / "last.pth")
    toy_model.linear.weight.data.zero_()
    make_trainer(TrainOptions(epochs=2), results(0.1)).resume(content)
    assert torch.equal(toy_model.linear.weight, trained)
    content["raw_model"]["linear.weight"] = torch.zeros(9, 9)
    with pytest.raises(UserError, match=r"raw_model\.linear\.weight has shape \(9, 9\)"):
        make_trainer(TrainOptions(epochs=2, ema_decay=0.5), results(0.1)).resume(content)


def use_mixed_precision(trainer: Trainer) -> None:
    """As on CUDA, where the gradient norm is read a step later."""
    trainer.lag = 1
    trainer.mixed_precision = True
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)


def overflow(toy_model: ToyModel, *steps: int) -> None:
    """Make the gradient infinite in these steps, counted from 1."""
    count = itertools.count(1)
    hook = toy_model.linear.weight.register_hook
    hook(lambda gradient: gradient * math.inf if next(count) in steps else gradient)


def test_steps_that_mixed_precision_leaves_out_have_no_gradient_norm(
    make_trainer: Callable[..., Trainer], toy_model: ToyModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Their norm would spoil the mean and the JSON; many of them are worth a warning."""
    trainer = make_trainer(TrainOptions(epochs=2), results(0.1, 0.2))
    use_mixed_precision(trainer)
    overflow(toy_model, 1, 3)
    trainer.run()
    first, second = trainer.progress.epochs
    assert first["skipped_steps"] == pytest.approx(2 / 3)
    assert math.isfinite(first["gradient_norm"])
    assert "skipped_steps" not in second
    assert "epoch 1: mixed precision skipped 2 of 3 steps" in caplog.text
    assert "epoch 2: mixed precision" not in caplog.text


def test_an_epoch_without_a_step_stops_the_run_and_keeps_what_was_saved(
    make_trainer: Callable[..., Trainer], toy_model: ToyModel, tmp_path: Path
) -> None:
    trainer = make_trainer(TrainOptions(epochs=3), results(0.1, 0.2, 0.3))
    use_mixed_precision(trainer)
    overflow(toy_model, 4, 5, 6)
    message = r"no step of epoch 2 was taken: .* all its steps overflowed .*last\.pth is kept as it was"
    with pytest.raises(NonFiniteLossError, match=message):
        trainer.run()
    assert load_checkpoint(tmp_path / "last.pth")["progress"]["epoch"] == 1


class SavedFiles:
    """What the run folder holds when the second epoch begins."""

    def __init__(self, trainer: Trainer) -> None:
        self.folder = trainer.folder
        self.set_epoch = trainer.set_epoch
        trainer.set_epoch = self.remember

    def read(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.glob("*.*")}

    def remember(self, epoch: int, first_batch: int) -> None:
        self.set_epoch(epoch, first_batch)
        if epoch == 2:
            self.before = self.read()


@pytest.mark.parametrize(("bad_step", "what"), [(5, "loss"), (6, "gradient")])
def test_an_infinite_gradient_that_is_read_late_stops_the_run_before_anything_is_saved(
    make_trainer: Callable[..., Trainer], toy_model: ToyModel, bad_step: int, what: str
) -> None:
    """The order of CUDA without mixed precision, in the middle of an epoch and in its last step."""
    trainer = make_trainer(TrainOptions(epochs=3, checkpoint_period=1), results(0.1, 0.2, 0.3))
    trainer.lag = 1
    files = SavedFiles(trainer)
    overflow(toy_model, bad_step)
    message = rf"the {what} is not finite in epoch 2, step 6: .* images: 000000\.jpg"
    with pytest.raises(NonFiniteLossError, match=message):
        trainer.run()
    assert not toy_model.linear.weight.isfinite().all()  # the step was taken, and nobody saw it yet
    assert files.read() == files.before
    assert set(files.before) == {"last.pth", "best.pth", "epoch_1.pth", "metrics.json", ".run_files.json"}


@pytest.mark.parametrize("what", ["the weights are", "the state of the optimiser is"])
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("eval_period", [1, 3])
def test_a_good_checkpoint_is_never_overwritten_by_one_that_is_not_finite(
    make_trainer: Callable[..., Trainer], toy_model: ToyModel, what: str, stopped: bool, eval_period: int
) -> None:
    """The loss and its gradient are finite, and the step overflows all the same."""
    options = TrainOptions(epochs=3, checkpoint_period=1, eval_period=eval_period)
    trainer = make_trainer(options, results(0.1, 0.2, 0.3))
    trainer.optimizer = torch.optim.Adam([{"params": toy_model.parameters(), "lr": 0.1, "name": "all"}])
    files = SavedFiles(trainer)

    def spoil(*_: object) -> None:
        if trainer.progress.step == 5:
            moments = trainer.optimizer.state[toy_model.linear.bias]
            spoiled = toy_model.linear.bias.data if what == "the weights are" else moments["exp_avg_sq"]
            spoiled[0] = math.inf
            if stopped:
                signal.raise_signal(signal.SIGTERM)

    trainer.optimizer.register_step_post_hook(spoil)
    message = (
        rf"{what} not finite .* after step 6; .*last\.pth is kept as it was, and --resume --force continues"
    )
    with pytest.raises(NonFiniteLossError, match=message):
        trainer.run()
    assert files.read() == files.before
    toy_model.linear.bias.data.zero_()
    resumed = make_trainer(options, results(0.2, 0.3))
    resumed.optimizer = torch.optim.Adam([{"params": toy_model.parameters(), "lr": 0.1, "name": "all"}])
    resumed.resume(load_checkpoint(trainer.folder / "last.pth"))
    resumed.run()


def test_without_a_checkpoint_the_message_says_so(
    make_trainer: Callable[..., Trainer], toy_model: ToyModel, tmp_path: Path
) -> None:
    trainer = make_trainer(TrainOptions(epochs=1), results(0.1))

    def spoil(*_: object) -> None:
        if trainer.progress.step == 2:
            toy_model.linear.weight.data.fill_(math.nan)

    trainer.optimizer.register_step_post_hook(spoil)
    with pytest.raises(NonFiniteLossError, match=r"after step 3; lower SOLVER.*; nothing has been saved yet"):
        trainer.run()
    assert not (tmp_path / "last.pth").exists()


def points(folder: Path) -> dict[str, list[int]]:
    """The steps of every curve and picture that TensorBoard shows of a folder."""
    shown = EventAccumulator(str(folder), purge_orphaned_data=True)
    shown.Reload()
    scalars = {tag: [point.step for point in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
    return scalars | {tag: [picture.step for picture in shown.Images(tag)] for tag in shown.Tags()["images"]}


@pytest.mark.parametrize("moment", ["_evaluate_epoch", "_show_evaluation", "_train_step", "first step"])
def test_tensorboard_shows_every_point_once_after_a_run_died_and_was_resumed(
    make_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    options = TrainOptions(epochs=3)

    def make(*scores: float) -> Trainer:
        trainer = make_trainer(options, results(*scores))
        trainer.draw_pictures = lambda model: {"kept": torch.zeros(3, 2, 2)}
        return trainer

    def die(*_: object) -> None:
        (last_epoch, step) = (trainer.progress.epoch, trainer.progress.step)
        if (last_epoch, step) == ((0, 1) if moment == "first step" else (1, 5 if "train" in moment else 6)):
            raise OSError("the machine is gone")

    trainer = make(0.1, 0.2, 0.3)
    name = "_train_step" if moment == "first step" else moment
    usual = getattr(trainer, name)

    def dies_after(*args: Any) -> Any:
        found = usual(*args)
        die()
        return found

    monkeypatch.setattr(trainer, name, dies_after)
    with pytest.raises(OSError, match="the machine is gone"):
        trainer.run()
    left = () if moment == "first step" else (0.2, 0.3)
    resumed = make(*(left or (0.1, 0.2, 0.3)))
    if left:
        resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    resumed.run()
    again = make(0.3)  # a finished run is scored again, and draws nothing
    again.resume(load_checkpoint(tmp_path / "last.pth"))
    again.run()

    steps = points(tmp_path / "tensorboard")
    assert steps.keys() >= {"train/loss", "train/gradient_norm", "lr/all"}
    assert all(found == [1, 2, 3, 4, 5, 6, 7, 8, 9] for found in steps.values()), steps
    epochs = points(tmp_path / "tensorboard" / "evaluation")
    assert epochs.keys() == {"test/mAP_pattern_1", "test/rank_1_pattern_1", "kept"}
    assert all(found == [1, 2, 3] for found in epochs.values()), epochs


def test_points_are_on_disk_before_the_checkpoint_that_counts_them(
    make_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed right after it has nothing left to draw."""
    shown = []
    write = RecordWriter.write

    def write_slowly(writer: RecordWriter, record: bytes) -> None:
        time.sleep(0.01)
        write(writer, record)

    monkeypatch.setattr(RecordWriter, "write", write_slowly)

    def save(path: Path, **content: Any) -> None:
        save_checkpoint(path, **content)
        if path.name == "last.pth":
            boards = (tmp_path / "tensorboard", tmp_path / "tensorboard" / "evaluation")
            curves = [points(board) for board in boards]
            shown.append([curves[0]["train/loss"], curves[1].get("test/mAP_pattern_1", [])])

    monkeypatch.setattr("engine.train.save_checkpoint", save)
    make_trainer(TrainOptions(epochs=1), results(0.1)).run()
    assert shown == [[[1, 2, 3], []], [[1, 2, 3], [1]]]


def test_what_a_run_was_computed_with_is_kept_and_a_change_is_named(
    make_trainer: Callable[..., Trainer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(TrainOptions(epochs=1), results(0.1)).run()
    (environment,) = load_checkpoint(tmp_path / "last.pth")["progress"]["environments"]
    assert environment == {
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "processor": environment["processor"],
        "device": "cpu",
        "processes": 1,
    }
    assert environment["processor"]
    resumed = make_trainer(TrainOptions(epochs=2), results(0.2))
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    assert "something else" not in caplog.text

    now = {**environment, "threads": 7, "torch": "1.0"}
    changed = make_trainer(TrainOptions(epochs=2), results(0.2))
    changed.environment = now
    changed.resume(load_checkpoint(tmp_path / "last.pth"))
    named = f"(threads {torch.get_num_threads()} → 7, torch {torch.__version__} → 1.0)"
    assert f"the run continues in another environment {named}" in caplog.text
    changed.run()
    assert json.loads((tmp_path / "metrics.json").read_text())["environments"] == [environment, now]


def test_a_checkpoint_that_does_not_say_what_it_was_computed_with_is_resumed(
    make_trainer: Callable[..., Trainer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As earlier versions have written it."""
    make_trainer(TrainOptions(epochs=1), results(0.1)).run()
    content = load_checkpoint(tmp_path / "last.pth")
    del content["progress"]["environments"]
    resumed = make_trainer(TrainOptions(epochs=2), results(0.2))
    resumed.resume(content)
    resumed.run()
    assert "something else" not in caplog.text
    assert resumed.progress.environments == [resumed.environment]


def test_images_that_were_replaced_are_listed_once_at_the_end(
    make_trainer: Callable[..., Trainer], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(TrainOptions(epochs=2), results(0.1, 0.2))
    batches = trainer.loader.batches  # type: ignore[attr-defined]
    batches[1] = replace(batches[1], unreadable=("a.jpg (NI): truncated",))
    trainer.run()
    assert "unreadable training images: 1\n  a.jpg (NI): truncated" in caplog.text


def test_a_run_that_stops_at_the_end_of_a_long_epoch_is_resumed(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    """The number of batches differs from epoch to epoch."""

    def lengthen(trainer: Trainer) -> None:
        loader = trainer.loader
        assert isinstance(loader, ToyLoader)
        batches, plain = loader.batches, loader.set_epoch

        def set_epoch(epoch: int, first_batch: int) -> None:
            loader.batches = batches[:2] if epoch == 1 else batches
            plain(epoch, first_batch)

        trainer.set_epoch = set_epoch
        loader.batches = batches[:2]

    options = TrainOptions(epochs=2)
    stopped = make_trainer(options, results(0.1, 0.2))
    lengthen(stopped)
    with pytest.raises(RunStopped):
        run_with_signal(stopped, signal.SIGTERM, 5)  # the third and last step of the second epoch
    resumed = make_trainer(options, results(0.2))
    lengthen(resumed)
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    resumed.run()
    assert resumed.progress.step == 5


def test_a_signal_that_follows_the_first_does_not_end_the_save(
    make_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(TrainOptions(epochs=3), results(0.1, 0.2))
    save = trainer._save

    def save_under_fire() -> None:
        if trainer.stop.signal is not None:
            signal.raise_signal(signal.SIGTERM)
        save()

    monkeypatch.setattr(trainer, "_save", save_under_fire)
    with pytest.raises(RunStopped):
        run_with_signal(trainer, signal.SIGTERM, 2)
    assert load_checkpoint(tmp_path / "last.pth")["progress"]["step"] == 2


def test_the_type_of_mixed_precision() -> None:
    options = make_train_options(load_config(None, ["SOLVER.AMP_DTYPE", "bfloat16"]))
    assert (options.mixed_precision, options.half) == (True, torch.bfloat16)
    assert make_train_options(load_config(None)).half == torch.float16


@pytest.mark.parametrize(("half", "is_scaled"), [(torch.float16, True), (torch.bfloat16, False)])
def test_only_float16_is_scaled_on_cuda(
    half: torch.dtype, is_scaled: bool, make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def scaler(device: str, *, enabled: bool) -> Any:
        asked.append((device, enabled))
        return types.SimpleNamespace(is_enabled=lambda: enabled)

    trainer = make_trainer(TrainOptions(epochs=1, half=half), results(0.1))
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    monkeypatch.setattr(trainer, "device", torch.device("cuda"))
    monkeypatch.setattr("engine.train.describe_environment", lambda *_: {})
    trainer.__post_init__()
    assert asked == [("cuda", is_scaled)]
    assert trainer.mixed_precision
