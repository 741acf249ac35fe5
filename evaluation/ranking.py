"""Retrieval scores: features and labels in, mean average precision and CMC out."""

from __future__ import annotations

import numpy as np

from structures import RankingMetrics, UserError


def rank(
    query_features: np.ndarray,
    gallery_features: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_groups: np.ndarray,
    gallery_groups: np.ndarray,
    *,
    max_rank: int = 50,
    chunk_size: int = 256,
) -> RankingMetrics:
    """Rank the gallery for every query by Euclidean distance and score the rankings.

    A group is a camera or a scene. For each query the gallery items of the same identity *and* the same group
    are dropped; this also drops the query itself where the query is part of the gallery. The other items are
    ranked by distance, and items at equal distance by their place in the gallery. A query that has no right
    match left is skipped and counted. The average precision of a query is the mean, over its right matches,
    of the share of right matches among the items ranked so far.

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
        mAP and CMC over the queries that were scored.

    Raises:
        UserError: if a side is empty, lengths differ, a feature is not finite or no query can be scored.
    """
    query = _checked_features("query", query_features, query_ids, query_groups)
    gallery = _checked_features("gallery", gallery_features, gallery_ids, gallery_groups)
    if query.shape[1] != gallery.shape[1]:
        raise UserError(
            f"query features have {query.shape[1]} dimensions and gallery features {gallery.shape[1]}; "
            "they must come from the same model and return pattern"
        )
    gallery_norms = np.square(gallery).sum(axis=1)  # (G,)
    twins = _first_equal_row(gallery)  # (G,)

    average_precisions, first_hits = [], []
    for start in range(0, len(query), chunk_size):
        chunk = slice(start, start + chunk_size)
        # The squared distance less the query's own squared norm, which does not change the order.
        distances = gallery_norms - 2 * query[chunk] @ gallery.T  # (Q', G)
        order = np.argsort(distances[:, twins], axis=1, kind="stable")
        same_id = query_ids[chunk, None] == gallery_ids[order]
        same_group = query_groups[chunk, None] == gallery_groups[order]
        ap, first_hit = _score_rankings(hits=same_id & ~same_group, kept=~(same_id & same_group))
        average_precisions.append(ap)
        first_hits.append(first_hit)

    scored = np.concatenate(average_precisions)
    if len(scored) == 0:
        raise UserError(
            f"none of the {len(query)} queries has a right match in the gallery once the items of its own "
            "identity and group are dropped; check the identities, cameras and scenes of the data set"
        )
    ranks = np.arange(1, min(max_rank, len(gallery)) + 1)
    cmc = (np.concatenate(first_hits)[:, None] <= ranks).mean(axis=0)
    return RankingMetrics(float(scored.mean()), cmc, len(scored), len(query) - len(scored))


def _checked_features(side: str, features: np.ndarray, ids: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The features in float64, or a UserError that names the side."""
    if len(features) == 0:
        raise UserError(f"the {side} is empty; there is nothing to rank")
    if not len(features) == len(ids) == len(groups):
        raise UserError(
            f"the {side} has {len(features)} features, {len(ids)} identities and {len(groups)} groups; "
            "give one of each per item"
        )
    num_broken = int((~np.isfinite(features).all(axis=1)).sum())
    if num_broken:
        raise UserError(
            f"{num_broken} of {len(features)} {side} features contain NaN or infinity; the model has "
            "diverged or its weights are damaged"
        )
    return features.astype(np.float64)


def _first_equal_row(features: np.ndarray) -> np.ndarray:
    """For each row (G, D) the index of the first row equal to it, shape (G,).

    A matrix product may round equal rows differently, by their place in memory. Reading the distance of the
    first of them makes equal features tie exactly, on every machine.
    """
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(row.tobytes(), index) for index, row in enumerate(features)])


def _score_rankings(hits: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Score the rankings that have a hit.

    Args:
        hits: (Q, G), the right matches, nearest first.
        kept: (Q, G), the items that count, nearest first; every hit is kept.

    Returns:
        The average precision and the rank of the first hit, from 1, both (number of rankings with a hit,).
    """
    has_hit = hits.any(axis=1)
    hits, ranks = hits[has_hit], kept[has_hit].cumsum(axis=1)
    precisions = hits.cumsum(axis=1) / np.maximum(
        ranks, 1
    )  # items dropped before the first kept one have rank 0
    average_precision = (precisions * hits).sum(axis=1) / hits.sum(axis=1)
    first_hit = np.take_along_axis(ranks, hits.argmax(axis=1)[:, None], axis=1)[:, 0]
    return average_precision, first_hit
