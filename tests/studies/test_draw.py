"""One picture of what several variants keep of the same triples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from config import load_config
from conftest import ROOT
from errors import UserError
from modeling.make_model import make_model
from studies.__main__ import main
from studies.draw import kept_pictures

VARIANTS = {"base": "Baseline", "SDTPS": "DeMo_SDTPS", "Signal": "Signal"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """Finished runs of untrained models."""
    folder = tmp_path_factory.mktemp("study")
    for variant, name in VARIANTS.items():
        run = folder / variant / "seed_1"
        run.mkdir(parents=True)
        cfg = load_config(ROOT / "configs" / "Synthetic" / f"{name}.yml", mini_settings)
        split = {"classes": 8, "cameras": [0, 1], "scenes": [0]}
        state = make_model(cfg, 8, 2).state_dict()
        torch.save({"model": state, "config": cfg.dump(), "data": split}, run / "last.pth")
        (run / "metrics.json").write_text(json.dumps({"epochs": [], "summary": {}}))
    return folder


def test_what_is_discarded_is_veiled(study: Path) -> None:
    images, kept, names = kept_pictures(study / "SDTPS" / "seed_1", 2)
    assert kept is not None
    assert images.shape == kept.shape == (2, 3, 128, 64, 3)
    assert len(names) == 2
    # Half of the patches of 8 x 8 pixels are as they were, in every image.
    same = np.isclose(images, kept).all(axis=-1).reshape(2, 3, 16, 8, 8, 8).all(axis=(3, 5))
    assert same.sum(axis=(2, 3)).tolist() == [[64] * 3] * 2
    assert kept_pictures(study / "base" / "seed_1", 2)[1] is None


def test_a_row_per_variant_that_selects(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.jpg"
    main(["draw", str(study), "--count", "2", "--width", "3", "--output", str(path)])
    out = capsys.readouterr().out
    assert "base keeps every patch: it has no row" in out
    assert "2 triples, rows image, SDTPS, Signal" in out
    with Image.open(path) as picture:
        assert picture.format == "JPEG"
        assert picture.width == 450
    with pytest.raises(UserError, match=r"--output must end in \.jpg or \.png, not \.gif"):
        main(["draw", str(study), "--output", str(tmp_path / "kept.gif")])
