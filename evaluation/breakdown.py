"""Where a model is strong and weak: the scores by identity and by pair of cameras."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.ranking import Retrieval, score_queries
from structures import RankingMetrics

Breakdown = dict[str, list[dict[str, Any]]]
"""Plain numbers for metrics.json and the report, in percent; parts without a scored query are left out.

`identities`: the queries of each person against the whole gallery. `camera_pairs`: the queries of each camera
against the gallery items of each camera alone.
"""


def break_down(
    retrieval: Retrieval, metrics: RankingMetrics, query_cameras: np.ndarray, gallery_cameras: np.ndarray
) -> Breakdown:
    """Score the identities and the pairs of cameras by themselves.

    `metrics` are the scores against the whole gallery. The cameras are (Q,) and (G,).
    """
    pairs = []
    for camera in np.unique(gallery_cameras).tolist():
        part = retrieval.in_gallery(np.flatnonzero(gallery_cameras == camera))
        scores = _score_by("query", query_cameras, score_queries(part))
        pairs += [{"query": row["query"], "gallery": camera, **row} for row in scores]
    pairs.sort(key=lambda pair: (pair["query"], pair["gallery"]))
    return {"identities": _score_by("person", retrieval.query_ids, metrics), "camera_pairs": pairs}


def _score_by(name: str, labels: np.ndarray, metrics: RankingMetrics) -> list[dict[str, Any]]:
    """Scored queries, mAP and Rank-1 by the label of the queries, (Q,), in ascending order."""
    rows = []
    for label in np.unique(labels[metrics.first_hits > 0]).tolist():
        part = metrics.of(labels == label)
        scores = {"mAP": 100 * part.mean_ap, "rank_1": 100 * part.rank(1)}
        rows.append({name: label, "queries": part.num_queries, **scores})
    return rows
