"""mAP, CMC and re-ranking against numbers recorded from the published DeMo code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.distances import GivenDistances
from evaluation.ranking import Retrieval, rank, score_retrieval
from evaluation.rerank import rerank

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


@pytest.mark.parametrize(("k1", "k2", "chunk_size"), [(50, 15, 256), (20, 6, 256), (50, 15, 17)])
def test_re_ranking(k1: int, k2: int, chunk_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluation.rerank.CHUNK_SIZE", chunk_size)
    recorded = json.loads((DATA / "expected.json").read_text())["ranking"][f"rerank_{k1}_{k2}_0.3"]
    inputs = np.load(DATA / "ranking_inputs.npz")
    distances = rerank(
        inputs["query_features"],
        inputs["gallery_features"],
        k1=k1,
        k2=k2,
        weight=0.3,
    )
    np.testing.assert_allclose(distances[0], recorded["distance_row0"], atol=2e-6)
    labels = [inputs[f"{side}_{label}"] for label in ("ids", "cameras") for side in ("query", "gallery")]
    metrics = score_retrieval(Retrieval(GivenDistances(distances), *labels))
    assert metrics.mean_ap == pytest.approx(recorded["mAP"], abs=1e-6)
    np.testing.assert_allclose(metrics.cmc, recorded["cmc"], atol=1e-6)
