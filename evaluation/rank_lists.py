"""The items that a query finds first, to be looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evaluation.distances import CHUNK_SIZE, nearest_places
from evaluation.ranking import RankedChunk, Retrieval


@dataclass(frozen=True)
class RankLists:
    """For each of Q queries its nearest items and its nearest right match; dropped items are left out.

    Attributes:
        places: (Q, top) the nearest items, as places in the gallery, nearest first; -1 beyond the last.
        distances: (Q, top) their distances; NaN beyond the last. Euclidean, or those of re-ranking.
        match_ranks: (Q,) the rank of the nearest right match, from 1, also beyond `top`; 0 if there is none.
        match_places: (Q,) its place in the gallery; -1 if there is none.
        match_distances: (Q,) its distance; NaN if there is none.
    """

    places: np.ndarray
    distances: np.ndarray
    match_ranks: np.ndarray
    match_places: np.ndarray
    match_distances: np.ndarray

    def with_rows(self, gallery_rows: np.ndarray) -> RankLists:
        """The lists with `gallery_rows[place]` (G,) instead of each place; -1 stays."""
        rows = np.append(gallery_rows, -1)  # so that place -1 reads -1
        return replace(self, places=rows[self.places], match_places=rows[self.match_places])


def nearest(retrieval: Retrieval, top: int, *, chunk_size: int = CHUNK_SIZE) -> RankLists:
    """List the `top` nearest kept items of every query, or all there are, and its nearest right match."""
    parts = retrieval.map_chunks(lambda chunk: _nearest_in_chunk(chunk, top), chunk_size)
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    joined |= {name: retrieval.distances.to_report(joined[name]) for name in ("distances", "match_distances")}
    return RankLists(**joined)


def _nearest_in_chunk(chunk: RankedChunk, top: int) -> RankLists:
    """The lists of the queries of one chunk, with the distances by which they were ranked."""
    num_queries = len(chunk.distances)
    lists = RankLists(
        places=np.full((num_queries, top), -1),
        distances=np.full((num_queries, top), np.nan),
        match_ranks=np.zeros(num_queries, dtype=np.int64),
        match_places=np.full(num_queries, -1),
        match_distances=np.full(num_queries, np.nan),
    )
    for query, distances in enumerate(chunk.distances):
        places = nearest_places(distances, top)
        lists.places[query, : len(places)] = places
        lists.distances[query, : len(places)] = distances[places]
    has_hit, first = np.unique(chunk.queries, return_index=True)
    places = chunk.places[first]
    lists.match_ranks[has_hit] = chunk.ranks[first]
    lists.match_places[has_hit] = places
    lists.match_distances[has_hit] = chunk.distances[has_hit, places]
    return lists
