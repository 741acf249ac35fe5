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
    """Some queries, Q' of them, and their H positives: query by query, and nearest first.

    Attributes:
        first: the number of the first query, in [0, Q).
        distances: (Q', G) from the queries to the gallery items; infinite where an item is dropped.
        queries: (H,) in [0, Q'), ascending: whose positive it is.
        items: (H,) in [0, G): its index in the gallery.
        ranks: (H,) from 1.
    """

    first: int
    distances: np.ndarray
    queries: np.ndarray
    items: np.ndarray
    ranks: np.ndarray


@dataclass(frozen=True)
class Retrieval:
    """Q queries, a gallery of G items, and the rule by which items are dropped.

    A group is a camera or a scene. For each query the gallery items of the same identity *and* the same group
    are dropped; this also drops the query itself where the query is part of the gallery. The other items are
    ranked by distance, and items at equal distance by their index in the gallery. A positive is an item of
    the query's identity that is not dropped.

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

    def in_gallery(self, items: np.ndarray) -> Retrieval:
        """The same queries with some items of the gallery, given by their indices."""
        return replace(
            self,
            distances=self.distances.in_gallery(items),
            gallery_ids=self.gallery_ids[items],
            gallery_groups=self.gallery_groups[items],
        )

    def map_chunks(
        self, function: Callable[[RankedChunk], T], chunk_size: int = CHUNK_SIZE, threads: int = THREADS
    ) -> list[T]:
        """Rank the positives of some queries at a time; returns what `function` makes of each chunk.

        Args:
            function: takes the queries of a chunk; it may be called from several threads.
            chunk_size: the most queries in a chunk; fewer if the gallery is large.
            threads: chunks at once. Meanwhile a matrix product keeps to the thread that asks for it.
        """
        num_queries, num_gallery = self.distances.shape
        by_id = np.argsort(self.gallery_ids, kind="stable")
        # The items with the identity of a query are by_id[start : start + count], in gallery order.
        starts = np.searchsorted(self.gallery_ids, self.query_ids, "left", sorter=by_id)
        counts = np.searchsorted(self.gallery_ids, self.query_ids, "right", sorter=by_id) - starts
        chunk_size = rows_at_once(num_gallery + 8 * counts.max(), chunk_size)

        def rank_chunk(first: int) -> T:
            chunk = slice(first, first + chunk_size)
            distances = self.distances.of(chunk)
            # All items of the queries' identities, without those that the rule drops.
            queries = np.repeat(np.arange(len(distances)), counts[chunk])
            items = by_id[_ranges(starts[chunk], counts[chunk])]
            dropped = self.query_groups[chunk][queries] == self.gallery_groups[items]
            distances[queries[dropped], items[dropped]] = np.inf
            queries, items = queries[~dropped], items[~dropped]
            # Nearest first, with their ranks.
            wanted = distances[queries, items]
            order = np.lexsort((wanted, queries))
            queries, items, wanted = queries[order], items[order], wanted[order]
            bounds = np.searchsorted(queries, np.arange(len(distances) + 1))
            ranks = 1 + items_before(distances, items, wanted, bounds)
            return function(RankedChunk(first, distances, queries, items, ranks))

        firsts = range(0, num_queries, chunk_size)
        one_thread_each = ThreadpoolController().limit(limits=1, user_api="blas")
        with one_thread_each, ThreadPoolExecutor(min(threads, len(firsts))) as pool:
            return list(pool.map(rank_chunk, firsts))

    def rank_positives(self, chunk_size: int = CHUNK_SIZE) -> tuple[np.ndarray, np.ndarray]:
        """The ranks of all positives, query by query.

        Returns:
            (H,) in [0, Q), ascending: whose positive it is. (H,) its rank, from 1, ascending for each query.
        """
        parts = self.map_chunks(lambda chunk: (chunk.first + chunk.queries, chunk.ranks), chunk_size)
        queries, ranks = map(np.concatenate, zip(*parts, strict=True))
        return queries, ranks


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers start, start + 1, ..., start + count - 1 of each pair, one pair after the other."""
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)


def items_before(
    distances: np.ndarray, items: np.ndarray, wanted: np.ndarray, bounds: np.ndarray
) -> np.ndarray:
    """How many items a stable sort of each row puts before the given ones; only the values are sorted.

    They are sorted in float32, whose rounding keeps their order, and the given ones are searched among them.
    If one of these ties with another item, even by rounding alone, its row is sorted in full.

    Args:
        distances: (Q', G).
        items: (H,) in [0, G), row by row, in the order of the stable sort: by distance, then by index.
        wanted: (H,) their distances.
        bounds: (Q' + 1,) where the items of each row begin, and where the last ones end.

    Returns:
        (H,) ascending in each row.
    """
    with np.errstate(over="ignore"):  # infinite distances tie, and are told apart below
        rounded, wanted = distances.astype(np.float32), wanted.astype(np.float32)
    rounded.sort(axis=1)
    before, through = np.empty_like(items), np.empty_like(items)  # nearer items; those and the equal ones
    for row, start, end in zip(rounded, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        own = wanted[start:end]
        before[start:end] = row.searchsorted(own)
        through[start:end] = row.searchsorted(own, "right")
    ties = np.flatnonzero(through > before + 1)
    for query in np.unique(np.searchsorted(bounds, ties, "right") - 1):
        own_items = slice(bounds[query], bounds[query + 1])
        before[own_items] = _items_before_with_ties(distances[query], items[own_items])
    return before


def _items_before_with_ties(distances: np.ndarray, items: np.ndarray) -> np.ndarray:
    """`items_before` for one row (G,) and its items (M,), M > 0, where some tie."""
    candidates = np.flatnonzero(distances <= distances[items[-1]])
    order = candidates[distances[candidates].argsort(kind="stable")]
    is_wanted = np.zeros(len(distances), dtype=bool)
    is_wanted[items] = True
    return np.flatnonzero(is_wanted[order])


def score_ranks(
    queries: np.ndarray, ranks: np.ndarray, num_queries: int, max_rank: int = MAX_RANK
) -> RankingMetrics:
    """The arithmetic of AP and INP, for each query by itself.

    Args:
        queries: (H,) in [0, num_queries), ascending: whose positive it is.
        ranks: (H,) its rank, from 1, ascending for each query.
        num_queries: Q; a query without a positive is skipped.
        max_rank: length of the CMC curve.
    """
    average_precisions, penalties = np.full((2, num_queries), np.nan)
    first_hits = np.zeros(num_queries, dtype=np.int64)
    scored, starts, num_positives = np.unique(queries, return_index=True, return_counts=True)
    positives_so_far = _ranges(np.ones_like(starts), num_positives)
    precisions = positives_so_far / ranks
    average_precisions[scored] = np.add.reduceat(precisions, starts) / num_positives
    penalties[scored] = num_positives / ranks[starts + num_positives - 1]
    first_hits[scored] = ranks[starts]
    return RankingMetrics(average_precisions, penalties, first_hits, max_rank)


def score_retrieval(
    retrieval: Retrieval, *, max_rank: int = MAX_RANK, chunk_size: int = CHUNK_SIZE
) -> RankingMetrics:
    """Rank the gallery for every query, and score the rankings; a UserError if no query has a positive.

    Args:
        retrieval: queries, gallery and distances.
        max_rank: length of the CMC curve; a smaller gallery shortens it to G.
        chunk_size: the most queries that are ranked at once; fewer if the gallery is large.
    """
    num_queries, num_gallery = retrieval.distances.shape
    queries, ranks = retrieval.rank_positives(chunk_size)
    if len(queries) == 0:
        raise UserError(
            f"none of the {num_queries} queries can be scored: the gallery has no image of the same identity "
            "that the protocol counts, one of another camera (or scene); check the files of the test split"
        )
    return score_ranks(queries, ranks, num_queries, min(max_rank, num_gallery))


def rank(
    query_features: np.ndarray,
    gallery_features: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_groups: np.ndarray,
    gallery_groups: np.ndarray,
    **options: int,
) -> RankingMetrics:
    """Rank by the Euclidean distance of features, (Q, D) and (G, D), L2-normalised by the caller if wanted.

    Labels as in `Retrieval`, options as in `score_retrieval`.
    """
    distances = SquaredEuclidean(query_features, gallery_features)
    retrieval = Retrieval(distances, query_ids, gallery_ids, query_groups, gallery_groups)
    return score_retrieval(retrieval, **options)


def rank_distances(distances: np.ndarray, *labels: np.ndarray, **options: int) -> RankingMetrics:
    """Rank by given distances, (Q, G); labels as in `Retrieval`, options as in `score_retrieval`."""
    return score_retrieval(Retrieval(GivenDistances(distances), *labels), **options)
