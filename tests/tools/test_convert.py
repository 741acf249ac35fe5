"""Round trips between DeMo's names and ours."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import train_net as train_entry
from config import load_config
from conftest import SMALL_MODEL, load_model
from errors import UserError
from modeling.checkpoint_file import WeightsError
from modeling.make_model import make_model
from modeling.weights import load_pretrained
from structures import ModalBatch
from tools.convert import main as convert


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """A model with every part that DeMo or its first extension has, after one epoch of two steps or so."""
    folder = tmp_path_factory.mktemp("runs") / "all"
    parts = ["MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.SIE_CAMERA", "True", "MODEL.HEAD", "2"]
    short = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    overrides = [*mini_settings, *parts, *short, "OUTPUT_DIR", str(folder)]
    train_entry.main(["--config_file", str(SMALL_MODEL), *overrides])
    return folder


def features(run: Path, weights: Path, batch: ModalBatch) -> torch.Tensor:
    cfg = load_config(run / "config.yml")
    torch.manual_seed(int.from_bytes(weights.name.encode(), "big") % 1000)  # another start for each file
    model = make_model(cfg, 8, 2).eval()
    load_model(model, weights)
    with torch.no_grad():
        return model(batch).embedding(3)


def test_a_trained_model_survives_the_round_trip(
    run: Path, tmp_path: Path, make_batch: Callable[..., ModalBatch]
) -> None:
    batch = make_batch([0, 1], size=(128, 64))
    convert([str(run / "last.pth"), str(tmp_path / "demo.pth"), "--to", "demo"])
    convert([str(tmp_path / "demo.pth"), str(tmp_path / "ours.pth"), "--to", "ours"])
    convert([str(tmp_path / "demo.pth"), str(tmp_path / "ours.safetensors"), "--to", "safetensors"])
    theirs = torch.load(tmp_path / "demo.pth", weights_only=True)
    assert "generalFusion.moe.experts.0.expertHead.6.mlp.0.weight" in theirs
    assert "sdtps.nir_sparse.score_predictor.0.weight" in theirs
    expected = features(run, run / "last.pth", batch)
    for name in ("demo.pth", "ours.pth", "ours.safetensors"):
        assert torch.equal(features(run, tmp_path / name, batch), expected), name


def test_another_model_starts_from_a_trunk(run: Path, tmp_path: Path) -> None:
    trunk = tmp_path / "trunk.safetensors"
    convert([str(run / "last.pth"), str(trunk), "--to", "trunk"])
    model = make_model(load_config(SMALL_MODEL, ["MODEL.USE_SDTPS", "False"]), 3, 2)
    report = load_pretrained(model, trunk)
    assert (report.missing, report.unexpected, report.dropped) == ([], [], [])
    saved = torch.load(run / "last.pth", weights_only=True)["model"]
    for name, tensor in model.backbone.vit.state_dict().items():
        assert torch.equal(tensor, saved[f"backbone.vit.{name}"]), name


def test_an_existing_file_is_not_replaced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out.pth").write_text("precious")
    with pytest.raises(UserError, match="exists"):
        convert([str(run / "last.pth"), str(tmp_path / "out.pth"), "--to", "demo"])
    assert (tmp_path / "out.pth").read_text() == "precious"


def test_impossible_outputs_are_refused_before_the_input_is_read(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere.pth")
    (tmp_path / "file").write_text("precious")
    for output, message in {
        "dangling": "it is a symbolic link",
        "file/out.pth": "Not a directory",
        "absent/out.pth": "there is no folder",
        ".": "it is a folder",
    }.items():
        with pytest.raises(UserError, match=message):
            convert([str(tmp_path / "unread.pth"), str(tmp_path / output), "--to", "demo"])
    assert {path.name for path in tmp_path.iterdir()} == {"dangling", "file"}
    assert (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "file").read_text() == "precious"


def test_entries_without_a_name_elsewhere_are_refused(run: Path, tmp_path: Path) -> None:
    state = torch.load(run / "last.pth", weights_only=True)["model"]
    torch.save({**state, "novelty.weight": torch.zeros(1)}, tmp_path / "in.pth")
    with pytest.raises(WeightsError, match=r"novelty\.weight"):
        convert([str(tmp_path / "in.pth"), str(tmp_path / "out.pth"), "--to", "demo"])
    assert not (tmp_path / "out.pth").exists()


def test_a_backbone_is_refused(tmp_path: Path) -> None:
    torch.save({"patch_embed.proj.weight": torch.zeros(1)}, tmp_path / "in.pth")
    with pytest.raises(WeightsError, match="backbone"):
        convert([str(tmp_path / "in.pth"), str(tmp_path / "out.pth"), "--to", "ours"])
