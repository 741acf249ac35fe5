"""Where a model is strong and weak: the scores by identity and by pair of cameras."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.ranking import QueryScores, Retrieval, score_queries
from structures import RankingMetrics


@dataclass(frozen=True)
class PartScore:
    """The score of some of the queries; those without a right match do not count.

    Attributes:
        labels: what the part is: `person`, or the cameras `query` and `gallery`.
        num_queries: queries that were scored, at least 1.
        mean_ap: in [0, 1].
        rank_1: share of the queries whose first item is right, in [0, 1].
    """

    labels: dict[str, int]
    num_queries: int
    mean_ap: float
    rank_1: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, in percent."""
        scores = {"mAP": 100 * self.mean_ap, "rank_1": 100 * self.rank_1}
        return {**self.labels, "queries": self.num_queries, **scores}


@dataclass(frozen=True)
class Breakdown:
    """The score of one ranking in parts, sorted; parts in which no query can be scored are left out.

    Attributes:
        identities: the queries of each person against the whole gallery.
        camera_pairs: the queries of each camera against the gallery items of each camera alone.
    """

    identities: tuple[PartScore, ...]
    camera_pairs: tuple[PartScore, ...]

    def as_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Plain numbers for metrics.json and the report, in percent."""
        return {
            "identities": [score.as_dict() for score in self.identities],
            "camera_pairs": [score.as_dict() for score in self.camera_pairs],
        }


def break_down(
    retrieval: Retrieval, metrics: RankingMetrics, query_cameras: np.ndarray, gallery_cameras: np.ndarray
) -> Breakdown:
    """Score the identities and the pairs of cameras by themselves.

    Args:
        retrieval: the queries, the gallery and the rule by which items are dropped, which holds here too.
        metrics: the scores of the queries against the whole gallery.
        query_cameras: (Q,).
        gallery_cameras: (G,).
    """
    identities = [
        PartScore({"person": person}, *score)
        for person, score in _score_by(retrieval.query_ids, metrics).items()
    ]
    pairs = []
    for camera in np.unique(gallery_cameras).tolist():
        scores = score_queries(retrieval.in_gallery(np.flatnonzero(gallery_cameras == camera)))
        pairs += [
            PartScore({"query": query_camera, "gallery": camera}, *score)
            for query_camera, score in _score_by(query_cameras, scores).items()
        ]
    pairs.sort(key=lambda pair: (pair.labels["query"], pair.labels["gallery"]))
    return Breakdown(tuple(identities), tuple(pairs))


def _score_by(
    labels: np.ndarray, scores: QueryScores | RankingMetrics
) -> dict[int, tuple[int, float, float]]:
    """Scored queries, mAP and Rank-1 by the label of the queries, (Q,), in ascending order."""
    scored = scores.first_hits > 0
    parts = {}
    for label in np.unique(labels[scored]).tolist():
        part = scored & (labels == label)
        rank_1 = (scores.first_hits[part] == 1).mean()
        parts[label] = int(part.sum()), float(scores.average_precisions[part].mean()), float(rank_1)
    return parts
