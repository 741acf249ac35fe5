"""A tuned model: its checkpoints hold what has learned, and name the file that holds the rest."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import train_net as train_entry
from conftest import ROOT, SMALL_MODEL
from engine.train import Trainer
from errors import UserError
from inference import Predictor
from modeling.checkpoint_file import WeightsError
from modeling.weights import load_pretrained
from structures import ModalBatch
from tools.convert import main as convert
from tools.export import main as export
from trained import load_trained
from weight_file import hash_file

TRUNK = ROOT / "configs" / "Synthetic" / "trunk.safetensors"
SIZES = "INPUT.SIZE_TRAIN [32,16] INPUT.SIZE_TEST [32,16]"
SHORT = f"TEST.CONTROLS False SOLVER.EMA_DECAY 0.9 {SIZES} MODEL.SIE_CAMERA True"
EACH = ["MODEL.TUNE", "adapter", "MODEL.ADAPTER_SHARED", "False", "MODEL.TUNE_RANK", "4"]


def words(settings: Sequence[str], folder: Path, trunk: Path | str, *more: str) -> list[str]:
    named = ["MODEL.PRETRAIN_PATH_T", str(trunk), "OUTPUT_DIR", str(folder)]
    return ["--config_file", str(SMALL_MODEL), *settings, *SHORT.split(), *EACH, *named, *more]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """Two epochs, with an average of the weights, from a copy of the trunk."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copy(TRUNK, folder / "trunk.safetensors")
    train_entry.main(words(mini_settings, folder / "run", folder / "trunk.safetensors"))
    return folder / "run"


def embed(weights: Path, batch: ModalBatch, *overrides: str) -> torch.Tensor:
    model = load_trained(weights, overrides).model.eval()
    with torch.no_grad():
        return model(batch).embedding(3)


def test_checkpoints_hold_what_has_learned(run: Path) -> None:
    whole = load_trained(run / "last.pth").model.state_dict()
    frozen = {name for name in whole if name.startswith("backbone.vit.")}
    for name in ("last.pth", "best.pth"):
        content = torch.load(run / name, weights_only=True)
        assert content["trunk"] == {"path": str(run.parent / "trunk.safetensors"), "sha256": hash_file(TRUNK)}
        for entry in {"model", "raw_model"} & content.keys():
            assert content[entry].keys() == whole.keys() - frozen
    cost = json.loads((run / "metrics.json").read_text())["cost"]
    parts, step = cost["parts"], cost["training_step_bytes"]
    # 3 modalities x 4 blocks x (64 -> 4 -> 64 with biases), and two cameras of 64 channels.
    assert parts["backbone"]["trainable"] == 3 * 4 * (2 * 64 * 4 + 4 + 64) + 2 * 64
    assert step["gradients"] == 4 * parts["total"]["trainable"]


def test_the_trunk_is_that_of_its_file_bit_for_bit(run: Path) -> None:
    """After training with weight decay and an average of the weights."""
    trained = load_trained(run / "last.pth").model
    found = {name: tensor.clone() for name, tensor in trained.backbone.vit.state_dict().items()}
    load_pretrained(trained, TRUNK)
    assert all(torch.equal(tensor, found[name]) for name, tensor in trained.backbone.vit.state_dict().items())


def test_a_whole_model_on_request(run: Path, tmp_path: Path, make_batch: Callable[..., ModalBatch]) -> None:
    batch = make_batch([0, 1])
    expected = embed(run / "last.pth", batch)
    export([str(run / "last.pth"), str(tmp_path / "folder")])
    assert torch.equal(embed(tmp_path / "folder", batch), expected)
    convert([str(run / "last.pth"), str(tmp_path / "whole.pth"), "--to", "ours"])
    config = str(run / "config.yml")
    whole = load_trained(tmp_path / "whole.pth", ["MODEL.PRETRAIN_PATH_T", "nowhere"], config_file=config)
    with torch.no_grad():
        assert torch.equal(whole.model.eval()(batch).embedding(3), expected)
    # A whole model starts another one, with its adapters; what was tuned alone does not.
    load_pretrained(whole.model, tmp_path / "whole.pth")
    with pytest.raises(WeightsError, match=r"holds only what was tuned; write the whole model"):
        load_pretrained(whole.model, run / "last.pth")
    with pytest.raises(WeightsError, match="a trunk file has no place"):
        convert([str(run / "last.pth"), str(tmp_path / "trunk.safetensors"), "--to", "trunk"])


def test_adapters_are_new_beside_a_whole_model_without(run: Path, tmp_path: Path) -> None:
    model = load_trained(run / "last.pth").model
    plain = {name: t + 1 for name, t in model.state_dict().items() if ".tuning." not in name}
    torch.save(plain, tmp_path / "plain.pth")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    load_pretrained(model, tmp_path / "plain.pth")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name] + (0 if ".tuning." in name else 1)), name


def test_another_trunk_file_or_none_is_refused(
    run: Path, tmp_path: Path, make_batch: Callable[..., ModalBatch]
) -> None:
    alone = Path(shutil.copy(run / "last.pth", tmp_path / "last.pth"))
    batch = make_batch([0, 1])
    missing = ("MODEL.PRETRAIN_PATH_T", str(tmp_path / "gone.safetensors"))
    with pytest.raises(WeightsError, match=r"its trunk file .*gone.* does not exist; put it there, or add"):
        embed(alone, batch, *missing)
    with pytest.raises(WeightsError, match=r"is a folder; name the file in it, such as .*model\.safetensors"):
        embed(alone, batch, "MODEL.PRETRAIN_PATH_T", str(tmp_path))
    with pytest.raises(WeightsError, match=r"its trunk file .*best\.pth .* is another file"):
        embed(alone, batch, "MODEL.PRETRAIN_PATH_T", str(run / "best.pth"))
    moved = ("MODEL.PRETRAIN_PATH_T", str(TRUNK))
    assert torch.equal(embed(alone, batch, *moved), embed(alone, batch))
    assert Predictor.load(alone, overrides=moved).dim == embed(alone, batch).shape[1]
    content = torch.load(alone, weights_only=True)
    torch.save({**content, "trunk": {"path": 3}}, alone)
    with pytest.raises(WeightsError, match="damaged: its entry `trunk` cannot be read"):
        load_trained(alone)


def test_a_run_resumes_bit_for_bit(
    run: Path, tmp_path: Path, mini_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its second epoch; the trunk has moved since, and another one is refused."""
    trunk = Path(shutil.copy(TRUNK, tmp_path / "before.safetensors"))
    original = Trainer._run_epoch

    def die(self: Trainer, epoch: int) -> Any:
        if epoch == 2:
            raise RuntimeError("killed")
        return original(self, epoch)

    monkeypatch.setattr(Trainer, "_run_epoch", die)
    with pytest.raises(RuntimeError, match="killed"):
        train_entry.main(words(mini_settings, tmp_path / "run", trunk))
    monkeypatch.undo()
    with pytest.raises(UserError, match="is another file"):
        train_entry.main(words(mini_settings, tmp_path / "run", tmp_path / "run" / "last.pth", "--resume"))
    moved = trunk.rename(tmp_path / "after.safetensors")
    with pytest.raises(UserError, match=r"before\.safetensors .* does not exist"):
        train_entry.main(words(mini_settings, tmp_path / "run", trunk, "--resume"))
    train_entry.main(words(mini_settings, tmp_path / "run", moved, "--resume"))
    folders = (tmp_path / "run", run)
    resumed, whole = (torch.load(folder / "last.pth", weights_only=True) for folder in folders)
    for entry in ("model", "raw_model"):
        assert resumed[entry].keys() == whole[entry].keys()
        assert all(torch.equal(resumed[entry][name], tensor) for name, tensor in whole[entry].items())
    for number, state in whole["optimizer"]["state"].items():
        assert all(torch.equal(resumed["optimizer"]["state"][number][n], value) for n, value in state.items())


@pytest.mark.parametrize(("trunk", "more"), [("", []), (TRUNK, ["SOLVER.SAVE_TRUNK", "True"])])
def test_a_run_without_a_trunk_file_keeps_everything(
    tmp_path: Path, mini_settings: list[str], trunk: Path | str, more: list[str]
) -> None:
    """From random weights, where no file could be named, or on request."""
    short = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", *more]
    train_entry.main(words(mini_settings, tmp_path / "run", trunk, *short))
    content = torch.load(tmp_path / "run" / "last.pth", weights_only=True)
    assert "trunk" not in content
    assert "backbone.vit.cls_token" in content["model"]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert ("freezes weights that are random" in log) is not more
    assert ("the checkpoints hold the frozen trunk as well" in log) is not more
    train_entry.main([*words(mini_settings, tmp_path / "run", trunk, *short), "--resume"])
