"""The items that a query finds first, to be looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evaluation.distances import nearest_indices
from evaluation.ranking import Retrieval


@dataclass(frozen=True)
class RankLists:
    """For each of Q queries its nearest items and its nearest positive; dropped items are left out."""

    # (Q, top) the nearest items, as indices of the gallery, nearest first; -1 after the last.
    items: np.ndarray
    distances: np.ndarray  # (Q, top) their distances; NaN after the last. Euclidean, or those of re-ranking.
    # (Q,) the rank of the nearest positive, from 1, even if above `top`; 0 without one.
    positive_ranks: np.ndarray
    positives: np.ndarray  # (Q,) its index in the gallery; -1 without one
    positive_distances: np.ndarray  # (Q,) its distance; NaN without one

    def with_rows(self, gallery_rows: np.ndarray) -> RankLists:
        """The lists with `gallery_rows[index]` (G,) in place of each index; -1 stays."""
        rows = np.append(gallery_rows, -1)  # index -1 reads the last entry
        return replace(self, items=rows[self.items], positives=rows[self.positives])


def nearest(retrieval: Retrieval, top: int) -> RankLists:
    """List the `top` nearest items of every query, or all there are, and its nearest positive."""
    num_queries = len(retrieval.query_ids)
    lists = RankLists(
        items=np.full((num_queries, top), -1),
        distances=np.full((num_queries, top), np.nan),
        positive_ranks=np.zeros(num_queries, dtype=np.int64),
        positives=np.full(num_queries, -1),
        positive_distances=np.full(num_queries, np.nan),
    )
    query = 0
    for chunk in retrieval.ranked_chunks():
        for distances, start, end in zip(chunk.distances, chunk.bounds[:-1], chunk.bounds[1:], strict=True):
            items = nearest_indices(distances, top)
            lists.items[query, : len(items)] = items
            lists.distances[query, : len(items)] = retrieval.distances.between(query, items)
            if end > start:
                positive = chunk.positives[start]
                lists.positive_ranks[query], lists.positives[query] = chunk.ranks[start], positive
                lists.positive_distances[query] = retrieval.distances.between(query, positive[None])[0]
            query += 1
    return lists
