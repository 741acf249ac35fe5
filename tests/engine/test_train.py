import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import ToyModel
from engine.evaluate import EvaluationResult
from engine.train import NonFiniteLossError, Trainer, TrainSettings
from structures import ModalBatch, ModelOutput, RankingMetrics

BatchMaker = Callable[..., ModalBatch]


class ConstantSchedule:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def step(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def state_dict(self) -> dict[str, int]:
        return {}


def cross_entropy(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
    return {"ori/id": F.cross_entropy(output.heads[0].logits, person_ids)}


def results(*mean_aps: float) -> Callable[[], EvaluationResult]:
    """An evaluation that gives these scores one after the other."""
    metrics = [RankingMetrics(value, np.array([value]), 1) for value in mean_aps]
    iterator = iter(metrics)
    return lambda: EvaluationResult({1: next(iterator)}, None, 1, 0.0)


@pytest.fixture
def make_trainer(tmp_path: Path, toy_model: ToyModel, make_batch: BatchMaker) -> Callable[..., Trainer]:
    def make(
        settings: TrainSettings,
        evaluate: Callable[[], EvaluationResult],
        criterion: Callable[[ModelOutput, Tensor], dict[str, Tensor]] = cross_entropy,
        lr: float = 0.5,
    ) -> Trainer:
        optimizer = torch.optim.SGD([{"params": toy_model.parameters(), "lr": lr, "name": "all"}])
        return Trainer(
            model=toy_model,
            criterion=criterion,
            optimizer=optimizer,
            schedule=ConstantSchedule(),
            loader=[make_batch([0, 1, 2, 3], seed=seed) for seed in range(3)],
            set_epoch=lambda epoch: None,
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
    assert (best["epoch"], final["epoch"], final["best_map"], final["config"]) == (2, 4, 0.4, "A: 1")
    assert torch.equal(final["model"]["linear.weight"], trainer.model.state_dict()["linear.weight"])
    assert not torch.equal(best["model"]["linear.weight"], final["model"]["linear.weight"])
    assert list((tmp_path / "tensorboard").iterdir())


def test_periods(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    settings = TrainSettings(epochs=5, eval_period=2, checkpoint_period=3)
    trainer = make_trainer(settings, results(0.1, 0.2, 0.3))
    trainer.run()
    tested = [epoch["epoch"] for epoch in trainer.metrics["epochs"] if "test" in epoch]
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
    assert torch.load(tmp_path / "last.pth", weights_only=True)["epoch"] == 1


def test_clipping_bounds_the_step(make_trainer: Callable[..., Trainer], toy_model: ToyModel) -> None:
    def steep(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        return {"ori/id": 1e4 * cross_entropy(output, person_ids)["ori/id"]}

    before = torch.nn.utils.parameters_to_vector(toy_model.parameters()).detach().clone()
    trainer = make_trainer(TrainSettings(epochs=1, clip_grad=0.01), results(0.1), steep, lr=1.0)
    trainer.run()
    after = torch.nn.utils.parameters_to_vector(toy_model.parameters()).detach()
    assert 0 < (after - before).norm() <= 3 * 0.01 * 1.001  # three steps of at most 0.01
    assert trainer.metrics["epochs"][0]["gradient_norm"] > 1  # what is logged is the norm before clipping


def test_the_cpu_never_computes_in_half_precision(make_trainer: Callable[..., Trainer]) -> None:
    dtypes = set()

    def watch(output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        dtypes.add(output.heads[0].logits.dtype)
        return cross_entropy(output, person_ids)

    make_trainer(TrainSettings(epochs=1, mixed_precision=True), results(0.1), watch).run()
    assert dtypes == {torch.float32}
