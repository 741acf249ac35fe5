"""One pass over the distinct test images, and the table that comes of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from engine.checkpoint import save_json
from engine.distributed import World
from evaluation.evaluator import RetrievalEvaluator
from evaluation.selection import SelectionMetrics
from structures import RETURN_PATTERNS, HeadOutput, ModalBatch, Modality, ModelOutput, RankingMetrics

logger = logging.getLogger(__name__)

PIXEL_BLOCK = 8  # side of the blocks that the raw-pixel control averages


class Cost(Protocol):
    """What a model costs."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers."""

    def table(self) -> str:
        """Text."""


@dataclass(frozen=True)
class EvaluationResult:
    """What one evaluation found.

    Attributes:
        ranking: metrics by return pattern.
        selection: kept-patch precision, where the model selects and the data set has masks.
        num_samples: distinct test triples, each encoded once.
        seconds: time to load, encode and rank them.
    """

    ranking: dict[int, RankingMetrics]
    selection: SelectionMetrics | None
    num_samples: int
    seconds: float

    @property
    def main(self) -> RankingMetrics:
        """The metrics by which epochs are compared: those of the last return pattern."""
        return self.ranking[max(self.ranking)]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics.json."""
        patterns = {f"pattern_{p}": metrics.as_dict() for p, metrics in self.ranking.items()}
        content: dict[str, Any] = {**patterns, "samples": self.num_samples, "seconds": self.seconds}
        if self.selection is not None:
            content["kept_patch_precision"] = {
                **{m.value: 100 * self.selection.precision.of(m) for m in Modality},
                "chance": 100 * self.selection.chance,
                "best_possible": 100 * self.selection.best,
            }
        return content


@torch.no_grad()
def evaluate(
    model: Callable[[ModalBatch], ModelOutput],
    *,
    loader: Iterable[ModalBatch],
    evaluator: RetrievalEvaluator,
    device: torch.device,
    missing: Sequence[Modality] = (),
    world: World | None = None,
    check_stop: Callable[[], None] = lambda: None,
) -> EvaluationResult:
    """Encode each test triple once, in float32, and score the result.

    Args:
        model: makes a `ModelOutput` of a batch. A module is put into evaluation mode and then back.
        loader: the distinct test triples; with several processes, this one's block of them.
        evaluator: collects and scores.
        device: where the batches go.
        missing: modalities whose images are replaced by zeros.
        world: the processes of the run; all of them get the whole result.
        check_stop: called when this process has encoded its triples; may raise to stop the evaluation.
    """
    world = world or World()
    start = time.perf_counter()
    evaluator.reset()
    with _evaluation_mode(model):
        quiet = None if world.is_main else True
        for batch in tqdm(loader, desc="evaluate", unit="batch", leave=False, disable=quiet):
            batch = batch.to(device).without(missing)
            evaluator.update(model(batch), batch)
    check_stop()
    evaluator.join(world.gather_objects(evaluator.state()))
    ranking = evaluator.compute()
    num_samples = len(evaluator.collected().person_ids)
    return EvaluationResult(ranking, evaluator.compute_selection(), num_samples, time.perf_counter() - start)


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
    return ModelOutput(heads=(HeadOutput("pixels", pixels, pixels, pixels, fused=False),))


def result_table(result: EvaluationResult, controls: Mapping[str, EvaluationResult] | None = None) -> str:
    """The result as text: one row per return pattern, then controls, then the kept patches."""
    lines = [f"{'feature':<22} {'mAP':>6} {'R-1':>6} {'R-5':>6} {'R-10':>6}"]
    rows = {f"{p} {RETURN_PATTERNS[p]}": metrics for p, metrics in result.ranking.items()}
    rows |= {f"control: {name}": control.main for name, control in (controls or {}).items()}
    for name, metrics in rows.items():
        scores = (metrics.mean_ap, *(metrics.rank(k) for k in (1, 5, 10)))
        lines.append(f"{name:<22} " + " ".join(f"{100 * score:>6.1f}" for score in scores))
    lines.append(f"{result.main.num_queries} queries, {result.num_samples} distinct test triples")
    if result.main.num_skipped:
        lines.append(f"{result.main.num_skipped} queries have no right match in the gallery and are left out")
    if result.selection is not None:
        precision = ", ".join(f"{m.value} {result.selection.precision.of(m):.1%}" for m in Modality)
        lines.append(
            f"kept patches on the person: {precision} "
            f"(chance {result.selection.chance:.1%}, best possible {result.selection.best:.1%})"
        )
    return "\n".join(lines)


def write_report(
    folder: Path,
    *,
    epochs: Sequence[Mapping[str, Any]],
    result: EvaluationResult,
    controls: Mapping[str, EvaluationResult],
    cost: Cost,
) -> None:
    """Log the result of the last epoch and the cost, and write both to metrics.json behind the epochs."""
    summary = {name: found.as_dict() for name, found in {"last epoch": result, **controls}.items()}
    content = {"epochs": epochs, "summary": summary, "cost": cost.as_dict()}
    save_json(folder / "metrics.json", content)
    logger.info("last epoch, all files in %s\n%s", folder, result_table(result, controls))
    logger.info("cost\n%s", cost.table())
