"""The rows on ranking: by camera, by scene, re-ranked, and against a gallery of a million."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.baselines import Scores, euclidean, euclidean_numpy, rank_by_loop, rerank_by_loop
from benchmarks.bench import Row, Sizes, compare, in_child
from evaluation.ranking import rank
from evaluation.rerank import rerank
from structures import RankingMetrics

MILLION_WIDTH = 512
_BLOCK = 2**14


class Split(NamedTuple):
    """What a ranking of a data set depends on."""

    name: str
    queries: int
    gallery: int
    width: int  # numbers in a descriptor
    identities: int
    groups: int  # cameras or scenes

    @property
    def title(self) -> str:
        """The sizes."""
        return f"{self.queries:,} x {self.gallery:,} x {self.width:,}"

    def smaller(self, share: float) -> Split:
        """A part of the queries and of the gallery."""
        queries, gallery = (round(share * size) for size in (self.queries, self.gallery))
        return self._replace(queries=queries, gallery=gallery)


RGBNT201 = Split("RGBNT201", 836, 836, 1536, identities=30, groups=2)
MSVR310 = Split("MSVR310", 1055, 1055, 3072, identities=155, groups=6)
RGBNT100 = Split("RGBNT100", 1715, 8575, 3072, identities=50, groups=8)
LARGE = Split("a larger set", 3000, 15000, 3072, identities=600, groups=6)


class Features(NamedTuple):
    """Made-up features of identities that overlap, L2-normalised, with their labels."""

    query: np.ndarray  # (Q, D) float32
    gallery: np.ndarray  # (G, D) float32
    query_ids: np.ndarray  # (Q,)
    gallery_ids: np.ndarray  # (G,)
    query_groups: np.ndarray  # (Q,) cameras or scenes
    gallery_groups: np.ndarray  # (G,)


def make_features(split: Split, seed: int = 0) -> Features:
    """Features of a test split."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((split.identities, split.width), dtype=np.float32)
    shape = split.queries, split.gallery
    ids = [rng.integers(0, split.identities, size) for size in shape]
    groups = [rng.integers(0, split.groups, size) for size in shape]
    query, gallery = (_around(centres, labels, rng) for labels in ids)
    return Features(query, gallery, *ids, *groups)


def _around(centres: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A noisy copy of the centre of each label, (L, D), of length 1; block by block, to save memory.

    The wider, the more noise it takes for identities to overlap: the mAP is near 0.7.
    """
    noise = np.float32(0.6 * centres.shape[1] ** 0.25)
    features = np.empty((len(labels), centres.shape[1]), dtype=np.float32)
    for start in range(0, len(labels), _BLOCK):
        block = features[start : start + _BLOCK]
        rng.standard_normal(dtype=np.float32, out=block)
        block *= noise
        block += centres[labels[start : start + _BLOCK]]
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return features


def rank_project(features: Features) -> Scores:
    """The project's way."""
    return scores_of(rank(*features))


def rank_plain(features: Features) -> Scores:
    """The way of published code: all distances, then a loop."""
    return rank_by_loop(euclidean(features.query, features.gallery), *features[2:])


def rank_numpy(features: Features) -> Scores:
    """The same with distances by NumPy."""
    return rank_by_loop(euclidean_numpy(features.query, features.gallery), *features[2:])


def scores_of(metrics: RankingMetrics) -> Scores:
    """The scores that the plain way gives, too."""
    return metrics.mean_ap, metrics.mean_inp, metrics.cmc


def score_difference(first: Scores, second: Scores) -> float:
    """The largest difference between mAP, mINP and CMC, as far as both curves go."""
    length = min(len(first[2]), len(second[2]))
    curves = float(np.abs(first[2][:length] - second[2][:length]).max())
    return max(abs(first[0] - second[0]), abs(first[1] - second[1]), curves)


def ranking_rgbnt201(sizes: Sizes) -> Row:
    """Ranking a test split as large as RGBNT201's."""
    return _rank(RGBNT201, sizes)


def ranking_msvr310(sizes: Sizes) -> Row:
    """Ranking a test split as large as MSVR310's, where the groups are scenes."""
    return _rank(MSVR310, sizes)


def ranking_rgbnt100(sizes: Sizes) -> Row:
    """Ranking a test split as large as RGBNT100's."""
    return _rank(RGBNT100, sizes)


def ranking_large(sizes: Sizes) -> Row:
    """Ranking a test split larger than those of the data sets, with its memory."""
    prepare = partial(make_features, LARGE.smaller(sizes.share))
    ways = {"plain": rank_plain, "project": rank_project}
    memory = {f"memory {way}": in_child(prepare, work).growth for way, work in ways.items()}
    return _rank(LARGE, sizes, {name: f"{size / 1e9:.2f} GB" for name, size in memory.items()})


def _rank(split: Split, sizes: Sizes, notes: Mapping[str, str] | None = None) -> Row:
    split = split.smaller(sizes.share)
    features = make_features(split)
    ways = {"project": rank_project, "plain": rank_plain, "plain, distances by NumPy": rank_numpy}
    return compare(
        f"ranking {split.title} ({split.name})",
        {name: partial(way, features) for name, way in ways.items()},
        sizes,
        at_least=1.5,
        difference=score_difference,
        tolerance=1e-4,  # both round distances to float32, which may swap near neighbours
        notes={"mAP": f"{rank_project(features)[0]:.2f}", **(notes or {})},
    )


def reranking(sizes: Sizes) -> Row:
    """K-reciprocal re-ranking of MSVR310's sizes, queries and gallery as one set."""
    split = MSVR310.smaller(sizes.share)
    query, gallery, *_ = make_features(split)
    return compare(
        f"re-ranking {split.title} ({split.name})",
        {"project": lambda: rerank(query, gallery), "plain": lambda: rerank_by_loop(query, gallery)},
        sizes,
        at_least=None,  # not measured at this size yet
        difference=lambda plain, project: float(np.abs(plain - project).max()),
        tolerance=5e-3,  # both sum in half precision, whose steps near 1 are 1e-3
        warm_up=False,
    )


def million(sizes: Sizes) -> Row:
    """A gallery that the plain way cannot rank: its distances and their order would take 12 GB."""
    assert sizes.million is not None
    split = Split("a million", *sizes.million, MILLION_WIDTH, identities=sizes.million[1] // 25, groups=6)
    run = in_child(partial(make_features, split), rank_project)
    return Row(
        f"ranking {split.title}",
        None,
        run.cpu_seconds,
        notes={"memory with features": f"{run.peak / 1e9:.2f} GB"},
    )
