"""Checkpoints of version 1 load, and give the features that they gave there."""

import json
from pathlib import Path

import numpy as np
import torch

from config import load_config
from conftest import SMALL_MODEL, load_model
from fill import fill
from modeling.make_model import make_model
from structures import ModalBatch, PerModality

DATA = Path(__file__).parent / "data"
PARTS = ["MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.SIE_CAMERA", "True"]


def test_features_are_those_of_version_1(tmp_path: Path) -> None:
    """The small model with every part, filled by the names that its entries had then."""
    keys = json.loads((DATA / "version_1.keys.json").read_text())
    content = {name: torch.from_numpy(fill(name, tuple(shape), 1)) for name, shape in keys.items()}
    torch.save({"format": "demo-sdtps-1", "model": content}, tmp_path / "best.pth")
    model = make_model(load_config(SMALL_MODEL, PARTS), 5, 2).eval()
    report = load_model(model, tmp_path / "best.pth")
    assert set(report.loaded) == set(model.state_dict())

    model.double()  # as recorded, so that processors agree
    shape = (2, 3, 128, 64)
    images = PerModality.build(lambda m: torch.from_numpy(fill(f"input/{m.value}", shape, 1)).double())
    ids = torch.tensor([0, 1])
    with torch.inference_mode():
        output = model(ModalBatch(images, ids, ids, torch.zeros_like(ids)))
    recorded = np.load(DATA / "version_1.npz")
    for pattern in (1, 2, 3):
        expected = recorded[f"pattern{pattern}"]
        atol = 1e-6 * abs(expected).mean()
        np.testing.assert_allclose(output.embedding(pattern), expected, rtol=0, atol=atol)
    assert output.selection is not None
    assert np.array_equal(torch.stack(list(output.selection.kept)), recorded["kept"])
