"""Any-to-any retrieval: queries with some of the modalities, a gallery with others.

The descriptors are the parts of return pattern 1: one per modality, made of its image alone. What both sides
have is compared part by part: the common parts, side by side. Sides that share no modality are compared
across parts: each by the mean of its parts, every part at length 1. What only one side has does not count
beside a common part. In a shared space (`shared_space.py`) a part is first mapped into it, at length 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from errors import UserError
from evaluation.distances import SquaredEuclidean
from evaluation.rank_lists import RankLists, nearest
from evaluation.ranking import NOBODY, Retrieval, score_queries
from evaluation.result import EncodedSamples, EvaluationResult
from structures import Modality, RankingMetrics

Project: TypeAlias = Callable[[Modality, Tensor], Tensor]
"""The part of a modality, (S, C) -> where it is in a space that all modalities share, (S, P)."""

Side = tuple[Modality, ...]
"""The modalities that one side has, in the order of `Modality`."""


@dataclass(frozen=True, eq=False)
class AnyToAny:
    """The matrix: each subset of the modalities as query, against each as gallery."""

    sides: tuple[Side, ...]  # the subsets, smallest first
    # By query and gallery; None where no query has a positive.
    cells: Mapping[tuple[Side, Side], RankingMetrics | None]
    results: Mapping[str, EvaluationResult]  # what was encoded, by condition
    project: Project | None = None  # into a shared space; None: the parts are compared as they are

    def mean(self, *, cross_modality: bool) -> tuple[float, float, int]:
        """The mean mAP and Rank-1 of all cells, or of those that share no modality, and their number."""
        scores = [
            (metrics.mean_ap, metrics.rank(1))
            for sides, metrics in self.cells.items()
            if metrics is not None and not (cross_modality and _common(*sides))
        ]
        mean_ap, first = np.mean(scores, axis=0).tolist() if scores else (np.nan, np.nan)
        return mean_ap, first, len(scores)

    @cached_property
    def chance(self) -> float:
        """The mean AP to be expected of the whole gallery in random order, for a query with all images."""
        samples = self.results["complete"].samples
        query, gallery = samples.triples.query_rows, samples.triples.gallery_rows
        ids, groups = samples.person_ids, samples.groups
        pairs = np.stack([ids, groups], axis=1)
        num_dropped = _count(pairs[query], pairs[gallery])
        num_positives = _count(ids[query], ids[gallery]) - num_dropped
        is_scored = num_positives > 0
        expected = expected_ap(len(gallery) - num_dropped[is_scored], num_positives[is_scored])
        return float(expected.mean())

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics.json, in percent."""

        def mean(cross_modality: bool) -> dict[str, Any]:
            mean_ap, first, count = self.mean(cross_modality=cross_modality)
            return {"mAP": 100 * mean_ap, "rank_1": 100 * first, "cells": count} if count else {"cells": 0}

        return {
            "cells": [
                {
                    "query": [m.value for m in query],
                    "gallery": [m.value for m in gallery],
                    **({} if metrics is None else metrics.as_dict()),
                }
                for (query, gallery), metrics in self.cells.items()
            ],
            "mean": mean(False),
            "cross_modality_mean": mean(True),
            "chance": {"mAP": 100 * self.chance},
            "shared_space": self.project is not None,
        }

    def rank_lists(self, query: Side, gallery: Side, top: int) -> RankLists:
        """The ranked lists of a cell that has a score, of all queries; the items are rows of the samples."""
        retrieval, gallery_rows = _retrieve(self.results, query, gallery, self.project)
        return nearest(retrieval, top).with_rows(gallery_rows)


def score_any_to_any(results: Mapping[str, EvaluationResult], project: Project | None = None) -> AnyToAny:
    """Rank every subset of the modalities against every other; nothing is encoded again.

    Args:
        results: of all conditions, where the part of a modality depends on what else is there;
            otherwise `complete` is enough.
        project: takes parts into a shared space; None compares them as they are.
    """
    samples = results["complete"].samples
    modalities = samples.triples.modalities
    if not set(modalities) <= set(samples.parts):
        raise UserError(
            "--any_to_any compares the original features of each modality, and this model has none; choose "
            "one with the branch of original features"
        )
    sizes = range(1, len(modalities) + 1)
    sides = tuple(subset for size in sizes for subset in combinations(modalities, size))
    # Where each part is made of its image alone and none is missing, what both sides have decides.
    is_plain = len(results) == 1 and all(samples.present.of(m).all() for m in modalities)
    found: dict[tuple[Side, Side], RankingMetrics | None] = {}
    cells = {}
    for query, gallery in product(sides, sides):
        common = _common(query, gallery)
        key = (common, common) if is_plain and common else (query, gallery)
        if key not in found:
            found[key] = _score(results, query, gallery, project)
        cells[query, gallery] = found[key]
    return AnyToAny(sides, cells, results, project)


def expected_ap(num_items: np.ndarray, num_positives: np.ndarray) -> np.ndarray:
    """The average precision to be expected if the items come in random order.

    Of n items and m positives, a positive is at each rank r with probability 1/n. Of the r − 1 items before
    it, the share (m − 1) / (n − 1) is positive, on average. So the expected precision at its rank is
    1/r + (1 − 1/r) (m − 1) / (n − 1), and the mean over the ranks, with H = 1 + 1/2 + … + 1/n,
    (H + (n − H) (m − 1) / (n − 1)) / n.

    Args:
        num_items: n of each query, 1 or more, (Q,).
        num_positives: m of each, from 1 to n, (Q,).
    """
    harmonic = np.cumsum(1 / np.arange(1, num_items.max(initial=0) + 1))[num_items - 1]
    others = (num_positives - 1) / np.maximum(num_items - 1, 1)
    return (harmonic + (num_items - harmonic) * others) / num_items


def _count(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """How often each of the wanted labels, (Q,) or (Q, 2), occurs among others, (G,) or (G, 2): (Q,)."""
    _, labels = np.unique(np.concatenate([wanted, among]), axis=0, return_inverse=True)
    labels = labels.ravel()  # of any shape in some versions of numpy
    return np.bincount(labels[len(wanted) :], minlength=len(labels))[labels[: len(wanted)]]


def _common(query: Side, gallery: Side) -> Side:
    return tuple(m for m in query if m in gallery)


def _score(
    results: Mapping[str, EvaluationResult], query: Side, gallery: Side, project: Project | None
) -> RankingMetrics | None:
    """The scores of a cell; None if no query has a positive, or nothing in the gallery has its images."""
    if not len(_rows_of(results["complete"].samples, gallery)):
        return None
    metrics = score_queries(_retrieve(results, query, gallery, project)[0])
    return metrics if metrics.num_queries else None


def _has_images(samples: EncodedSamples, side: Side) -> np.ndarray:
    """(S,) whether a triple has all images of a side."""
    return np.logical_and.reduce([samples.present.of(m) for m in side])


def _rows_of(samples: EncodedSamples, gallery: Side) -> np.ndarray:
    """The gallery items that have all images of a side, as rows of the samples, (G,)."""
    rows = samples.triples.gallery_rows
    return rows[_has_images(samples, gallery)[rows]]


def _retrieve(
    results: Mapping[str, EvaluationResult], query: Side, gallery: Side, project: Project | None
) -> tuple[Retrieval, np.ndarray]:
    """All queries and the gallery items of a cell, and the rows (G,) of these among the samples.

    A query that lacks an image of its side gets an identity that nobody has, so that it is not scored.
    """
    complete, common = results["complete"].samples, _common(query, gallery)
    triples = complete.triples

    def features(side: Side, rows: np.ndarray) -> np.ndarray:
        condition = "".join(m.letter for m in triples.modalities if m not in side) or "complete"
        samples = results.get(condition, results["complete"]).samples
        parts = samples.features[1][rows].chunk(len(samples.parts), dim=1)
        by_modality = dict(zip(samples.parts, parts, strict=True))
        if project is not None:
            by_modality = {m: F.normalize(project(m, by_modality[m]), dim=1) for m in common or side}
        return compared_parts(by_modality, side, common, normalise=samples.scoring.normalise).numpy()

    gallery_rows = _rows_of(complete, gallery)
    ids, groups, rows = complete.person_ids, complete.groups, triples.query_rows
    query_ids = np.where(_has_images(complete, query), ids, NOBODY)[rows]
    distances = SquaredEuclidean(features(query, rows), features(gallery, gallery_rows))
    retrieval = Retrieval(distances, query_ids, ids[gallery_rows], groups[rows], groups[gallery_rows])
    return retrieval, gallery_rows


def compared_parts(
    parts: Mapping[Modality, Tensor], side: Side, common: Side, *, normalise: bool = True
) -> Tensor:
    """The features by which one side is compared.

    Args:
        parts: by modality, (S, C) each.
        side: the modalities that the side has.
        common: those that the other side has too.
        normalise: whether features are compared at length 1.

    Returns:
        (S, number of common parts * C), or (S, C) where there is none.
    """

    def at_length_1(features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) if normalise else features

    if common:
        return at_length_1(torch.cat([parts[m] for m in common], dim=1))
    return at_length_1(torch.stack([at_length_1(parts[m]) for m in side]).mean(dim=0))
