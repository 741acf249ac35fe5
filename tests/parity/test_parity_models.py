"""Whole models against outputs recorded from the published DeMo code and the first SDTPS integration.

Entries under DeMo's names go through a file and the ordinary loader; the configurations are our own files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from config.load import load_config
from conftest import load_model
from fill import fill
from modeling.backbone import EncodedImages
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from structures import ModalBatch, Modality, PerModality

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
CONFIGURATIONS = {
    "rgbnt201_demo": ("DeMo.yml", {}),
    "rgbnt201_baseline": ("Baseline.yml", {}),
    "rgbnt201_hdm": ("DeMo.yml", {"MODEL.ATM": "False"}),
    "rgbnt201_imagenet_vit": ("DeMo.yml", {"MODEL.TRANSFORMER_TYPE": "vit_base_patch16_224"}),
    "rgbnt201_sdtps": ("DeMo_SDTPS.yml", {}),
    "msvr310_demo": (
        "DeMo.yml",
        {
            "MODEL.DIRECT": "0",
            "MODEL.HEAD": "8",
            "INPUT.SIZE_TRAIN": "[128, 256]",
            "INPUT.SIZE_TEST": "[128, 256]",
        },
    ),
}
MISSING = {"pattern3_miss_r": [Modality.RGB], "pattern3_miss_nt": [Modality.NI, Modality.TI]}
CAMERAS = torch.tensor([0, 3, 1])
TOLERANCE = 1e-4  # of the mean magnitude of the recorded values

Entry = Callable[[str, tuple[int, ...]], Tensor]


def make_entry(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(fill(name, shape, 1))


@pytest.fixture(scope="module")
def cached_entry() -> Iterator[Entry]:
    """Most configurations share the entries of one backbone, and drawing them takes seconds."""
    entry = lru_cache(maxsize=None)(make_entry)
    yield entry
    entry.cache_clear()


def load_filled(name: str, entry: Entry, folder: Path) -> MultiModalReID:
    """The model of a configuration, with the entries that its recording names loaded from a file."""
    keys = json.loads((DATA / f"{name}.keys.json").read_text())
    file, overrides = CONFIGURATIONS[name]
    options = [text for pair in overrides.items() for text in pair]
    cfg = load_config(ROOT / "configs" / "RGBNT201" / file, options)
    assert list(cfg.INPUT.SIZE_TEST) == keys["options"]["size"]
    model = make_model(cfg, keys["options"]["num_classes"], keys["options"]["cameras"])

    path = folder / "DeMobest.pth"
    torch.save({key: entry(key, tuple(shape)) for key, (shape, _) in keys["state_dict"].items()}, path)
    report = load_model(model, path)
    path.unlink()  # 400 MB, which pytest would keep
    assert set(report.loaded) == set(model.state_dict())
    assert not report.dropped + report.unexpected
    return model.eval()


@torch.inference_mode()
def encode(model: MultiModalReID, missing: Mapping[str, Sequence[Modality]]) -> dict[str, Tensor]:
    """The outputs under the names that the recordings give them, also with `missing` modalities.

    As in `test_net.py --missing all`, each image is encoded once for all of them.
    """
    height, width = model.backbone.img_size
    images = PerModality.build(lambda m: make_entry(f"input/{m.value}", (3, 3, height, width)))
    batch = ModalBatch(images, torch.zeros_like(CAMERAS), CAMERAS, torch.zeros_like(CAMERAS))
    backbone_calls: list[EncodedImages] = []
    hook = model.backbone.register_forward_hook(lambda _, __, output: backbone_calls.append(output))
    outputs = model.forward_conditions(batch, {"complete": (), **missing})
    hook.remove()
    encoded = backbone_calls[0]  # the images of RGB come first
    return {
        "rgb_global": encoded.globals_[:3],
        "rgb_patch_tokens_mean": encoded.patches[:3].mean(dim=1),
        **{f"pattern{pattern}": outputs["complete"].embedding(pattern) for pattern in (1, 2, 3)},
        **{key: outputs[key].embedding(3) for key in missing},
    }


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_model(name: str, cached_entry: Entry, tmp_path: Path) -> None:
    recorded = np.load(DATA / f"{name}.npz")
    # The first SDTPS integration was recorded for complete inputs only, without the backbone.
    assert len(recorded.files) == (3 if name == "rgbnt201_sdtps" else 7)
    missing = {key: modalities for key, modalities in MISSING.items() if key in recorded.files}
    outputs = encode(load_filled(name, cached_entry, tmp_path), missing)
    for key in recorded.files:
        expected, output = recorded[key], outputs[key].numpy()
        assert output.shape == expected.shape, key
        error = np.abs(output - expected).max() / np.abs(expected).mean()
        assert error < TOLERANCE, f"{key} is off by {error:.1e} of its mean magnitude"
