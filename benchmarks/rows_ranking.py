"""The rows on ranking: by camera, by scene, re-ranked, and against a gallery of a million."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.baselines import Scores, euclidean, rank_by_loop, rerank_by_loop
from benchmarks.bench import Row, Sizes, compare, in_child
from evaluation.ranking import rank
from evaluation.rerank import rerank
from structures import RankingMetrics

ITEMS_PER_IDENTITY = 25
NUM_GROUPS = 6
MILLION_WIDTH = 512
_BLOCK = 2**14


class Features(NamedTuple):
    """Made-up features of identities that overlap, L2-normalised, with their labels."""

    query: np.ndarray  # (Q, D) float32
    gallery: np.ndarray  # (G, D) float32
    query_ids: np.ndarray  # (Q,)
    gallery_ids: np.ndarray  # (G,)
    query_groups: np.ndarray  # (Q,) cameras or scenes
    gallery_groups: np.ndarray  # (G,)


def make_features(shape: tuple[int, int], width: int, seed: int = 0) -> Features:
    """Features for a number of queries and of gallery items."""
    rng = np.random.default_rng(seed)
    num_identities = max(2, shape[1] // ITEMS_PER_IDENTITY)
    centres = rng.standard_normal((num_identities, width), dtype=np.float32)
    ids = [rng.integers(0, num_identities, size) for size in shape]
    groups = [rng.integers(0, NUM_GROUPS, size) for size in shape]
    query, gallery = (_around(centres, labels, rng) for labels in ids)
    return Features(query, gallery, *ids, *groups)


def _around(centres: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A noisy copy of the centre of each label, (L, D), of length 1; block by block, to save memory."""
    features = np.empty((len(labels), centres.shape[1]), dtype=np.float32)
    for start in range(0, len(labels), _BLOCK):
        block = features[start : start + _BLOCK]
        rng.standard_normal(dtype=np.float32, out=block)
        block *= 2
        block += centres[labels[start : start + _BLOCK]]
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return features


def rank_project(features: Features) -> Scores:
    """The project's way."""
    return scores_of(rank(*features))


def rank_plain(features: Features) -> Scores:
    """The plain way: all distances, then a loop."""
    return rank_by_loop(euclidean(features.query, features.gallery), *features[2:])


def scores_of(metrics: RankingMetrics) -> Scores:
    """The scores that the plain way gives, too."""
    return metrics.mean_ap, metrics.mean_inp, metrics.cmc


def score_difference(first: Scores, second: Scores) -> float:
    """The largest difference between mAP, mINP and CMC, as far as both curves go."""
    length = min(len(first[2]), len(second[2]))
    curves = float(np.abs(first[2][:length] - second[2][:length]).max())
    return max(abs(first[0] - second[0]), abs(first[1] - second[1]), curves)


def ranking(sizes: Sizes) -> Row:
    """Ranking by camera, with its memory."""
    prepare = partial(make_features, sizes.ranking, sizes.feature_width)
    ways = {"plain": rank_plain, "project": rank_project}
    memory = {way: f"{in_child(prepare, work).growth / 1e9:.2f} GB" for way, work in ways.items()}
    notes = {f"memory {way}": size for way, size in memory.items()}
    return _rank("ranking", sizes.ranking, sizes, at_least=6, notes=notes)


def scene(sizes: Sizes) -> Row:
    """Ranking by the scene protocol; to `rank` the groups are scenes instead of cameras."""
    return _rank("scene protocol", sizes.scene, sizes, at_least=5)


def _rank(
    title: str, shape: tuple[int, int], sizes: Sizes, *, at_least: float, notes: dict[str, str] | None = None
) -> Row:
    features = make_features(shape, sizes.feature_width)
    return compare(
        f"{title} {shape[0]:,} x {shape[1]:,}",
        {"plain": partial(rank_plain, features), "project": partial(rank_project, features)},
        sizes,
        at_least=at_least,
        difference=score_difference,
        tolerance=1e-4,  # the plain way rounds distances to float32, which may swap near neighbours
        notes=notes,
    )


def reranking(sizes: Sizes) -> Row:
    """K-reciprocal re-ranking, queries and gallery as one set."""
    query, gallery, *_ = make_features(sizes.reranking, sizes.feature_width)
    return compare(
        f"re-ranking {sum(sizes.reranking):,} features",
        {"plain": lambda: rerank_by_loop(query, gallery), "project": lambda: rerank(query, gallery)},
        sizes,
        at_least=5,
        difference=lambda plain, project: float(np.abs(plain - project).max()),
        tolerance=5e-3,  # both sum in half precision, whose steps near 1 are 1e-3
        warm_up=False,
    )


def million(sizes: Sizes) -> Row:
    """A gallery that the plain way cannot rank: its distances and their order would take 12 GB."""
    assert sizes.million is not None
    run = in_child(partial(make_features, sizes.million, MILLION_WIDTH), rank_project)
    title = f"ranking {sizes.million[0]:,} x {sizes.million[1]:,}, features of {MILLION_WIDTH}"
    return Row(title, None, run.seconds, notes={"memory with features": f"{run.peak / 1e9:.2f} GB"})
