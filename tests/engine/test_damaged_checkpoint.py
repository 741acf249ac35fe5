"""Damage of every kind: one sentence, and nothing of the run is touched."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import ConstantSchedule, ToyLoader, cross_entropy, results

from conftest import ToyModel
from engine.checkpoint import Progress, load_checkpoint, open_checkpoint, random_states, save_checkpoint
from engine.train import Trainer, TrainOptions
from errors import UserError
from structures import ModalBatch

Content = dict[str, Any]
Damage = Callable[[Content], object]


@pytest.fixture
def make_trainer(
    tmp_path: Path, toy_model: ToyModel, make_batch: Callable[..., ModalBatch]
) -> Callable[[], Trainer]:
    def make() -> Trainer:
        loader = ToyLoader([make_batch([0, 1, 2, 3], seed=seed) for seed in range(3)])
        group = {"params": list(toy_model.parameters()), "lr": 0.1, "name": "all"}
        return Trainer(
            model=toy_model,
            criterion=cross_entropy,
            optimizer=torch.optim.Adam([group], fused=True),
            schedule=ConstantSchedule(),
            loader=loader,
            set_epoch=loader.set_epoch,
            evaluate=results(0.2, 0.3),
            device=torch.device("cpu"),
            folder=tmp_path,
            options=TrainOptions(epochs=1, config="MODEL: {}\n"),
        )

    return make


@pytest.fixture
def content(make_trainer: Callable[[], Trainer], tmp_path: Path) -> Content:
    make_trainer().run()
    return load_checkpoint(tmp_path / "last.pth")


def _put(*path: Any, value: Any) -> Damage:
    """Put a value in the place that the path leads to."""

    def damage(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return damage


def _without(*path: Any) -> Damage:
    def damage(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        del content[path[-1]]

    return damage


def _circle(content: Content) -> None:
    content["progress"]["epochs"][0]["itself"] = content["progress"]["epochs"]


WEIGHT = ("model", "linear.weight")
ADAM = ("optimizer", "state", 0)
SCORES = ("progress", "epochs", 0, "test", "pattern_1")
NUMPY = ("MT19937", torch.zeros(624, dtype=torch.int64), 10**6, 0, 0.0)

DAMAGES: dict[str, tuple[Damage, str]] = {
    "no weights": (_without("model"), "model cannot be used"),
    "no optimiser": (_without("optimizer"), "optimizer cannot be used"),
    "no random states": (_without("random"), "random cannot be used"),
    "no configuration": (_without("config"), "config cannot be used"),
    "weights that are a list": (_put("model", value=[1]), "model cannot be used"),
    "a weight missing": (_without(*WEIGHT), r"linear\.weight is missing"),
    "a weight too many": (_put("model", "more", value=torch.zeros(1)), "model.more is unexpected"),
    "a weight of another shape": (_put(*WEIGHT, value=torch.zeros(9, 9)), r"has shape \(9, 9\)"),
    "a weight of 8-bit numbers": (_put(*WEIGHT, value=torch.zeros(4, 9, dtype=torch.int8)), "holds int8"),
    "a weight of switches": (_put(*WEIGHT, value=torch.zeros(4, 9, dtype=torch.bool)), "holds bool"),
    "a sparse weight": (_put(*WEIGHT, value=torch.zeros(4, 9).to_sparse()), "not a plain array"),
    "a weight without content": (_put(*WEIGHT, value=torch.zeros(4, 9, device="meta")), "not a plain array"),
    "a weight that is a text": (_put(*WEIGHT, value="0.1"), "is not a tensor"),
    "an optimiser that is a number": (_put("optimizer", value=3), "optimizer cannot be used"),
    "groups that are a number": (
        _put("optimizer", "param_groups", value=3),
        "optimizer.param_groups cannot be used",
    ),
    "no groups": (_put("optimizer", "param_groups", value=[]), "optimizer.param_groups cannot be used"),
    "a group without parameters": (
        _without("optimizer", "param_groups", 0, "params"),
        "optimizer.param_groups cannot be used",
    ),
    "a state of another shape": (
        _put(*ADAM, "exp_avg", value=torch.zeros(2)),
        r"optimizer\.state\.0\.exp_avg has shape \(2,\)",
    ),
    "a state of other numbers": (
        _put(*ADAM, "exp_avg_sq", value=torch.zeros(4, 9, dtype=torch.float64)),
        "holds float64",
    ),
    "a state missing": (_without(*ADAM, "exp_avg"), "optimizer.state.0.exp_avg is missing"),
    "a state of no parameter": (_put("optimizer", "state", 7, value={}), "optimizer.state.7 is unexpected"),
    "a negative step": (
        _put(*ADAM, "step", value=torch.tensor(-1.0)),
        "optimizer.state.0.step cannot be used",
    ),
    "a step of several numbers": (
        _put(*ADAM, "step", value=torch.ones(2)),
        "optimizer.state.0.step cannot be used",
    ),
    "a scaler that is a list": (_put("scaler", value=[1]), "scaler cannot be used"),
    "half a scaler": (_put("scaler", value={"scale": 2.0}), "scaler.growth_factor is missing"),
    "progress without an epoch": (_without("progress", "epoch"), "progress.epoch is missing"),
    "an unknown kind of progress": (_put("progress", "mood", value=1), "progress.mood is unexpected"),
    "an epoch that is a text": (
        _put("progress", "epoch", value="1"),
        "progress.epoch cannot be used",
    ),
    "a negative epoch": (_put("progress", "epoch", value=-1), "progress.epoch cannot be used"),
    "epochs that were never recorded": (
        _put("progress", "epoch", value=10**12),
        "progress.epochs cannot be used",
    ),
    "more steps than the epoch has": (
        lambda content: content["progress"].update(steps_in_epoch=99, step=99),
        "at step 99 of an epoch, which now has only 3",
    ),
    "a score that is no number": (
        _put("progress", "best_map", value=float("nan")),
        "progress.best_map cannot be used",
    ),
    "a step beyond counting": (_put("progress", "step", value=10**30), "progress.step cannot be used"),
    "an environment that is a number": (
        _put("progress", "environments", value=[3]),
        "progress.environments cannot be used",
    ),
    "sums that are texts": (_put("progress", "sums", value={"loss": "1"}), "progress.sums cannot be used"),
    "records that hold themselves": (_circle, "progress.epochs cannot be used"),
    "a record that is a number": (_put("progress", "epochs", value=[1]), "progress.epochs cannot be used"),
    "a record without its scores": (_without(*SCORES, "mAP"), "progress.epochs cannot be used"),
    "random states that are a text": (_put("random", value="dice"), "random cannot be used"),
    "no random state of torch": (_without("random", 0, "torch"), "random cannot be used"),
    "a short random state": (_put("random", 0, "torch", value=torch.zeros(3, dtype=torch.uint8)), "random"),
    "a random state out of range": (_put("random", 0, "numpy", value=NUMPY), "random cannot be used"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_one_sentence_and_touches_nothing(
    kind: str, content: Content, make_trainer: Callable[[], Trainer], toy_model: ToyModel
) -> None:
    damage, message = DAMAGES[kind]
    broken = copy.deepcopy(content)
    damage(broken)
    trainer = make_trainer()
    torch.nn.init.constant_(toy_model.linear.weight, 0.5)
    before = copy.deepcopy(toy_model.state_dict())
    state, generators = trainer.optimizer.state_dict(), random_states(torch.device("cpu"))
    with pytest.raises(UserError, match=message) as caught:
        trainer.resume(broken)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in toy_model.state_dict().items())
    assert trainer.optimizer.state_dict() == state
    assert trainer.progress == Progress()
    assert torch.equal(random_states(torch.device("cpu"))["torch"], generators["torch"])


def test_a_whole_checkpoint_is_taken(content: Content, make_trainer: Callable[[], Trainer]) -> None:
    trainer = make_trainer()
    trainer.resume(content)
    assert trainer.progress.epoch == 1


def test_a_checkpoint_of_version_1_is_taken(content: Content, make_trainer: Callable[[], Trainer]) -> None:
    del content["data"]
    for name in ("initial_weights", "initial_sha256"):
        del content["progress"][name]
    make_trainer().resume(content)


def test_states_are_brought_into_the_memory_order_of_their_parameters(
    content: Content, make_trainer: Callable[[], Trainer], toy_model: ToyModel
) -> None:
    """The fused kernels walk through memory: strides of zero would make them write beyond it."""
    moment = content["optimizer"]["state"][0]["exp_avg"]
    turned = moment.T.contiguous().T
    assert turned.stride() != moment.stride()
    content["optimizer"]["state"][0]["exp_avg"] = turned
    content["optimizer"]["state"][0]["exp_avg_sq"] = torch.zeros(1).expand(4, 9)
    trainer = make_trainer()
    trainer.resume(content)
    state = trainer.optimizer.state[toy_model.linear.weight]
    assert state["exp_avg"].stride() == state["exp_avg_sq"].stride() == toy_model.linear.weight.stride()
    assert torch.equal(state["exp_avg"], moment)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """torch does not look at the checksums of its archives."""
    path = tmp_path / "a.pth"
    save_checkpoint(path, model={"weight": torch.full((1000,), 0.5)})
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((100,), 0.5).numpy().tobytes()) + 64] ^= 1
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # without a word
    with pytest.raises(UserError, match="is damaged or not a checkpoint"):
        open_checkpoint(path)
