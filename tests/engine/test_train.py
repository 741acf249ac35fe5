import json
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_training import ConstantSchedule, ToyLoader, cross_entropy, results

from conftest import ToyModel
from engine.checkpoint import load_checkpoint
from engine.interrupt import RunStopped
from engine.meter import Reading
from engine.results import EvaluationResult
from engine.run_state import TrainSettings
from engine.train import NonFiniteLossError, Trainer, gradient_norm
from structures import ModalBatch, ModelOutput, UserError

BatchMaker = Callable[..., ModalBatch]


@pytest.fixture
def make_trainer(tmp_path: Path, toy_model: ToyModel, make_batch: BatchMaker) -> Callable[..., Trainer]:
    def make(
        settings: TrainSettings,
        evaluate: Callable[[Callable[[], None]], EvaluationResult],
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
            settings=settings,
        )

    return make


def test_training_lowers_the_loss_and_writes_what_it_promises(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer = make_trainer(TrainSettings(epochs=4, config="A: 1"), results(0.1, 0.4, 0.3, 0.2))
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


def test_periods(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    settings = TrainSettings(epochs=5, eval_period=2, checkpoint_period=3)
    trainer = make_trainer(settings, results(0.1, 0.2, 0.3))
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

    trainer = make_trainer(TrainSettings(epochs=3), results(0.1, 0.2, 0.3), turns_nan)
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
    trainer = make_trainer(TrainSettings(epochs=1, clip_grad=clip_grad), results(0.1))
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
    trainer = make_trainer(TrainSettings(epochs=1), results(0.1))
    toy_model.linear.weight.register_hook(lambda gradient: events.append("backward"))
    trainer.optimizer.register_step_pre_hook(lambda *_: events.append("step"))
    trainer._train_step(make_batch([0, 1, 2, 3]), 1)
    assert events == ["backward", "read", "step"]


def test_clipping_bounds_the_step(make_trainer: Callable[..., Trainer], toy_model: ToyModel) -> None:
    def steep(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        return {"ori/id": 1e4 * cross_entropy(output, person_ids)["ori/id"]}

    before = torch.nn.utils.parameters_to_vector(toy_model.parameters()).detach().clone()
    trainer = make_trainer(TrainSettings(epochs=1, clip_grad=0.01), results(0.1), steep, lr=1.0)
    trainer.run()
    after = torch.nn.utils.parameters_to_vector(toy_model.parameters()).detach()
    assert 0 < (after - before).norm() <= 3 * 0.01 * 1.001  # three steps of at most 0.01
    assert trainer.progress.epochs[0]["gradient_norm"] > 1  # what is logged is the norm before clipping


def test_the_cpu_never_computes_in_half_precision(make_trainer: Callable[..., Trainer]) -> None:
    dtypes = set()

    def watch(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        dtypes.add(output.heads[0].logits.dtype)
        return cross_entropy(output, person_ids)

    make_trainer(TrainSettings(epochs=1, mixed_precision=True), results(0.1), watch).run()
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
@pytest.mark.parametrize("lag", [0, 1])
def test_a_signal_finishes_the_step_and_saves_and_the_resumed_run_ends_the_same(
    make_trainer: Callable[..., Trainer],
    tmp_path: Path,
    toy_model: ToyModel,
    number: signal.Signals,
    at_step: int,
    lag: int,
) -> None:
    settings = TrainSettings(epochs=3)
    initial = {name: value.clone() for name, value in toy_model.state_dict().items()}
    undisturbed = make_trainer(settings, results(0.3, 0.1, 0.2))
    undisturbed.run()
    expected = {name: value.clone() for name, value in toy_model.state_dict().items()}

    toy_model.load_state_dict(initial)
    finished = (at_step - 1) // 3
    stopped = make_trainer(settings, results(0.3, 0.1, 0.2))
    stopped.lag = lag  # as on CUDA
    with pytest.raises(RunStopped, match=rf"stopped by {number.name} after {finished} epochs") as caught:
        run_with_signal(stopped, number, at_step)
    assert caught.value.status == 128 + number
    assert stopped.progress.step == at_step
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    toy_model.load_state_dict(initial)
    resumed = make_trainer(settings, results(*(0.3, 0.1, 0.2)[finished:]))
    resumed.lag = lag
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    resumed.run()
    assert all(torch.equal(expected[name], value) for name, value in toy_model.state_dict().items())
    assert resumed.progress.epochs == undisturbed.progress.epochs
    assert resumed.progress.best_map == 0.3


def test_a_finished_run_that_is_resumed_is_only_evaluated(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    settings = TrainSettings(epochs=1)
    make_trainer(settings, results(0.1)).run()
    before = (tmp_path / "last.pth").read_bytes()
    resumed = make_trainer(settings, results(0.1))
    resumed.resume(load_checkpoint(tmp_path / "last.pth"))
    assert resumed.run().main.mean_ap == 0.1
    assert (tmp_path / "last.pth").read_bytes() == before
    assert len(resumed.progress.epochs) == 1


def test_a_failing_evaluation_does_not_cost_the_epoch(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    def fail(_: Callable[[], None]) -> EvaluationResult:
        raise UserError("a test image is broken")

    with pytest.raises(UserError, match="broken"):
        make_trainer(TrainSettings(epochs=2), fail).run()
    progress = load_checkpoint(tmp_path / "last.pth")["progress"]
    assert (progress["epoch"], progress["steps_in_epoch"]) == (0, 3)


def test_forced_settings_of_the_optimiser_win_over_the_checkpoint(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    make_trainer(TrainSettings(epochs=1), results(0.1), lr=0.5).run()
    changed = make_trainer(TrainSettings(epochs=2), results(0.1), lr=0.25)
    content = load_checkpoint(tmp_path / "last.pth")
    content["optimizer"]["param_groups"][0]["lr_scale"] = 3.0  # of a proportional warm-up, switched off since
    changed.resume(content)
    assert changed.optimizer.param_groups[0]["lr"] == 0.25
    assert "lr_scale" not in changed.optimizer.param_groups[0]


def test_a_checkpoint_with_other_parameter_groups_is_refused(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    make_trainer(TrainSettings(epochs=1), results(0.1)).run()
    content = load_checkpoint(tmp_path / "last.pth")
    (group,) = content["optimizer"]["param_groups"]
    content["optimizer"]["param_groups"] = [{**group, "params": [0]}, {**group, "params": [1]}]
    with pytest.raises(UserError, match=r"the optimiser of the checkpoint has other groups of parameters"):
        make_trainer(TrainSettings(epochs=1), results(0.1)).resume(content)


def test_a_run_of_the_plain_optimiser_goes_on_with_the_fused_one(
    make_trainer: Callable[..., Trainer], tmp_path: Path, toy_model: ToyModel
) -> None:
    """Checkpoints of earlier versions have the steps of Adam on the host and know no fused kernels."""
    options: dict[str, Any] = {"lr": 0.1, "name": "all", "params": list(toy_model.parameters())}
    plain = make_trainer(TrainSettings(epochs=1), results(0.1))
    plain.optimizer = torch.optim.Adam([dict(options)])
    plain.run()
    fused = make_trainer(TrainSettings(epochs=2), results(0.1))
    fused.optimizer = torch.optim.Adam([dict(options)], fused=True)
    fused.resume(load_checkpoint(tmp_path / "last.pth"))
    assert fused.optimizer.param_groups[0]["fused"] is True
    fused.run()
    assert {state["step"].item() for state in fused.optimizer.state.values()} == {6.0}


def test_a_checkpoint_of_another_model_is_refused(
    make_trainer: Callable[..., Trainer], tmp_path: Path, toy_model: ToyModel
) -> None:
    make_trainer(TrainSettings(epochs=1), results(0.1)).run()
    content = load_checkpoint(tmp_path / "last.pth")
    content["model"]["linear.weight"] = torch.zeros(9, 9)
    with pytest.raises(UserError, match=r"does not fit the model of this configuration: .*linear"):
        make_trainer(TrainSettings(epochs=1), results(0.1)).resume(content)


def test_steps_with_overflowing_gradients_have_no_gradient_norm(
    make_trainer: Callable[..., Trainer], toy_model: ToyModel
) -> None:
    """Mixed precision meets such steps and leaves them out; their norm would spoil the mean and the JSON."""
    trainer = make_trainer(TrainSettings(epochs=1), results(0.1), lr=0.0)
    trainer.lag = 1  # as on CUDA
    toy_model.linear.weight.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
    trainer.optimizer.register_step_pre_hook(lambda optimizer, *_: optimizer.zero_grad())
    trainer.run()
    assert trainer.progress.epochs[0]["skipped_steps"] == 1.0
    assert "gradient_norm" not in trainer.progress.epochs[0]


def test_images_that_were_replaced_are_listed_once_at_the_end(
    make_trainer: Callable[..., Trainer], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(TrainSettings(epochs=2), results(0.1, 0.2))
    batches = trainer.loader.batches  # type: ignore[attr-defined]
    batches[1] = replace(batches[1], unreadable=("a.jpg (NI): truncated",))
    trainer.run()
    assert "1 training images could not be read:\n  a.jpg (NI): truncated" in caplog.text
