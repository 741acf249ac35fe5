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
CHUNK_BYTES = 2**28  # of the distances that are held at once
NOBODY = -1  # an identity that no triple has: that of a query which is not scored


class RankedChunk(NamedTuple):
    """Some queries, and their positives: P in all, query by query, the nearest first."""

    distances: np.ndarray  # (Q', G) to the gallery items; infinite where an item is dropped
    positives: np.ndarray  # (P,) their indices in the gallery
    ranks: np.ndarray  # (P,) from 1, ascending for each query
    bounds: np.ndarray  # (Q' + 1,) the positives of query i are those from bounds[i] to bounds[i + 1]


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

    def ranked_chunks(self) -> Iterator[RankedChunk]:
        """All queries, some at a time: at most `CHUNK_BYTES` of distances are held at once."""
        num_queries, num_gallery = self.distances.shape
        size = max(1, CHUNK_BYTES // (4 * num_gallery))
        # The items with the identity of a query are by_id[start:end], in gallery order.
        by_id = np.argsort(self.gallery_ids, kind="stable")
        starts = np.searchsorted(self.gallery_ids, self.query_ids, "left", sorter=by_id)
        ends = np.searchsorted(self.gallery_ids, self.query_ids, "right", sorter=by_id)
        for chunk in (slice(first, first + size) for first in range(0, num_queries, size)):
            # All pairs of a query of the chunk and an item of its identity.
            counts = ends[chunk] - starts[chunk]
            queries = np.repeat(np.arange(len(counts)), counts)
            offsets = np.repeat(starts[chunk] - np.cumsum(counts) + counts, counts)
            items = by_id[offsets + np.arange(len(offsets))]
            # Those of the same group are dropped, the others are the positives.
            distances = self.distances.of(chunk)
            dropped = self.gallery_groups[items] == self.query_groups[chunk][queries]
            distances[queries[dropped], items[dropped]] = np.inf
            yield rank_positives(distances, queries[~dropped], items[~dropped])


def rank_positives(distances: np.ndarray, queries: np.ndarray, items: np.ndarray) -> RankedChunk:
    """Rank the positives as a stable sort of each row of the distances (Q', G) would, but faster.

    Args:
        distances: of the queries to all gallery items.
        queries: (P,) the query of each positive, ascending.
        items: (P,) its index in the gallery, ascending for each query.
    """
    # The positives of each query, nearest first; of equal ones the first in the gallery.
    wanted = distances[queries, items]
    order = np.lexsort((wanted, queries))
    items, wanted = items[order], wanted[order]
    bounds = np.searchsorted(queries, np.arange(len(distances) + 1))
    # How many items are nearer, among those not farther than the last positive.
    nearer, not_farther = np.empty((2, len(items)), dtype=np.int64)
    for row, start, end in zip(distances, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if start < end:
            ascending = row[row <= wanted[end - 1]]
            ascending.sort()
            nearer[start:end] = ascending.searchsorted(wanted[start:end])
            not_farther[start:end] = ascending.searchsorted(wanted[start:end], "right")
    for tied in np.flatnonzero(not_farther > nearer + 1):  # others are as near, and the index decides
        nearer[tied] += np.count_nonzero(distances[queries[tied], : items[tied]] == wanted[tied])
    return RankedChunk(distances, items, nearer + 1, bounds)


def score_queries(retrieval: Retrieval) -> RankingMetrics:
    """Rank the gallery for every query, and score the rankings; a query without a positive is skipped."""
    num_queries, num_gallery = retrieval.distances.shape
    average_precisions, penalties = np.full((2, num_queries), np.nan)
    first_hits, first = np.zeros(num_queries, dtype=np.int64), 0
    for _, _, ranks, bounds in retrieval.ranked_chunks():
        counts = np.diff(bounds)
        scored = np.flatnonzero(counts)
        starts, counts = bounds[scored], counts[scored]
        found = np.arange(1, len(ranks) + 1) - np.repeat(starts, counts)  # positives so far
        average_precisions[first + scored] = np.add.reduceat(found / ranks, starts) / counts
        penalties[first + scored] = counts / ranks[starts + counts - 1]
        first_hits[first + scored] = ranks[starts]
        first += len(bounds) - 1
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
