"""Damage of every kind: one sentence, and nothing of the run is touched."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import ConstantSchedule, ToyLoader, cross_entropy, results

from conftest import ToyModel
from engine.checkpoint import load_checkpoint, open_checkpoint, random_states, save_checkpoint
from engine.run_state import Progress, TrainSettings
from engine.train import Trainer
from structures import ModalBatch, UserError

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
            settings=TrainSettings(epochs=1, config="MODEL: {}\n"),
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
    "no weights": (_without("model"), "no entry 'model'"),
    "no optimiser": (_without("optimizer"), "no entry 'optimizer'"),
    "no random states": (_without("random"), "no entry 'random'"),
    "no configuration": (_without("config"), "no entry 'config'"),
    "weights that are a list": (_put("model", value=[1]), "its weights cannot be read"),
    "a weight missing": (_without(*WEIGHT), r"linear\.weight is missing"),
    "a weight too many": (_put("model", "more", value=torch.zeros(1)), "no place for more"),
    "a weight of another shape": (_put(*WEIGHT, value=torch.zeros(9, 9)), r"has shape \(9, 9\)"),
    "a weight of 8-bit numbers": (_put(*WEIGHT, value=torch.zeros(4, 9, dtype=torch.int8)), "holds int8"),
    "a weight of switches": (_put(*WEIGHT, value=torch.zeros(4, 9, dtype=torch.bool)), "holds bool"),
    "a sparse weight": (_put(*WEIGHT, value=torch.zeros(4, 9).to_sparse()), "not a plain array"),
    "a weight without content": (_put(*WEIGHT, value=torch.zeros(4, 9, device="meta")), "not a plain array"),
    "a weight that is a text": (_put(*WEIGHT, value="0.1"), "is no tensor"),
    "an optimiser that is a number": (_put("optimizer", value=3), "its optimiser cannot be read"),
    "groups that are a number": (_put("optimizer", "param_groups", value=3), "its optimiser cannot be read"),
    "no groups": (_put("optimizer", "param_groups", value=[]), "other groups of parameters"),
    "a group without parameters": (_without("optimizer", "param_groups", 0, "params"), "other groups"),
    "a state of another shape": (_put(*ADAM, "exp_avg", value=torch.zeros(2)), r"exp_avg .* shape \(2,\)"),
    "a state of other numbers": (
        _put(*ADAM, "exp_avg_sq", value=torch.zeros(4, 9, dtype=torch.float64)),
        "holds float64",
    ),
    "a state missing": (_without(*ADAM, "exp_avg"), "of another kind than SOLVER.OPTIMIZER_NAME, or damaged"),
    "a state of no parameter": (_put("optimizer", "state", 7, value={}), "an entry of no parameter"),
    "a negative step": (_put(*ADAM, "step", value=torch.tensor(-1.0)), "not a count of steps"),
    "a step of several numbers": (_put(*ADAM, "step", value=torch.ones(2)), "not a count of steps"),
    "a scaler that is a list": (_put("scaler", value=[1]), "its scaler of mixed precision"),
    "half a scaler": (_put("scaler", value={"scale": 2.0}), "its scaler of mixed precision"),
    "progress without an epoch": (_without("progress", "epoch"), "its progress cannot be read"),
    "an unknown kind of progress": (_put("progress", "mood", value=1), "its progress cannot be read"),
    "an epoch that is a text": (
        _put("progress", "epoch", value="1"),
        "epoch in its progress is not a whole number",
    ),
    "a negative epoch": (_put("progress", "epoch", value=-1), "numbers that cannot be"),
    "epochs that were never recorded": (_put("progress", "epoch", value=10**12), "records of the epochs"),
    "more steps than the epoch has": (
        lambda content: content["progress"].update(steps_in_epoch=99, step=99),
        "99 steps into an epoch, which now has only 3",
    ),
    "a score that is no number": (
        _put("progress", "best_map", value=float("nan")),
        "best_map in its progress is not a finite number",
    ),
    "a step beyond counting": (_put("progress", "step", value=10**30), "numbers that cannot be"),
    "an environment that is a number": (
        _put("progress", "environments", value=[3]),
        "its progress cannot be read",
    ),
    "sums that are texts": (_put("progress", "sums", value={"loss": "1"}), "its progress cannot be read"),
    "records that hold themselves": (_circle, "records of the epochs"),
    "a record that is a number": (_put("progress", "epochs", value=[1]), "records of the epochs"),
    "a record without its scores": (_without(*SCORES, "mAP"), "records of the epochs"),
    "random states that are a text": (_put("random", value="dice"), "its random states cannot be read"),
    "no random state of torch": (_without("random", 0, "torch"), "its random states cannot be read"),
    "a short random state": (_put("random", 0, "torch", value=torch.zeros(3, dtype=torch.uint8)), "random"),
    "a random state out of range": (_put("random", 0, "numpy", value=NUMPY), "its random states"),
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
