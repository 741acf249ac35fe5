"""The one evaluation: training, test_net.py, the studies and the report all call `evaluate`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from evaluation.ranking import score_queries, score_retrieval
from evaluation.result import EncodedSamples, EvaluationResult, ScoringOptions
from evaluation.selection import SelectionMetrics, patch_foreground, score_selection
from structures import (
    MISSING_CONDITIONS,
    HeadOutput,
    ModalBatch,
    Modality,
    ModelOutput,
    PerModality,
    RetrievalSet,
    Role,
)

logger = logging.getLogger(__name__)

PIXEL_BLOCK = 8  # side of the blocks that the raw-pixel control averages

T = TypeVar("T")
Model = Callable[[ModalBatch], ModelOutput]
Outputs = Mapping[str, ModelOutput]
"""What the model gave for one batch, by condition."""
Evaluate = Callable[..., dict[str, EvaluationResult]]
"""`evaluate` on a set that is fixed: takes the model and, by name, `observe` and `check_stop`."""


class Processes(Protocol):
    """The processes of a run, each with its block of the triples."""

    @property
    def is_main(self) -> bool:
        """Whether this process shows the progress."""

    def gather_objects(self, part: T) -> list[T]:
        """The parts of all processes, in their order."""


def evaluate(
    model: Model,
    triples: RetrievalSet,
    *,
    conditions: Sequence[str],
    scoring: ScoringOptions,
    device: torch.device,
    world: Processes | None = None,
    observe: Callable[[ModalBatch, Outputs], None] | None = None,
    check_stop: Callable[[], None] = lambda: None,
) -> dict[str, EvaluationResult]:
    """Encode each triple once, in float32, and score the model under each condition.

    Args:
        model: makes a `ModelOutput` of a batch. A module is put into evaluation mode and then back. A model
            with `forward_conditions` is asked for all conditions of a batch at once.
        triples: the distinct triples; with several processes, `loader` has this one's block of them.
        conditions: which modalities are missing, as keys of `MISSING_CONDITIONS`; `complete` for none.
        scoring: how the features are compared.
        device: where the batches go.
        world: the processes of the run; all of them get the whole result. None for one process.
        observe: called with each batch, complete, and its outputs.
        check_stop: called when this process has encoded its triples; may raise to stop the evaluation.

    Returns:
        By condition, without those, but for the first, under which no query has a positive.
    """
    start = time.perf_counter()
    if unknown := [condition for condition in conditions if condition not in MISSING_CONDITIONS]:
        raise ValueError(f"there is no condition {unknown[0]!r}; choose from {', '.join(MISSING_CONDITIONS)}")
    missing = {condition: MISSING_CONDITIONS[condition] for condition in conditions}
    parts: dict[str, list[_Part]] = {condition: [] for condition in missing}

    # Encode.
    with _evaluation_mode(model), torch.no_grad():
        hidden = None if world is None or world.is_main else True
        for batch in tqdm(triples.loader, desc="evaluate", unit="batch", leave=False, disable=hidden):
            batch = batch.to(device)
            if hasattr(model, "forward_conditions"):
                outputs = model.forward_conditions(batch, missing)
            else:
                outputs = {condition: model(batch.without(lost)) for condition, lost in missing.items()}
            if observe is not None:
                observe(batch, outputs)
            for condition, output in outputs.items():
                part = _collect(output, batch, missing[condition], after_neck=scoring.after_neck)
                parts[condition].append(part)
    check_stop()

    # Join the processes, and score.
    results: dict[str, EvaluationResult] = {}
    for condition in missing:
        own = parts.pop(condition)
        gathered = [own] if world is None else world.gather_objects(own)
        joined = [part for others in gathered for part in others]
        samples = _join(joined, triples, scoring, missing[condition])
        # Of several conditions, one may leave no query with a positive, where only some triples lack images.
        may_fail = bool(results)
        score = score_queries if may_fail else score_retrieval
        is_empty = may_fail and not len(samples.gallery_rows)
        ranking = {} if is_empty else {p: score(samples.retrieval(p)) for p in samples.patterns}
        if not any(metrics.num_queries for metrics in ranking.values()):
            lost = ", ".join(m.value for m in missing[condition])
            logger.warning("without %s no query has a positive: this condition is left out", lost)
            continue
        results[condition] = EvaluationResult(
            ranking=ranking,
            samples=samples,
            seconds=0.0,
            selection=_score_kept(joined, "selection"),
            slimming=_score_kept(joined, "slimming"),
        )
    seconds = time.perf_counter() - start
    return {condition: replace(result, seconds=seconds) for condition, result in results.items()}


class _Part(NamedTuple):
    """What is kept of B triples, on the CPU; `kept` and `foreground` only where there are masks."""

    features: dict[int, Tensor]
    labels: Tensor  # (3, B): person, camera, scene
    present: Tensor  # (3, B) booleans: which images the data set has
    left: Tensor  # (3, B) booleans: which of them the condition leaves
    parts: tuple[Modality, ...]  # see `EncodedSamples`
    names: tuple[str, ...]
    kept: dict[str, PerModality[Tensor]]
    foreground: Tensor | None


def _collect(
    output: ModelOutput, batch: ModalBatch, missing: Sequence[Modality], *, after_neck: bool
) -> _Part:
    """What is kept of a batch, of which some modalities were missing."""
    # Pattern 3 is made of 1 and 2, so only those are stored.
    patterns = [pattern for pattern in output.patterns if pattern != 3]
    features = {p: output.embedding(p, after_neck=after_neck).float().cpu() for p in patterns}
    labels = torch.stack([batch.person_ids, batch.camera_ids, batch.scene_ids]).cpu()
    kept, foreground = {}, None
    if output.selection is not None and batch.person_masks is not None:
        found = {"selection": output.selection, "slimming": output.slimming}
        kept = {name: s.masks.map(Tensor.cpu) for name, s in found.items() if s is not None}
        foreground = patch_foreground(batch.person_masks, output.selection.grid).cpu()
    present = torch.stack(batch.present).cpu()
    left = present & torch.tensor([m not in missing for m in Modality]).unsqueeze(1)
    return _Part(features, labels, present, left, output.parts, batch.names, kept, foreground)


def _join(
    parts: Sequence[_Part], triples: RetrievalSet, scoring: ScoringOptions, missing: tuple[Modality, ...]
) -> EncodedSamples:
    """All samples; a ValueError unless there is exactly one for each row of query and gallery."""
    num_samples = sum(part.labels.shape[1] for part in parts)
    num_wanted = 1 + np.concatenate([triples.query_rows, triples.gallery_rows]).max(initial=-1)
    if not num_samples == num_wanted > 0:
        raise ValueError(
            f"collected {num_samples} samples, but query and gallery are made of {num_wanted}; the loader "
            "must give every triple exactly once"
        )
    features = {p: torch.cat([part.features[p] for part in parts]) for p in parts[0].features}
    person_ids, camera_ids, scene_ids = torch.cat([part.labels for part in parts], dim=1).numpy()
    names = tuple(name for part in parts for name in part.names)
    present = PerModality(*torch.cat([part.present for part in parts], dim=1).numpy())
    return EncodedSamples(
        features,
        person_ids,
        camera_ids,
        scene_ids,
        names,
        triples,
        scoring,
        present,
        parts[0].parts,
        missing,
    )


def _score_kept(parts: Sequence[_Part], name: str) -> SelectionMetrics | None:
    """Score the kept patches of the `selection` or of `slimming`; None where there are none, or no masks."""
    found = [(part.kept[name], part.foreground, part.left) for part in parts if name in part.kept]
    if not found:
        return None
    kept, foreground, left = zip(*found, strict=True)
    return score_selection(
        PerModality(*map(torch.cat, zip(*kept, strict=True))),
        torch.cat(foreground),
        PerModality(*torch.cat(left, dim=1)),
    )


@contextmanager
def _evaluation_mode(model: object) -> Iterator[None]:
    """Evaluation mode for a module, and its earlier mode afterwards; nothing for a plain function."""
    if not isinstance(model, nn.Module):
        yield
        return
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def raw_pixels(batch: ModalBatch) -> ModelOutput:
    """A control that has learnt nothing: the images themselves, averaged over blocks of 8 x 8 pixels."""
    blocks = batch.images.map(lambda images: F.avg_pool2d(images, PIXEL_BLOCK, ceil_mode=True).flatten(1))
    pixels = torch.cat(blocks, dim=1)
    return ModelOutput(heads=(HeadOutput("pixels", pixels, pixels, pixels, Role.ORIGINAL),))
