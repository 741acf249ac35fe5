"""Retrieval scores: distances and labels in, mAP, mINP and CMC out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from evaluation.distances import GivenDistances, SquaredEuclidean
from structures import RankingMetrics, UserError

MAX_RANK = 50
CHUNK_SIZE = 256


class RankedChunk(NamedTuple):
    """The rankings of some queries, Q' of them.

    Attributes:
        queries: which ones.
        distances: (Q', G), in the order of the gallery.
        order: (Q', G) places in the gallery, nearest first.
        kept: (Q', G), the items that count, nearest first.
        hits: (Q', G), the right matches, nearest first; every hit is kept.
    """

    queries: slice
    distances: np.ndarray
    order: np.ndarray
    kept: np.ndarray
    hits: np.ndarray

    def ranks(self) -> np.ndarray:
        """(Q', G), nearest first: the rank of each kept item, from 1; a dropped one has that before it."""
        return self.kept.cumsum(axis=1)


@dataclass(frozen=True)
class Retrieval:
    """Q queries, a gallery of G items, and the rule by which items are left out.

    A group is a camera or a scene. For each query the gallery items of the same identity *and* the same group
    are dropped; this also drops the query itself where the query is part of the gallery. The other items are
    ranked by distance, and items at equal distance by their place in the gallery. A right match is a kept
    item of the query's identity.

    Attributes:
        distances: from the queries to the gallery items.
        query_ids: (Q,) identities.
        gallery_ids: (G,) identities.
        query_groups: (Q,) cameras or scenes.
        gallery_groups: (G,) cameras or scenes.
    """

    distances: SquaredEuclidean | GivenDistances
    query_ids: np.ndarray
    gallery_ids: np.ndarray
    query_groups: np.ndarray
    gallery_groups: np.ndarray

    def __post_init__(self) -> None:
        labels = ((self.query_ids, self.query_groups), (self.gallery_ids, self.gallery_groups))
        for side, size, (ids, groups) in zip(("query", "gallery"), self.distances.shape, labels, strict=True):
            if not size == len(ids) == len(groups):
                raise UserError(
                    f"the {side} has {size} {self.distances.unit}, {len(ids)} identities and {len(groups)} "
                    "groups; give one of each per item"
                )

    def in_gallery(self, places: np.ndarray) -> Retrieval:
        """The same queries with a part of the gallery, given by its places."""
        return replace(
            self,
            distances=self.distances.in_gallery(places),
            gallery_ids=self.gallery_ids[places],
            gallery_groups=self.gallery_groups[places],
        )

    def chunks(self, chunk_size: int = CHUNK_SIZE) -> Iterator[RankedChunk]:
        """The rankings, `chunk_size` queries at a time; memory grows with chunk_size * G."""
        for start in range(0, len(self.query_ids), chunk_size):
            queries = slice(start, start + chunk_size)
            distances = self.distances.of(queries)
            order = np.argsort(distances, axis=1, kind="stable")
            same_id = self.query_ids[queries, None] == self.gallery_ids[order]
            same_group = self.query_groups[queries, None] == self.gallery_groups[order]
            yield RankedChunk(
                queries, distances, order, kept=~(same_id & same_group), hits=same_id & ~same_group
            )


class QueryScores(NamedTuple):
    """One score per query, (Q,) each; a query without a right match is skipped.

    Attributes:
        average_precisions: the mean, over the right matches, of the share of right matches among the items
            ranked so far; NaN where skipped.
        inverse_negative_penalties: right matches / rank of the last of them; NaN where skipped.
        first_hits: rank of the first right match, from 1; 0 where skipped.
    """

    average_precisions: np.ndarray
    inverse_negative_penalties: np.ndarray
    first_hits: np.ndarray


def rank(
    query_features: np.ndarray,
    gallery_features: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_groups: np.ndarray,
    gallery_groups: np.ndarray,
    *,
    max_rank: int = MAX_RANK,
    chunk_size: int = CHUNK_SIZE,
) -> RankingMetrics:
    """Rank the gallery for every query by Euclidean distance and score the rankings.

    `Retrieval` says which items are dropped and how ties are ranked.

    Args:
        query_features: (Q, D), L2-normalised by the caller if wanted.
        gallery_features: (G, D), treated alike.
        query_ids: (Q,) identities.
        gallery_ids: (G,) identities.
        query_groups: (Q,) cameras or scenes.
        gallery_groups: (G,) cameras or scenes.
        max_rank: length of the CMC curve; a smaller gallery shortens it to G.
        chunk_size: queries ranked at once; memory grows with chunk_size * G.

    Returns:
        mAP, mINP and CMC over the queries that were scored.

    Raises:
        UserError: if a side is empty, lengths differ, a feature is not finite or no query can be scored.
    """
    distances = SquaredEuclidean(query_features, gallery_features)
    retrieval = Retrieval(distances, query_ids, gallery_ids, query_groups, gallery_groups)
    return score_retrieval(retrieval, max_rank=max_rank, chunk_size=chunk_size)


def rank_distances(
    distances: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_groups: np.ndarray,
    gallery_groups: np.ndarray,
    *,
    max_rank: int = MAX_RANK,
    chunk_size: int = CHUNK_SIZE,
) -> RankingMetrics:
    """Rank the gallery for every query by given distances, (Q, G); all else is as in `rank`."""
    retrieval = Retrieval(GivenDistances(distances), query_ids, gallery_ids, query_groups, gallery_groups)
    return score_retrieval(retrieval, max_rank=max_rank, chunk_size=chunk_size)


def score_retrieval(
    retrieval: Retrieval, *, max_rank: int = MAX_RANK, chunk_size: int = CHUNK_SIZE
) -> RankingMetrics:
    """Score the rankings of all queries; a UserError if none of them can be scored."""
    scores = score_queries(retrieval, chunk_size)
    num_queries, num_gallery = retrieval.distances.shape
    scored = scores.first_hits[scores.first_hits > 0]
    if len(scored) == 0:
        raise UserError(
            f"none of the {num_queries} queries has a right match in the gallery once the items of its own "
            "identity and group are dropped; check the identities, cameras and scenes of the data set"
        )
    cmc = (scored[:, None] <= np.arange(1, min(max_rank, num_gallery) + 1)).mean(axis=0)
    return RankingMetrics(
        mean_ap=float(np.nanmean(scores.average_precisions)),
        mean_inp=float(np.nanmean(scores.inverse_negative_penalties)),
        cmc=cmc,
        **scores._asdict(),
        num_queries=len(scored),
        num_skipped=num_queries - len(scored),
    )


def score_queries(retrieval: Retrieval, chunk_size: int = CHUNK_SIZE) -> QueryScores:
    """Score the ranking of each query by itself."""
    parts = [_score_chunk(chunk) for chunk in retrieval.chunks(chunk_size)]
    return QueryScores(*map(np.concatenate, zip(*parts, strict=True)))


def _score_chunk(chunk: RankedChunk) -> QueryScores:
    """The scores of the queries of one chunk."""
    size = len(chunk.hits)
    scores = QueryScores(np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, dtype=np.int64))
    has_hit = chunk.hits.any(axis=1)
    hits, ranks = chunk.hits[has_hit], chunk.ranks()[has_hit]
    num_hits = hits.sum(axis=1)
    # Items dropped before the first kept one have rank 0.
    precisions = hits.cumsum(axis=1) / np.maximum(ranks, 1)
    first, last = hits.argmax(axis=1), hits.shape[1] - 1 - hits[:, ::-1].argmax(axis=1)
    rows = np.arange(len(hits))
    scores.average_precisions[has_hit] = (precisions * hits).sum(axis=1) / num_hits
    scores.inverse_negative_penalties[has_hit] = num_hits / ranks[rows, last]
    scores.first_hits[has_hit] = ranks[rows, first]
    return scores
