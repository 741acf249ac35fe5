"""mAP and CMC against numbers recorded from the published DeMo code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.ranking import rank

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(("protocol", "groups"), [("market", "cameras"), ("scene", "scenes")])
def test_ranking(protocol: str, groups: str) -> None:
    recorded = json.loads((DATA / "expected.json").read_text())["ranking"][protocol]
    inputs = np.load(DATA / "ranking_inputs.npz")
    metrics = rank(
        inputs["query_features"],
        inputs["gallery_features"],
        inputs["query_ids"],
        inputs["gallery_ids"],
        inputs[f"query_{groups}"],
        inputs[f"gallery_{groups}"],
    )
    assert metrics.mean_ap == pytest.approx(recorded["mAP"], abs=1e-6)
    np.testing.assert_allclose(metrics.cmc, recorded["cmc"], atol=1e-6)
