"""Retrieval scores: distances and labels in, mAP, mINP and CMC out."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from evaluation.distances import CHUNK_SIZE, GivenDistances, SquaredEuclidean, rows_at_once
from structures import RankingMetrics, UserError

MAX_RANK = 50
THREADS = min(4, os.cpu_count() or 1)  # chunks of distances at once; each has CHUNK_BYTES

T = TypeVar("T")


class RankedChunk(NamedTuple):
    """Some queries, Q' of them, and their H right matches: query by query, and nearest first.

    Attributes:
        distances: (Q', G) from the queries to the gallery items; infinite where an item is dropped.
        queries: (H,) in [0, Q'), ascending: whose right match it is.
        places: (H,) in [0, G): which gallery item it is.
        ranks: (H,) its rank, from 1.
    """

    distances: np.ndarray
    queries: np.ndarray
    places: np.ndarray
    ranks: np.ndarray


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

    def map_chunks(
        self, function: Callable[[RankedChunk], T], chunk_size: int = CHUNK_SIZE, threads: int = THREADS
    ) -> list[T]:
        """What `function` makes of the right matches, of some queries at a time; all of them in order.

        Args:
            function: takes the queries of a chunk; it may be called from several threads.
            chunk_size: the most queries in a chunk; fewer if the gallery is large.
            threads: chunks at once. Meanwhile a matrix product keeps to the thread that asks for it.
        """
        num_queries, num_gallery = self.distances.shape
        by_id = np.argsort(self.gallery_ids, kind="stable")
        # The items with the identity of a query are by_id[start : start + count], as the gallery has them.
        starts = np.searchsorted(self.gallery_ids, self.query_ids, "left", sorter=by_id)
        counts = np.searchsorted(self.gallery_ids, self.query_ids, "right", sorter=by_id) - starts
        chunk_size = rows_at_once(num_gallery + 8 * counts.max(), chunk_size)

        def ranked(first: int) -> T:
            chunk = slice(first, first + chunk_size)
            distances = self.distances.of(chunk)
            queries = np.repeat(np.arange(len(distances)), counts[chunk])
            places = by_id[_ranges(starts[chunk], counts[chunk])]
            dropped = self.query_groups[chunk][queries] == self.gallery_groups[places]
            distances[queries[dropped], places[dropped]] = np.inf
            queries, places = queries[~dropped], places[~dropped]
            wanted = distances[queries, places]
            order = np.lexsort((wanted, queries))
            queries, places, wanted = queries[order], places[order], wanted[order]
            bounds = np.searchsorted(queries, np.arange(len(distances) + 1))
            ranks = 1 + items_before(distances, places, wanted, bounds)
            return function(RankedChunk(distances, queries, places, ranks))

        firsts = range(0, num_queries, chunk_size)
        one_thread_each = ThreadpoolController().limit(limits=1, user_api="blas")
        with one_thread_each, ThreadPoolExecutor(min(threads, len(firsts))) as pool:
            return list(pool.map(ranked, firsts))


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers start, start + 1, ..., start + count - 1 of each pair, one pair after the other."""
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)


def items_before(
    distances: np.ndarray, places: np.ndarray, wanted: np.ndarray, bounds: np.ndarray
) -> np.ndarray:
    """How many items a stable sort of each row puts before the given ones; only the values are sorted.

    They are sorted in float32, whose rounding keeps their order, and the given ones are searched among them.
    If one of these ties with another item, be it by rounding, its row is sorted by place after all.

    Args:
        distances: (Q', G).
        places: (H,) in [0, G), row by row, in the order of the stable sort: by distance, then by place.
        wanted: (H,) their distances.
        bounds: (Q' + 1,) where the places of each row begin, and where the last ones end.

    Returns:
        (H,) ascending in each row.
    """
    with np.errstate(over="ignore"):  # infinite distances tie, and are told apart below
        rounded, wanted = distances.astype(np.float32), wanted.astype(np.float32)
    rounded.sort(axis=1)
    before, through = np.empty_like(places), np.empty_like(places)  # nearer items; those and the equal ones
    for row, start, end in zip(rounded, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        own = wanted[start:end]
        before[start:end] = row.searchsorted(own)
        through[start:end] = row.searchsorted(own, "right")
    ties = np.flatnonzero(through > before + 1)
    for query in np.unique(np.searchsorted(bounds, ties, "right") - 1):
        own_places = slice(bounds[query], bounds[query + 1])
        before[own_places] = _items_before_by_place(distances[query], places[own_places])
    return before


def _items_before_by_place(distances: np.ndarray, places: np.ndarray) -> np.ndarray:
    """`items_before` for one row (G,) and its places (M,), M > 0, where items tie."""
    candidates = np.flatnonzero(distances <= distances[places[-1]])
    order = candidates[distances[candidates].argsort(kind="stable")]
    is_wanted = np.zeros(len(distances), dtype=bool)
    is_wanted[places] = True
    return np.flatnonzero(is_wanted[order])


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
        chunk_size: the most queries that are ranked at once; fewer if the gallery is large.

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
            f"none of the {num_queries} queries can be scored: the gallery has no image of the same identity "
            "that the protocol counts, one of another camera (or scene); check the files of the test split"
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
    parts = retrieval.map_chunks(_score_chunk, chunk_size)
    return QueryScores(*map(np.concatenate, zip(*parts, strict=True)))


def _score_chunk(chunk: RankedChunk) -> QueryScores:
    """The scores of the queries of one chunk."""
    size = len(chunk.distances)
    scores = QueryScores(np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, dtype=np.int64))
    has_hit, starts, num_hits = np.unique(chunk.queries, return_index=True, return_counts=True)
    hits_so_far = _ranges(np.ones_like(starts), num_hits)
    precisions = hits_so_far / chunk.ranks
    scores.average_precisions[has_hit] = np.add.reduceat(precisions, starts) / num_hits
    scores.inverse_negative_penalties[has_hit] = num_hits / chunk.ranks[starts + num_hits - 1]
    scores.first_hits[has_hit] = chunk.ranks[starts]
    return scores
