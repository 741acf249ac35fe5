"""Collects what the model says about the test samples, then scores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.ranking import rank
from evaluation.selection import SelectionMetrics, patch_foreground, score_selection
from structures import RETURN_PATTERNS, ModalBatch, ModelOutput, PerModality, RankingMetrics

PROTOCOLS = ("camera", "scene")


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
    kept: list[PerModality[Tensor]]
    foreground: list[Tensor]


class RetrievalEvaluator:
    """Scores retrieval, and token selection where there are masks, from one pass over the test samples.

    Life cycle: `reset()`, `update()` for each batch in order, then `compute()` and `compute_selection()`.
    """

    def __init__(
        self,
        query_rows: Sequence[int] | np.ndarray,
        gallery_rows: Sequence[int] | np.ndarray,
        *,
        protocol: str,
        normalise: bool,
        after_neck: bool,
    ) -> None:
        """Set the rules of the evaluation.

        Args:
            query_rows: the queries, as places in the order of the collected samples, from 0.
            gallery_rows: the gallery, likewise. A sample may be in both and is still encoded once.
            protocol: gallery items that share the query's identity are dropped where they also share its
                `camera` or its `scene`.
            normalise: L2-normalise the features; each return pattern as a whole, as DeMo does.
            after_neck: take the features after the BNNeck instead of before.
        """
        if protocol not in PROTOCOLS:
            raise ValueError(f"unknown evaluation protocol {protocol!r}; choose from {list(PROTOCOLS)}")
        self.query_rows = np.asarray(query_rows, dtype=np.int64)
        self.gallery_rows = np.asarray(gallery_rows, dtype=np.int64)
        self.protocol = protocol
        self.normalise = normalise
        self.after_neck = after_neck
        self.reset()

    def reset(self) -> None:
        """Forget everything collected so far."""
        self._batches: list[CollectedSamples] = []
        self._kept: list[PerModality[Tensor]] = []
        self._foreground: list[Tensor] = []

    def update(self, output: ModelOutput, batch: ModalBatch) -> None:
        """Collect one batch.

        Args:
            output: what the model gave for the batch.
            batch: the batch; its order, after that of the batches before, decides the rows.
        """
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
            self._kept.append(output.selection.kept.map(Tensor.cpu))
            self._foreground.append(patch_foreground(batch.person_masks, output.selection.grid).cpu())

    def state(self) -> EvaluatorState:
        """What was collected since the last reset, to be joined with that of other processes."""
        return EvaluatorState(self._batches, self._kept, self._foreground)

    def join(self, states: Sequence[EvaluatorState]) -> None:
        """Replace what was collected by what all processes collected, in their order."""
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

    def compute(self) -> dict[int, RankingMetrics]:
        """Rank the gallery for the queries, once for each return pattern that the model has."""
        samples = self.collected()
        num_samples = len(samples.person_ids)
        num_wanted = 1 + max(self.query_rows.max(initial=-1), self.gallery_rows.max(initial=-1))
        if num_samples != num_wanted:
            raise ValueError(
                f"collected {num_samples} samples, but query and gallery are made of {num_wanted}; "
                "encode every test sample exactly once after reset()"
            )
        ids = samples.person_ids.numpy()
        groups = (samples.camera_ids if self.protocol == "camera" else samples.scene_ids).numpy()
        query, gallery = self.query_rows, self.gallery_rows

        metrics = {}
        for pattern, raw in samples.features.items():
            features = (F.normalize(raw, dim=1) if self.normalise else raw).numpy()
            metrics[pattern] = rank(
                features[query], features[gallery], ids[query], ids[gallery], groups[query], groups[gallery]
            )
        return metrics

    def compute_selection(self) -> SelectionMetrics | None:
        """Score the kept patches; None where the model selects no patches or the data set has no masks."""
        if not self._kept:
            return None
        kept = PerModality(*(torch.cat(parts) for parts in zip(*self._kept, strict=True)))
        return score_selection(kept, torch.cat(self._foreground))
