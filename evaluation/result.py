"""What one evaluation found: the scores, and the samples that they were computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.breakdown import Breakdown, break_down
from evaluation.distances import GivenDistances, SquaredEuclidean
from evaluation.rank_lists import RankLists, nearest
from evaluation.ranking import NOBODY, Retrieval
from evaluation.rerank import rerank
from evaluation.selection import SelectionMetrics
from structures import RETURN_PATTERNS, Modality, PerModality, RankingMetrics, RetrievalSet

PATTERN = "pattern_"
"""What the keys of the return patterns start with in metrics.json."""


@dataclass(frozen=True)
class ScoringOptions:
    """How samples are compared."""

    normalise: bool = True  # L2-normalise the features; each return pattern as a whole, as DeMo does
    after_neck: bool = False  # take the features after the BNNeck instead of before
    re_rank: bool = False  # rank by the distances of k-reciprocal re-ranking instead of the Euclidean ones


@dataclass(frozen=True, eq=False)
class EncodedSamples:
    """S distinct triples, in the order in which they were encoded, on the CPU."""

    # Of the return patterns 1 and 2, or one of them alone, each (S, D) in float32, not normalised.
    features: Mapping[int, Tensor]
    person_ids: np.ndarray  # (S,) integers
    camera_ids: np.ndarray  # (S,) integers
    scene_ids: np.ndarray  # (S,) integers
    names: tuple[str, ...]  # S file names; empty where the batches carry none
    triples: RetrievalSet  # which of them are queries and gallery, and the protocol
    scoring: ScoringOptions  # how they are compared
    present: PerModality[np.ndarray]  # which images are there, each (S,) booleans
    # The modalities whose parts, of equal width, make up return pattern 1; none where it has no such parts.
    parts: tuple[Modality, ...] = ()
    missing: tuple[Modality, ...] = ()  # what the condition takes away
    _re_ranked: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def patterns(self) -> tuple[int, ...]:
        """The return patterns that the model has."""
        return tuple(RETURN_PATTERNS) if len(self.features) > 1 else tuple(self.features)

    def embedding(self, pattern: int) -> Tensor:
        """The features of a return pattern, (S, D), not normalised; pattern 3 is 1 and then 2."""
        return self.features[pattern] if pattern < 3 else torch.cat([self.features[1], self.features[2]], 1)

    def compared_features(self, pattern: int) -> np.ndarray:
        """The features of a return pattern as they are compared, normalised or not, (S, D)."""
        features = self.embedding(pattern)
        return (F.normalize(features, dim=1) if self.scoring.normalise else features).numpy()

    @property
    def groups(self) -> np.ndarray:
        """(S,) the camera or scene of each sample, by the protocol; a group of its own without one."""
        rows = np.arange(len(self.person_ids))
        return {"camera": self.camera_ids, "scene": self.scene_ids, "none": rows}[self.triples.protocol]

    @property
    def has_image(self) -> np.ndarray:
        """(S,) whether the condition leaves any image of a triple; without one, nothing can be compared."""
        return np.logical_or.reduce([self.present.of(m) for m in Modality if m not in self.missing])

    @property
    def gallery_rows(self) -> np.ndarray:
        """The samples that are in the gallery under this condition, (G,)."""
        rows = self.triples.gallery_rows
        return rows[self.has_image[rows]]

    def retrieval(self, pattern: int) -> Retrieval:
        """Queries and gallery with the distances of one return pattern.

        A query without any image gets an identity that nobody has, so that it is not scored.
        """
        query, gallery = self.triples.query_rows, self.gallery_rows
        features = self.compared_features(pattern)
        distances: SquaredEuclidean | GivenDistances
        if self.scoring.re_rank:
            if pattern not in self._re_ranked:
                self._re_ranked[pattern] = rerank(features[query], features[gallery])
            distances = GivenDistances(self._re_ranked[pattern])
        else:
            distances = SquaredEuclidean(features[query], features[gallery])
        ids, groups = self.person_ids, self.groups
        query_ids = np.where(self.has_image, ids, NOBODY)[query]
        return Retrieval(distances, query_ids, ids[gallery], groups[query], groups[gallery])


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """All that one pass over the test triples tells, under one condition. Shares are in [0, 1]."""

    ranking: Mapping[int, RankingMetrics]  # metrics by return pattern
    samples: EncodedSamples  # what was encoded
    seconds: float  # time to load, encode and rank, of all conditions together
    # Kept-patch precision, where the model selects and the data set has masks.
    selection: SelectionMetrics | None = None
    # The same of the patches that lead the tokens which slimming leaves.
    slimming: SelectionMetrics | None = None

    @property
    def main(self) -> RankingMetrics:
        """The metrics by which epochs are compared: those of the last return pattern."""
        return self.ranking[max(self.ranking)]

    @property
    def num_samples(self) -> int:
        """Distinct test triples, each encoded once."""
        return len(self.samples.person_ids)

    @cached_property
    def breakdown(self) -> Breakdown:
        """The scores of the last return pattern by identity and by pair of cameras."""
        cameras, triples = self.samples.camera_ids, self.samples.triples
        retrieval = self.samples.retrieval(max(self.ranking))
        gallery_cameras = cameras[self.samples.gallery_rows]
        return break_down(retrieval, self.main, cameras[triples.query_rows], gallery_cameras)

    def rank_lists(self, top: int) -> dict[int, RankLists]:
        """The `top` nearest items of each query and its nearest positive, by return pattern.

        The items are rows of the samples; the queries have the order of `query_rows`.
        """
        rows = self.samples.gallery_rows
        return {p: nearest(self.samples.retrieval(p), top).with_rows(rows) for p in self.ranking}

    def arrays(self) -> dict[str, np.ndarray]:
        """The samples as plain arrays, one row per distinct test triple.

        Returns:
            `features_1`, `features_2`, `features_3` (S, D), before normalisation, all the same for a model
            that has one of them alone; `names`; `person_ids`, `camera_ids`, `scene_ids`; `is_query`,
            `is_gallery`.
        """
        samples = self.samples
        rows = np.arange(self.num_samples)
        patterns = {p: p if p in samples.patterns else samples.patterns[-1] for p in RETURN_PATTERNS}
        return {
            **{f"features_{p}": samples.embedding(found).numpy() for p, found in patterns.items()},
            "names": np.array(samples.names),
            "person_ids": samples.person_ids,
            "camera_ids": samples.camera_ids,
            "scene_ids": samples.scene_ids,
            "is_query": np.isin(rows, samples.triples.query_rows),
            "is_gallery": np.isin(rows, samples.triples.gallery_rows),
        }

    def query_arrays(self) -> dict[str, np.ndarray]:
        """The scores of the Q queries as plain arrays; a query without a positive has NaN and 0.

        Returns:
            `names` (Q,), `patterns`, and for each pattern `average_precisions_1` and `first_hits_1` (Q,).
        """
        names = np.array(self.samples.names or range(self.num_samples)).astype(str)
        return {
            "names": names[self.samples.triples.query_rows],
            "patterns": np.array(list(self.ranking)),
            **{f"average_precisions_{p}": metrics.average_precisions for p, metrics in self.ranking.items()},
            **{f"first_hits_{p}": metrics.first_hits for p, metrics in self.ranking.items()},
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics.json, in percent."""
        content: dict[str, Any] = {f"{PATTERN}{p}": metrics.as_dict() for p, metrics in self.ranking.items()}
        content |= {"samples": self.num_samples, "seconds": self.seconds}
        content["re_ranked"] = self.samples.scoring.re_rank
        if self.selection is not None:
            content["kept_patch_precision"] = self.selection.as_dict()
        if self.slimming is not None:
            content["slimmed_patch_precision"] = self.slimming.as_dict()
        return content


def results_as_dict(results: Mapping[str, EvaluationResult]) -> dict[str, Any]:
    """Plain numbers of several conditions: the first with its breakdown, then all by name, and their mean."""
    by_condition = {condition: result.as_dict() for condition, result in results.items()}
    first = next(iter(results))
    return {
        "result": by_condition[first],
        "breakdown": results[first].breakdown,
        "missing": by_condition,
        "missing_mean": _mean_of_missing(results),
    }


def _mean_of_missing(results: Mapping[str, EvaluationResult]) -> dict[str, Any]:
    """Number and mean scores of the conditions under which something is missing; only `complete` has none."""
    incomplete = [result for condition, result in results.items() if condition != "complete"]
    patterns = incomplete[0].ranking if incomplete else ()
    return {
        "conditions": len(incomplete),
        **{
            f"{PATTERN}{p}": {
                "mAP": 100 * float(np.mean([result.ranking[p].mean_ap for result in incomplete])),
                "rank_1": 100 * float(np.mean([result.ranking[p].rank(1) for result in incomplete])),
            }
            for p in patterns
        },
    }


def scores_by_pattern(found: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of each return pattern in what `EvaluationResult.as_dict` gives, the last pattern last."""
    return {name: found[name] for name in sorted(found) if name.startswith(PATTERN)}


def main_scores(found: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of the last return pattern in what `EvaluationResult.as_dict` gives."""
    by_pattern = scores_by_pattern(found)
    return dict(by_pattern[max(by_pattern)])
