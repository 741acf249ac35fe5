"""Retrieval scores: features or distances and labels in, mAP, mINP and CMC out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from errors import UserError
from evaluation.distances import GivenDistances, SquaredEuclidean
from structures import RankingMetrics

MAX_RANK = 50  # length of the CMC curve; a smaller gallery shortens it
CHUNK_SIZE = 1024  # queries at once, unless CHUNK_BYTES asks for fewer
CHUNK_BYTES = 2**28  # of the distances that are held at once


class RankedQuery(NamedTuple):
    """One query and its P positives, nearest first."""

    distances: np.ndarray  # (G,) to the gallery items; infinite where an item is dropped
    positives: np.ndarray  # (P,) their indices in the gallery
    ranks: np.ndarray  # (P,) from 1, ascending


@dataclass(frozen=True)
class Retrieval:
    """Q queries, a gallery of G items, and the rule by which items are dropped.

    A group is a camera or a scene. For each query the gallery items of the same identity *and* the same group
    are dropped; this also drops the query itself where the query is part of the gallery. The other items are
    ranked by distance, and items at equal distance by their index in the gallery. A positive is an item of
    the query's identity that is not dropped.
    """

    distances: SquaredEuclidean | GivenDistances  # from the queries to the gallery items
    query_ids: np.ndarray  # (Q,) identities
    gallery_ids: np.ndarray  # (G,) identities
    query_groups: np.ndarray  # (Q,) cameras or scenes
    gallery_groups: np.ndarray  # (G,) cameras or scenes

    def __post_init__(self) -> None:
        labels = ((self.query_ids, self.query_groups), (self.gallery_ids, self.gallery_groups))
        for side, size, (ids, groups) in zip(("query", "gallery"), self.distances.shape, labels, strict=True):
            if not size == len(ids) == len(groups):
                raise UserError(
                    f"the {side} has {size} {self.distances.unit}, {len(ids)} identities and {len(groups)} "
                    "groups; give one of each per item"
                )

    def in_gallery(self, items: np.ndarray) -> Retrieval:
        """The same queries with some items of the gallery, given by their indices."""
        return replace(
            self,
            distances=self.distances.in_gallery(items),
            gallery_ids=self.gallery_ids[items],
            gallery_groups=self.gallery_groups[items],
        )

    def ranked_queries(self) -> Iterator[RankedQuery]:
        """Each query in turn; the distances of at most `CHUNK_SIZE` queries are held at once."""
        num_queries, num_gallery = self.distances.shape
        chunk_size = max(1, min(CHUNK_SIZE, CHUNK_BYTES // (4 * num_gallery)))
        # The items with the identity of a query are by_id[start:end], in gallery order.
        by_id = np.argsort(self.gallery_ids, kind="stable")
        starts = np.searchsorted(self.gallery_ids, self.query_ids, "left", sorter=by_id)
        ends = np.searchsorted(self.gallery_ids, self.query_ids, "right", sorter=by_id)
        for first in range(0, num_queries, chunk_size):
            rows = self.distances.of(slice(first, first + chunk_size))
            for query, distances in enumerate(rows, first):
                same_id = by_id[starts[query] : ends[query]]
                dropped = self.gallery_groups[same_id] == self.query_groups[query]
                distances[same_id[dropped]] = np.inf
                yield RankedQuery(distances, *rank_positives(distances, same_id[~dropped]))


def rank_positives(distances: np.ndarray, positives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positives (P,), nearest first, and their ranks by a stable sort of the distances (G,), from 1.

    Sorting the values and searching the positives among them is several times faster than sorting indices.
    """
    positives = positives[np.argsort(distances[positives], kind="stable")]
    wanted, ascending = distances[positives], np.sort(distances)
    nearer, not_farther = ascending.searchsorted(wanted), ascending.searchsorted(wanted, "right")
    if (not_farther > nearer + 1).any():  # a positive ties with another item, and the index decides
        nearer = np.flatnonzero(np.isin(np.argsort(distances, kind="stable"), positives))
    return positives, nearer + 1


def score_queries(retrieval: Retrieval) -> RankingMetrics:
    """Rank the gallery for every query, and score the rankings; a query without a positive is skipped."""
    num_queries, num_gallery = retrieval.distances.shape
    average_precisions, penalties = np.full((2, num_queries), np.nan)
    first_hits = np.zeros(num_queries, dtype=np.int64)
    for query, (_, positives, ranks) in enumerate(retrieval.ranked_queries()):
        if len(positives):
            average_precisions[query] = np.mean(np.arange(1, len(ranks) + 1) / ranks)
            penalties[query] = len(ranks) / ranks[-1]
            first_hits[query] = ranks[0]
    return RankingMetrics(average_precisions, penalties, first_hits, min(MAX_RANK, num_gallery))


def score_retrieval(retrieval: Retrieval) -> RankingMetrics:
    """As `score_queries`; a UserError if no query has a positive."""
    metrics = score_queries(retrieval)
    if metrics.num_queries == 0:
        raise UserError(
            f"none of the {metrics.num_skipped} queries can be scored: the gallery has no image of the same "
            "identity that the protocol counts, one of another camera (or scene); check the files of the "
            "test split"
        )
    return metrics


def rank(
    query_features: np.ndarray,
    gallery_features: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_groups: np.ndarray,
    gallery_groups: np.ndarray,
) -> RankingMetrics:
    """Rank by the Euclidean distance of features, (Q, D) and (G, D); labels as in `Retrieval`."""
    distances = SquaredEuclidean(query_features, gallery_features)
    return score_retrieval(Retrieval(distances, query_ids, gallery_ids, query_groups, gallery_groups))
