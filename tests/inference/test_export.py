"""Exported graphs against the model, on miniatures of one or two blocks."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pytest
import timm
import torch

from config import load_config
from datasets.build import make_eval_transform
from errors import UserError
from inference import export
from inference.export import ImagesToFeatures, Run
from modeling.make_model import make_model
from structures import ModalBatch, PerModality

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SMALL = (
    "MODEL.TRANSFORMER_TYPE",
    "vit_tiny_stem_patch8",
    "MODEL.STRIDE_SIZE",
    "[8,8]",
    "MODEL.DROP_PATH",
    "0.0",
)
SIZES = ("INPUT.SIZE_TRAIN", "[32,16]", "INPUT.SIZE_TEST", "[32,16]", "INPUT.PIXEL_MEAN", "[0.4,0.5,0.6]")
SDTPS = ("MODEL.USE_SDTPS", "True", "MODEL.GLOBAL_LOCAL", "True")
MODELS: dict[str, tuple[str, ...]] = {
    "baseline": ("MODEL.SIE_CAMERA", "True"),
    "DeMo": ("MODEL.GLOBAL_LOCAL", "True", "MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "1"),
    "SDTPS, Gumbel": (*SDTPS, "MODEL.SDTPS_USE_GUMBEL", "True"),
    "LoRA of each modality": ("MODEL.TUNE", "lora", "MODEL.ADAPTER_SHARED", "False"),
    "SDTPS, slimmed": (*SDTPS, "MODEL.SLIM_LAYERS", "[0]"),
}


def make_graph(overrides: Sequence[str], *, pattern: int = 3) -> ImagesToFeatures:
    """A miniature with random weights whose blocks after the first are cut off, for a quick export."""
    cfg = load_config(None, [*SMALL, *SIZES, *overrides])
    torch.manual_seed(0)
    model = make_model(cfg, 5, 3)
    model.backbone.vit.blocks = model.backbone.vit.blocks[:1]
    if model.backbone.camera_embed is not None:
        torch.nn.init.normal_(model.backbone.camera_embed)
    for parameter in () if model.backbone.tuning is None else model.backbone.tuning.parameters():
        torch.nn.init.normal_(parameter)  # half of them start at 0
    return ImagesToFeatures(model, make_eval_transform(cfg), pattern=pattern)


@cache
def exported(name: str) -> tuple[ImagesToFeatures, bytes]:
    graph = make_graph(MODELS[name])
    return graph, export.to_onnx(graph, {"image_size": [32, 16]})


def images(size: int = 7) -> dict[str, np.ndarray]:
    return export.random_inputs(size, (32, 16))


@pytest.mark.parametrize("name", MODELS)
def test_onnx_gives_the_features_of_the_model(name: str) -> None:
    graph, content = exported(name)
    found = export.verify(export.open_onnx(content), graph, images())
    assert list(found) == [
        f"batch {size}, {case}" for size in (1, 3, 7) for case in ("complete", "a modality missing")
    ]
    assert max(found.values()) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_small_patch16_rope_mixed_224"])
def test_rotations_of_the_patches_that_are_left_can_be_exported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=2))
    trunk = ("MODEL.TRANSFORMER_TYPE", name, "MODEL.STRIDE_SIZE", "[4,4]", "MODEL.SLIM_LAYERS", "[1]")
    cfg = load_config(None, [*SIZES, *SDTPS, *trunk, "INPUT.SHARED_AUGMENT", "True"])
    torch.manual_seed(0)
    graph = ImagesToFeatures(make_model(cfg, 5, 3), make_eval_transform(cfg), pattern=3)
    content = export.to_onnx(graph, {"image_size": [32, 16]})
    assert max(export.verify(export.open_onnx(content), graph, images()).values()) <= 1e-4


def test_gumbel_noise_is_not_part_of_an_export() -> None:
    noisy, plain = (make_graph((*SDTPS, "MODEL.SDTPS_USE_GUMBEL", switch)) for switch in ("True", "False"))
    assert export.trace(noisy).graph_module.code == export.trace(plain).graph_module.code


def test_pt2_gives_the_features_of_the_model() -> None:
    graph, _ = exported("SDTPS, slimmed")
    content = export.to_pt2(graph, {"image_size": [32, 16]})
    assert max(export.verify(export.open_pt2(content), graph, images()).values()) <= 1e-4


def test_the_graph_gives_what_the_model_gives_for_normalised_images() -> None:
    """A missing modality is zeros after normalisation, whatever its pixels are, and unseen cameras are."""
    graph = make_graph((*SDTPS, "MODEL.SIE_CAMERA", "True"), pattern=2)
    own = {name: torch.from_numpy(array) for name, array in images(2).items()}
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.5]).view(1, 1, 1)
    batch = PerModality(*((own[name] - mean) / std for name in ("rgb", "ni", "ti")))
    batch.ni[1] = 0
    cameras, ids = torch.tensor([2, 3]), torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        features = graph.model(ModalBatch(batch, ids, cameras, ids)).embedding(2)
    own["ni"][1] = torch.nan
    inputs = {name: array.numpy() for name, array in own.items()}
    inputs |= {"present": np.array([[True] * 3, [True, False, True]]), "camera": np.array([2, -1])}
    expected = torch.nn.functional.normalize(features, dim=1).numpy()
    np.testing.assert_allclose(graph.run(inputs), expected, atol=1e-6)


def test_mask_and_camera_matter() -> None:
    graph, content = exported("baseline")
    run = export.open_onnx(content)
    inputs = {**images(2), "present": np.ones((2, 3), dtype=bool), "camera": np.array([0, 0])}
    whole = run(inputs)
    missing = run({**inputs, "present": np.array([[True, False, True], [True] * 3])})
    other = run({**inputs, "camera": np.array([0, 1])})
    for changed, row in ((missing, 0), (other, 1)):
        differs = np.abs(changed - whole).max(axis=1) > 1e-3
        assert differs.tolist() == [row == 0, row == 1]
    assert graph.input_names == ("rgb", "ni", "ti", "present", "camera")
    assert "camera" not in make_graph(MODELS["DeMo"]).input_names


def spoilt(run: Run, wrong: float) -> Run:
    def run_wrongly(inputs: export.Arrays) -> np.ndarray:
        features = run(inputs).copy()
        features[0, 3] += wrong if len(features) == 3 else 0
        return features

    return run_wrongly


@pytest.mark.parametrize("wrong", [2e-4, float("nan")])
def test_a_wrong_feature_is_refused(wrong: float) -> None:
    graph, content = exported("baseline")
    with pytest.raises(UserError, match="at batch 3, complete, a feature differs"):
        export.verify(spoilt(export.open_onnx(content), wrong), graph, images())


def test_int8_is_smaller_and_nearly_the_same() -> None:
    import onnx

    graph, content = exported("baseline")
    small = export.quantise(content)
    kinds = [node.op_type for node in onnx.load_from_string(small).graph.node]
    assert kinds.count("MatMulInteger") == 4  # qkv, proj, fc1 and fc2 of the one block
    assert len(small) < len(content)
    largest, cosine = export.compare_features(export.open_onnx(small), graph, images())
    assert 0 < largest < 0.1
    assert cosine > 0.98
    assert export.compare_features(graph.run, graph, images()) == (0.0, pytest.approx(1.0, abs=1e-5))


def test_metadata_stay_with_the_file() -> None:
    import onnx

    for content in (exported("baseline")[1], export.quantise(exported("baseline")[1])):
        properties = {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}
        assert json.loads(properties["image_size"]) == [32, 16]
    assert logging.root.manager.disable == logging.NOTSET  # the log is back


def test_weights_beyond_the_limit_of_onnx_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(UserError, match=r"an ONNX file holds at most 2; export to \.pt2"):
        export.to_onnx(make_graph(()), {})
