"""Numbers come to the host late, and none is lost."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from config import load_config
from conftest import SMALL_MODEL, ToyModel
from engine.checkpoint import Progress
from engine.distributed import World
from engine.meter import Meter, NonFiniteLossError, Reading, Step, check_state, find_non_finite
from engine.train import Trainer, TrainOptions
from evaluation.result import EvaluationResult
from modeling.make_model import make_model
from solver.build import make_criterion, make_optimizer, make_schedule
from structures import ModalBatch

NORMS = (3.0, math.inf, 5.0)


class ToyBoard:
    def __init__(self) -> None:
        self.points: dict[tuple[str, int], float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert (tag, step) not in self.points
        self.points[tag, step] = value


def measured(lag: int, *, mixed_precision: bool = True) -> Meter:
    """A meter after three steps, the second of which overflowed."""
    board: Any = ToyBoard()
    progress = Progress(epoch=1, step=10)
    meter = Meter(progress, 3, board, lag, mixed_precision)
    meter.begin_epoch(3, {"heads + backbone": 0.5})
    for loss, norm in zip((1.0, 2.0, 6.0), NORMS, strict=True):
        step = Step(1, progress.step + 1, {"loss": loss}, {}, accuracy=0.5, images=())
        meter.record_step(step, Reading({"gradient_norm": torch.tensor(norm)}), num_images=12)
    return meter


def test_a_reading_gives_the_numbers_by_name() -> None:
    scalars = {"a": torch.tensor(0.1, requires_grad=True), "b": torch.tensor(2)}
    assert Reading(scalars).wait() == {"a": torch.tensor(0.1).item(), "b": 2.0}


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_every_number_ends_in_the_sums_and_in_tensorboard_at_its_own_step(lag: int) -> None:
    meter = measured(lag)
    meter.flush()
    meter.flush()  # nothing is counted twice
    assert meter.progress.sums == {
        "loss": 9.0,
        "accuracy": 1.5,
        "gradient_norm": 8.0,
        "skipped_steps": 1.0,
    }
    assert meter.means()["loss"] == 3.0
    points = meter.board.points  # type: ignore[union-attr]
    assert [points["train/loss", step] for step in (11, 12, 13)] == [1.0, 2.0, 6.0]
    assert {key: value for key, value in points.items() if key[0] == "train/gradient_norm"} == {
        ("train/gradient_norm", 11): 3.0,
        ("train/gradient_norm", 13): 5.0,
    }
    assert points["train/skipped_steps", 12] == 1.0
    assert points["lr/heads_backbone", 13] == 0.5


def test_a_norm_that_is_still_on_its_way_does_not_spoil_the_mean() -> None:
    assert measured(lag=0).details() == "gradient 2.67 lr heads + backbone 5.00e-01"
    assert measured(lag=1).details() == "gradient 1.50 lr heads + backbone 5.00e-01"


@pytest.mark.parametrize("lag", [0, 1])
def test_without_mixed_precision_a_norm_that_is_not_finite_ends_the_run_when_it_is_read(lag: int) -> None:
    with pytest.raises(NonFiniteLossError, match="the gradient is not finite in epoch 1, step 12: loss 2"):
        measured(lag, mixed_precision=False)


def test_the_remaining_time_does_not_wrap_at_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    meter = measured(lag=0)
    meter.epochs = 7  # 21 steps, of which 8 are left
    monkeypatch.setattr("time.perf_counter", lambda: 3 * 36000.0)
    assert str(meter.remaining()) == "3 days, 8:00:00"


class Questions(TorchDispatchMode):
    """Notes the operations for whose result the host must wait on CUDA."""

    KINDS = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "equal",
        "_unique2",
        "repeat_interleave.Tensor",
    )

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(function).removeprefix("aten.")
        by_mask = name.startswith(("index.", "index_put")) and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if by_mask or name.startswith(self.KINDS):
            self.asked.append(name)
        return function(*args, **(kwargs or {}))


def test_questions_are_noticed() -> None:
    numbers = torch.tensor([1.0, 2.0])
    with Questions() as questions:
        numbers.sum().item()
        numbers[numbers > 1]
        if numbers.all():
            numbers.max()
    kinds = [name.partition(".")[0] for name in questions.asked]
    assert kinds == ["_local_scalar_dense", "index", "_local_scalar_dense"]


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [
            "MODEL.HDM",
            "True",
            "MODEL.ATM",
            "True",
            "MODEL.SDTPS_USE_GUMBEL",
            "True",
            "MODEL.SIE_CAMERA",
            "True",
        ],
        ["MODEL.SLIM_LAYERS", "[2, 3]", "SOLVER.CLIP_GRAD", "1.0", "MODEL.NO_MARGIN", "False"],
    ],
)
def test_a_step_asks_nothing_of_the_device(
    tmp_path: Path, make_batch: Callable[..., ModalBatch], changes: list[str]
) -> None:
    """Besides its two readings, which wait for nothing that would leave the device without work."""
    cfg = load_config(SMALL_MODEL, changes)
    model = make_model(cfg, 4, 4)
    optimizer = make_optimizer(cfg, model)
    batch = make_batch([0, 0, 1, 1], size=tuple(cfg.INPUT.SIZE_TRAIN))

    def evaluate(*_: object, **__: object) -> dict[str, EvaluationResult]:
        raise AssertionError

    trainer = Trainer(
        model=model,
        criterion=make_criterion(cfg),
        optimizer=optimizer,
        schedule=make_schedule(cfg, optimizer),
        loader=[batch],
        set_epoch=lambda epoch, first_batch: None,
        evaluate=evaluate,
        device=torch.device("cpu"),
        folder=tmp_path,
        options=TrainOptions(epochs=1, clip_grad=cfg.SOLVER.CLIP_GRAD),
    )
    trainer.lag = 1  # as on CUDA; on the CPU, where there is nothing to wait for, the gradient norm is read
    weight: Tensor = next(model.parameters())
    before = weight.detach().clone()
    with Questions() as questions:
        trainer._train_step(batch, epoch=1)
    assert questions.asked == []
    assert not torch.equal(weight, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4999, 10006])
def test_one_bad_number_among_many_is_found(bad: float, place: int) -> None:
    spoiled = torch.ones(10007)
    spoiled[place] = bad
    tensors = {
        "good": torch.zeros(3),
        "large": torch.full((4,), 3e38),  # finite, but its square is not
        "spoiled": spoiled,
        "half": torch.tensor([65504.0], dtype=torch.float16),
        "double": torch.tensor(1e300, dtype=torch.float64),
        "count": torch.tensor(7),
        "empty": torch.zeros(0),
    }
    assert find_non_finite(tensors) == ["spoiled"]
    del tensors["spoiled"]
    assert find_non_finite(tensors) == []
    assert find_non_finite({}) == []


def test_weights_and_the_state_of_the_optimiser_are_named(toy_model: ToyModel) -> None:
    optimizer = torch.optim.Adam(toy_model.parameters())
    check_state(toy_model, optimizer, World(), step=0)  # no step was taken: there is no state yet
    for parameter in toy_model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    check_state(toy_model, optimizer, World(), step=1)
    optimizer.state[toy_model.linear.bias]["exp_avg_sq"][1] = math.inf
    message = "the state of the optimiser is not finite (1 of 6 tensors, first exp_avg_sq of linear.bias)"
    with pytest.raises(NonFiniteLossError, match=re.escape(message)):
        check_state(toy_model, optimizer, World(), step=1)
    toy_model.linear.weight.data[0, 0] = math.nan
    message = "the weights are not finite (1 of 2 tensors, first linear.weight) after step 1; lower"
    with pytest.raises(NonFiniteLossError, match=re.escape(message)):
        check_state(toy_model, optimizer, World(), step=1)
