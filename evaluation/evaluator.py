"""Collects what the model says about the test samples, then scores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.breakdown import Breakdown, break_down
from evaluation.distances import GivenDistances, SquaredEuclidean
from evaluation.rank_lists import RankLists, nearest
from evaluation.ranking import Retrieval, score_retrieval
from evaluation.rerank import rerank
from evaluation.selection import SelectionMetrics, patch_foreground, score_selection
from structures import RETURN_PATTERNS, ModalBatch, ModelOutput, PerModality, RankingMetrics

PROTOCOLS = ("camera", "scene", "none")


@dataclass(frozen=True)
class CollectedSamples:
    """The test samples in the order in which they were encoded, on the CPU.

    Attributes:
        features: by return pattern, each (S, D) in float32, not normalised.
        person_ids: (S,) integers.
        camera_ids: (S,) integers.
        scene_ids: (S,) integers.
        names: S file names; empty where the batches carry none.
    """

    features: dict[int, Tensor]
    person_ids: Tensor
    camera_ids: Tensor
    scene_ids: Tensor
    names: tuple[str, ...]


class EvaluatorState(NamedTuple):
    """What an evaluator has collected, batch by batch."""

    batches: list[CollectedSamples]
    kept: list[dict[str, PerModality[Tensor]]]
    foreground: list[Tensor]


class RetrievalEvaluator:
    """Scores retrieval, and token selection where there are masks, from one pass over the test samples.

    Life cycle: `reset()`, `update()` for each batch in order, then `compute()`, `compute_selection()`,
    `breakdown()` and `rank_lists()` in any order.
    """

    def __init__(
        self,
        query_rows: Sequence[int] | np.ndarray,
        gallery_rows: Sequence[int] | np.ndarray,
        *,
        protocol: str,
        normalise: bool,
        after_neck: bool,
        re_rank: bool = False,
    ) -> None:
        """Set the rules of the evaluation.

        Args:
            query_rows: the queries, as places in the order of the collected samples, from 0.
            gallery_rows: the gallery, likewise. A sample may be in both and is still encoded once.
            protocol: gallery items that share the query's identity are dropped where they also share its
                `camera` or its `scene`; with `none` only the query itself is dropped.
            normalise: L2-normalise the features; each return pattern as a whole, as DeMo does.
            after_neck: take the features after the BNNeck instead of before.
            re_rank: rank by the distances of k-reciprocal re-ranking instead of the Euclidean ones.
        """
        if protocol not in PROTOCOLS:
            raise ValueError(f"unknown evaluation protocol {protocol!r}; choose from {list(PROTOCOLS)}")
        self.query_rows = np.asarray(query_rows, dtype=np.int64)
        self.gallery_rows = np.asarray(gallery_rows, dtype=np.int64)
        self.protocol = protocol
        self.normalise = normalise
        self.after_neck = after_neck
        self.re_rank = re_rank
        self.reset()

    def reset(self) -> None:
        """Forget everything collected so far."""
        self._batches: list[CollectedSamples] = []
        self._kept: list[dict[str, PerModality[Tensor]]] = []
        self._foreground: list[Tensor] = []
        self._forget_results()

    def _forget_results(self) -> None:
        """Forget what was computed from the samples, since they change."""
        self._metrics: dict[int, RankingMetrics] = {}
        self._reranked: dict[int, np.ndarray] = {}

    def update(self, output: ModelOutput, batch: ModalBatch) -> None:
        """Collect one batch.

        Args:
            output: what the model gave for the batch.
            batch: the batch; its order, after that of the batches before, decides the rows.
        """
        self._forget_results()
        # Pattern 3 is made of 1 and 2, so only those are stored.
        stored = [pattern for pattern in output.patterns if pattern != 3]
        self._batches.append(
            CollectedSamples(
                features={
                    p: output.embedding(p, after_neck=self.after_neck).detach().float().cpu() for p in stored
                },
                person_ids=batch.person_ids.cpu(),
                camera_ids=batch.camera_ids.cpu(),
                scene_ids=batch.scene_ids.cpu(),
                names=batch.names,
            )
        )
        if output.selection is not None and batch.person_masks is not None:
            found = {"selection": output.selection, "slimming": output.slimming}
            self._kept.append({name: s.kept.map(Tensor.cpu) for name, s in found.items() if s is not None})
            self._foreground.append(patch_foreground(batch.person_masks, output.selection.grid).cpu())

    def state(self) -> EvaluatorState:
        """What was collected since the last reset, to be joined with that of other processes."""
        return EvaluatorState(self._batches, self._kept, self._foreground)

    def join(self, states: Sequence[EvaluatorState]) -> None:
        """Replace what was collected by what all processes collected, in their order."""
        self._forget_results()
        self._batches = [batch for state in states for batch in state.batches]
        self._kept = [kept for state in states for kept in state.kept]
        self._foreground = [foreground for state in states for foreground in state.foreground]

    def collected(self) -> CollectedSamples:
        """All samples collected since the last reset, with every return pattern that the model has."""
        if not self._batches:
            raise ValueError("the evaluator has not seen any batch; call update() first")
        batches = self._batches
        features = {p: torch.cat([batch.features[p] for batch in batches]) for p in batches[0].features}
        if 2 in features:
            features[3] = torch.cat([features[1], features[2]], dim=1)
        return CollectedSamples(
            features=features,
            person_ids=torch.cat([batch.person_ids for batch in batches]),
            camera_ids=torch.cat([batch.camera_ids for batch in batches]),
            scene_ids=torch.cat([batch.scene_ids for batch in batches]),
            names=tuple(name for batch in batches for name in batch.names),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """The collected samples as plain arrays, one row per distinct test sample.

        Returns:
            `features_1`, `features_2`, `features_3` (S, D), before normalisation, all the same for a model
            without fusion; `names`; `person_ids`, `camera_ids`, `scene_ids`; `is_query`, `is_gallery`.
        """
        samples = self.collected()
        rows = np.arange(len(samples.person_ids))
        return {
            **{
                f"features_{p}": samples.features.get(p, samples.features[1]).numpy() for p in RETURN_PATTERNS
            },
            "names": np.array(samples.names),
            "person_ids": samples.person_ids.numpy(),
            "camera_ids": samples.camera_ids.numpy(),
            "scene_ids": samples.scene_ids.numpy(),
            "is_query": np.isin(rows, self.query_rows),
            "is_gallery": np.isin(rows, self.gallery_rows),
        }

    @property
    def num_samples(self) -> int:
        """The distinct test samples collected since the last reset."""
        return sum(len(batch.person_ids) for batch in self._batches)

    def compared_features(self) -> dict[int, np.ndarray]:
        """The features as they are compared, normalised or not, each (S, D), by return pattern."""
        return {p: self._compared(features) for p, features in self.collected().features.items()}

    def compute(self) -> dict[int, RankingMetrics]:
        """Rank the gallery for the queries, once for each return pattern that the model has."""
        if not self._metrics:
            samples = self._complete_samples()
            self._metrics = {p: score_retrieval(self._retrieval(samples, p)) for p in samples.features}
        return self._metrics

    def rank_lists(self, top: int = 20) -> dict[int, RankLists]:
        """The `top` nearest items of each query and its nearest right match, by return pattern.

        The items are given as rows of the collected samples; the queries have the order of `query_rows`.
        """
        samples = self._complete_samples()
        lists = {p: nearest(self._retrieval(samples, p), top) for p in samples.features}
        return {pattern: found.with_rows(self.gallery_rows) for pattern, found in lists.items()}

    def breakdown(self) -> Breakdown:
        """The score of the last return pattern by identity and by pair of cameras."""
        samples = self._complete_samples()
        pattern, metrics = list(self.compute().items())[-1]
        cameras = samples.camera_ids.numpy()
        return break_down(
            self._retrieval(samples, pattern), metrics, cameras[self.query_rows], cameras[self.gallery_rows]
        )

    def _complete_samples(self) -> CollectedSamples:
        """The collected samples; a ValueError unless there is exactly one for each row."""
        samples = self.collected()
        num_wanted = 1 + max(self.query_rows.max(initial=-1), self.gallery_rows.max(initial=-1))
        if self.num_samples != num_wanted:
            raise ValueError(
                f"collected {self.num_samples} samples, but query and gallery are made of {num_wanted}; "
                "encode every test sample exactly once after reset()"
            )
        return samples

    def _retrieval(self, samples: CollectedSamples, pattern: int) -> Retrieval:
        """Queries and gallery with the distances of one return pattern."""
        ids = samples.person_ids.numpy()
        groups = {
            "camera": samples.camera_ids.numpy(),
            "scene": samples.scene_ids.numpy(),
            "none": np.arange(len(ids)),
        }[self.protocol]
        query, gallery = self.query_rows, self.gallery_rows
        distances = self._distances(samples.features[pattern], pattern)
        return Retrieval(distances, ids[query], ids[gallery], groups[query], groups[gallery])

    def _distances(self, raw: Tensor, pattern: int) -> SquaredEuclidean | GivenDistances:
        """The distances from the queries to the gallery, by the features (S, D) of one return pattern."""
        features = self._compared(raw)
        query, gallery = features[self.query_rows], features[self.gallery_rows]
        if not self.re_rank:
            return SquaredEuclidean(query, gallery)
        if pattern not in self._reranked:
            self._reranked[pattern] = rerank(query, gallery)
        return GivenDistances(self._reranked[pattern])

    def _compared(self, raw: Tensor) -> np.ndarray:
        """Features (S, D) as they are compared."""
        return (F.normalize(raw, dim=1) if self.normalise else raw).numpy()

    def compute_selection(self, what: str = "selection") -> SelectionMetrics | None:
        """Score the kept patches; None where the model selects no patches or the data set has no masks.

        Args:
            what: the `selection` of the model's output, or its `slimming`.
        """
        if not self._kept or what not in self._kept[0]:
            return None
        parts = zip(*(kept[what] for kept in self._kept), strict=True)
        return score_selection(PerModality(*map(torch.cat, parts)), torch.cat(self._foreground))
