"""The command `tools.export`, and the example of docs/deployment.md."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import test_net as test_entry
import tools.export as command
import train_net as train_entry
from conftest import ROOT, SMALL_MODEL
from errors import UserError
from inference import Predictor, Triple
from inference.export import ImagesToFeatures
from inference.model_folder import find_scores
from inference.origin import name_model
from trained import load_trained

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

BASELINE = ["MODEL.USE_SDTPS", "False", "MODEL.GLOBAL_LOCAL", "False", "MODEL.SIE_CAMERA", "True"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """One epoch of the baseline with cameras, which is quick to export."""
    folder = tmp_path_factory.mktemp("run")
    quick = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    settings = [*mini_settings, *BASELINE, *quick, "OUTPUT_DIR", str(folder)]
    train_entry.main(["--config_file", str(SMALL_MODEL), *settings])
    return folder


@pytest.fixture(scope="module")
def files(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with model.onnx and model.int8.onnx, and the log."""
    folder = tmp_path_factory.mktemp("exported")
    with contextlib.redirect_stdout(io.StringIO()) as log:
        command.main([str(run / "last.pth"), str(folder / "model.onnx"), "--int8"])
    return folder, log.getvalue()


def test_the_log_says_what_was_checked(files: tuple[Path, str]) -> None:
    folder, log = files
    assert sorted(path.name for path in folder.iterdir()) == ["model.int8.onnx", "model.onnx"]
    assert "on 7 test triples" in log
    for size in (1, 3, 7):
        for case in ("complete", "a modality missing"):
            assert f"(at most 1e-04): batch {size}, {case}" in log
    assert "mean cosine with the model's 0.99" in log or "mean cosine with the model's 1.0" in log
    scores = [line.split("mAP ")[1] for line in log.splitlines() if "mAP " in line]
    assert [line.rpartition(": ")[2] for line in scores] == [
        "torch, fp32",
        "ONNX Runtime, fp32",
        "ONNX Runtime, int8",
    ]
    assert scores[0].partition(",")[0] == scores[1].partition(",")[0]


def test_metadata_say_where_the_file_comes_from(files: tuple[Path, str], run: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(files[0] / "model.onnx"))
    about = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
    assert about["image_size"] == [128, 64]
    assert about["modalities"] == ["rgb", "ni", "ti"]
    assert (about["pattern"], about["cameras"], about["classes"]) == (1, 2, 8)
    assert about["weights_sha256"] == hashlib.sha256((run / "last.pth").read_bytes()).hexdigest()
    names = [value.name for value in session.get_inputs()]
    assert names == about["inputs"] == ["rgb", "ni", "ti", "present", "camera"]
    assert session.get_inputs()[0].shape == ["batch", 3, 128, 64]


def test_the_consumer_of_the_deployment_page_needs_no_torch(
    files: tuple[Path, str], run: Path, mini_root: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    (code,) = (block for block in page.split("```python\n")[1:] if "onnxruntime" in block)
    code = code.partition("```")[0]
    assert len(code.strip().splitlines()) <= 22
    name = sorted(path.name for path in (mini_root / "RGBNT201" / "test" / "RGB").iterdir())[0]
    for kind in ("RGB", "NI", "TI"):
        shutil.copy(mini_root / "RGBNT201" / "test" / kind / name, tmp_path / f"a_{kind.lower()}.jpg")
    shutil.copy(files[0] / "model.onnx", tmp_path)
    hide = "import sys; sys.modules.update(dict.fromkeys(['torch', 'torchvision']))\n"
    keep = "\nnp.save('features.npy', features)\n"
    subprocess.run([sys.executable, "-I", "-c", hide + code + keep], cwd=tmp_path, check=True, timeout=100)
    expected = Predictor.load(run / "last.pth").embed([Triple(tmp_path / "a_rgb.jpg", tmp_path / "a_ni.jpg")])
    np.testing.assert_allclose(np.load(tmp_path / "features.npy"), expected.numpy(), atol=1e-5)


def test_a_damaged_export_is_refused_and_not_written(
    run: Path, files: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest weights of the file are twice as large."""
    import onnx

    def damaged(_: ImagesToFeatures, __: Mapping[str, Any]) -> bytes:
        model = onnx.load(files[0] / "model.onnx")
        weights = max(model.graph.initializer, key=lambda entry: len(entry.raw_data))
        values = onnx.numpy_helper.to_array(weights) * np.float32(2)
        weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
        return bytes(model.SerializeToString())

    monkeypatch.setitem(command.FORMATS, ".onnx", (damaged, command.FORMATS[".onnx"][1]))
    with pytest.raises(UserError, match="the export is wrong and was not written"):
        command.main([str(run / "last.pth"), str(tmp_path / "model.onnx")])
    assert list(tmp_path.iterdir()) == []


def test_without_data_noise_is_used(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "model.pt2"
    command.main([str(run / "last.pth"), str(output), "DATASETS.ROOT_DIR", str(tmp_path / "none")])
    assert "on 7 random triples" in capsys.readouterr().out
    assert output.is_file()
    assert not (tmp_path / "none").exists()


def test_a_model_folder_replaces_its_checkpoint(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "baseline"
    command.main([str(run / "last.pth"), str(folder)])
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.yml", "model.safetensors"]
    assert list(folder.parent.iterdir()) == [folder]
    # The same model to galleries, PCA and thresholds.
    origins = [Predictor.load(weights).origin for weights in (run / "last.pth", folder)]
    names = {name_model(origin.as_dict()) for origin in origins if origin is not None}
    assert len(names) == 1
    # The same features, scores, cameras and choice.
    triple = Triple(rgb=np.arange(128 * 64).reshape(128, 64).astype(np.uint8), camera=1)
    features = [Predictor.load(weights).embed([triple]) for weights in (run / "last.pth", folder)]
    assert torch.equal(*features)
    results = []
    for weights in (run / "last.pth", folder):
        test_entry.main(["--metrics", str(tmp_path / "metrics.json"), "TEST.WEIGHT", str(weights)])
        results.append(json.loads((tmp_path / "metrics.json").read_text())["result"]["pattern_1"])
    assert results[0] == results[1]
    first, second = (load_trained(weights) for weights in (run / "last.pth", folder))
    assert (first.split, first.choice) == (second.split, second.choice)
    assert second.choice == "after epoch 1, not chosen by a score"
    # The card has what the run recorded.
    _, header, text = (folder / "README.md").read_text().split("---\n", 2)
    recorded = json.loads((run / "metrics.json").read_text())["summary"]["last epoch"]["pattern_1"]
    content = yaml.safe_load(header)
    (result,) = content["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == round(recorded["mAP"], 2)
    assert (content["license"], content["datasets"]) == ("other", ["RGBNT201"])
    assert f"| original | {recorded['mAP']:.1f} | {recorded['mINP']:.1f} |" in text
    assert "no re-ranking; gallery triples of the query's identity and camera are dropped" in text
    assert "8 identities, 2 cameras" in text


def test_scores_of_other_weights_are_not_used(run: Path, tmp_path: Path) -> None:
    best = load_trained(run / "best.pth")
    assert "pattern_1" in find_scores(best, run)
    assert "there was no metrics.json beside the checkpoint" in find_scores(best, tmp_path)
    overridden = load_trained(run / "best.pth", ["TEST.MISS", "r"])
    assert "they were measured with other settings than TEST.MISS" in find_scores(overridden, run)
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["summary"]["best on test"]["test_mAP"] += 1
    metrics["epochs"][0]["loss"] += 1
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    for trained in (best, load_trained(run / "last.pth")):
        assert "is of another run or epoch" in find_scores(trained, tmp_path)


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("model.pth", [], r"ends in \.pth; name OUT\.onnx, OUT\.pt2, or a folder"),
        ("model.pt2", ["--int8"], "--int8 is for ONNX Runtime"),
        ("folder", ["--pattern", "1"], "--int8 and --pattern are for files"),
        ("full", [], "full is not empty"),
        (
            "model.onnx",
            ["--pattern", "2"],
            "--pattern 2 is not a return pattern of this model; choose from 1",
        ),
    ],
)
def test_refusals(run: Path, tmp_path: Path, output: str, options: list[str], message: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").touch()
    with pytest.raises(UserError, match=message):
        command.main([str(run / "last.pth"), str(tmp_path / output), *options])
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_folder_without_its_configuration_is_refused(run: Path, tmp_path: Path) -> None:
    command.main([str(run / "last.pth"), str(tmp_path / "hub")])
    (tmp_path / "hub" / "config.yml").unlink()
    with pytest.raises(
        UserError, match=r"config\.yml, which belongs to model\.safetensors beside it, cannot be"
    ):
        load_trained(tmp_path / "hub")
