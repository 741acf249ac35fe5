"""The rows on the model: evaluation, missing modalities, a training step, and slimming."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from benchmarks.baselines import PlainModel, Scores, evaluate_by_passes, plain_adam
from benchmarks.bench import Row, Sizes, compare, in_child
from benchmarks.rows_ranking import score_difference, scores_of
from config import load_config
from engine.meter import gradient_norm
from evaluation.any_to_any import score_any_to_any
from evaluation.loop import evaluate
from evaluation.result import EvaluationResult, ScoringOptions
from modeling.cost import measure_step_memory
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from solver.build import make_criterion, make_optimizer
from structures import MISSING_CONDITIONS, ModalBatch, ModelOutput, PerModality, RetrievalSet

NUM_CLASSES, NUM_CAMERAS = 171, 4  # those of RGBNT201
EVALUATION_BATCH = 50
SMALL_BACKBONE = "vit_tiny_stem_patch8"
CPU = torch.device("cpu")
MEMORY_BATCHES, FULL_BATCH = (2, 4, 8), 64  # at which memory is measured, and for which it is estimated
LARGEST_SHARE = 0.6  # of the memory of full tuning, that adapters are meant to need at most
SLIMMING = ["MODEL.SLIM_LAYERS", "[0]", "MODEL.SLIM_KEEP", "0.56"]

Step = Callable[[CfgNode, MultiModalReID, ModalBatch], Callable[[], float]]
"""From a model to work on a batch that gives a number."""


def make_demo(backbone: str, *overrides: str) -> tuple[CfgNode, MultiModalReID]:
    """DeMo with a backbone, and its configuration; always with the same weights."""
    size = ["INPUT.SIZE_TRAIN", "[128,64]", "INPUT.SIZE_TEST", "[128,64]", "MODEL.STRIDE_SIZE", "[8,8]"]
    own = [*size, "MODEL.DROP_PATH", "0.0"] if backbone == SMALL_BACKBONE else ["MODEL.SIE_CAMERA", "True"]
    parts = ["MODEL.GLOBAL_LOCAL", "True", "MODEL.HDM", "True", "MODEL.ATM", "True"]
    cfg = load_config(None, [*parts, "MODEL.TRANSFORMER_TYPE", backbone, *own, *overrides])
    torch.manual_seed(0)
    return cfg, make_model(cfg, NUM_CLASSES, NUM_CAMERAS)


def make_batch(cfg: CfgNode, size: int, *, first: int = 0) -> ModalBatch:
    """Random triples, two of each identity under different cameras."""
    generator = torch.Generator().manual_seed(first)
    images = PerModality.build(lambda _: torch.randn(size, 3, *cfg.INPUT.SIZE_TRAIN, generator=generator))
    rows = torch.arange(first, first + size)
    return ModalBatch(images, rows // 2, rows % 2, torch.zeros_like(rows))


def make_batches(cfg: CfgNode, count: int) -> list[ModalBatch]:
    """`count` triples in batches for evaluation."""
    starts = range(0, count, EVALUATION_BATCH)
    return [make_batch(cfg, min(EVALUATION_BATCH, count - first), first=first) for first in starts]


def evaluate_project(
    model: MultiModalReID, batches: Sequence[ModalBatch], conditions: Sequence[str] = ("complete",)
) -> dict[str, dict[int, Scores]]:
    """The project's evaluation: by condition and return pattern."""
    return {
        condition: {pattern: scores_of(metrics) for pattern, metrics in result.ranking.items()}
        for condition, result in _evaluate(model, batches, conditions).items()
    }


def _evaluate(
    model: MultiModalReID, batches: Sequence[ModalBatch], conditions: Sequence[str] = ("complete",)
) -> dict[str, EvaluationResult]:
    rows = np.arange(sum(map(len, batches)))
    triples = RetrievalSet(DataLoader(batches, batch_size=None), rows, rows, "camera")  # type: ignore[arg-type]
    return evaluate(model, triples, conditions=conditions, scoring=ScoringOptions(), device=CPU)


def evaluation(sizes: Sizes) -> Row:
    """One pass over the test triples, against a pass over query and gallery for each return pattern."""
    cfg, model = make_demo(SMALL_BACKBONE)
    batches = make_batches(cfg, sizes.evaluated)
    return compare(
        f"full evaluation, {sizes.evaluated} triples, small model",
        {
            "plain": lambda: evaluate_by_passes(model.eval(), batches),
            "project": lambda: evaluate_project(model, batches)["complete"],
        },
        sizes,
        at_least=5,
        difference=pattern_difference,
        tolerance=1e-2,  # untrained features are nearly equal: rounding swaps neighbours of a query in 200
    )


def missing(sizes: Sizes) -> Row:
    """All seven conditions of missing modalities at once, against one evaluation for each."""
    cfg, model = make_demo(SMALL_BACKBONE)
    batches = make_batches(cfg, sizes.evaluated)
    conditions = list(MISSING_CONDITIONS)

    def one_by_one() -> dict[str, dict[int, Scores]]:
        return {name: evaluate_project(model, batches, [name])[name] for name in conditions}

    return compare(
        f"--missing all, {sizes.evaluated} triples, small model",
        {"plain": one_by_one, "project": lambda: evaluate_project(model, batches, conditions)},
        sizes,
        at_least=2,
        difference=lambda a, b: max(pattern_difference(a[name], b[name]) for name in conditions),
        tolerance=1e-4,
    )


def any_to_any(sizes: Sizes) -> Row:
    """An evaluation with the matrix of any-to-any retrieval, against two evaluations without it."""
    cfg, model = make_demo(SMALL_BACKBONE)
    batches = make_batches(cfg, sizes.evaluated)

    def twice() -> float:
        return [_evaluate(model, batches)["complete"] for _ in range(2)][-1].ranking[1].mean_ap

    def with_matrix() -> float:
        matrix = score_any_to_any(_evaluate(model, batches))
        complete = matrix.cells[matrix.sides[-1], matrix.sides[-1]]
        assert complete is not None
        return complete.mean_ap

    return compare(
        f"--any_to_any, {sizes.evaluated} triples, small model, against two evaluations",
        {"plain": twice, "project": with_matrix},
        sizes,
        at_least=1,
        difference=lambda a, b: abs(a - b),
        tolerance=1e-6,
    )


def pattern_difference(first: dict[int, Scores], second: dict[int, Scores]) -> float:
    """The largest difference of a score, over the return patterns."""
    return max(score_difference(first[pattern], second[pattern]) for pattern in first)


def training(sizes: Sizes) -> Row:
    """A training step of DeMo, against one call of the backbone per modality, plain HDM and plain Adam."""
    cfg, model = make_demo(sizes.backbone)
    plain = PlainModel(copy.deepcopy(model))
    batch, criterion = make_batch(cfg, sizes.batch), make_criterion(cfg)
    adam = plain_adam(make_optimizer(cfg, plain.model).param_groups)
    ways: dict[str, Callable[[], float]] = {
        "plain": partial(train_step, plain, adam, criterion, batch),
        "project": training_of(cfg, model, batch),
    }
    return compare(
        f"training step, {sizes.backbone}, batch {sizes.batch}",
        ways,
        sizes,
        at_least=None,  # not faster: both are matrix products for the most part
        difference=lambda plain, project: abs(plain - project) / abs(plain),
        tolerance=1e-4,
    )


def slimming(sizes: Sizes) -> Row:
    """A training step of DeMo with slimming, against one without; the results differ by design."""
    return _slim("training step", sizes, training_of, at_least=1.4)


def slimmed_latency(sizes: Sizes) -> Row:
    """Encoding one triple with slimming, against without; the results differ by design."""
    return _slim("encoding", replace(sizes, batch=1), encoding_of, at_least=1.55)


def slimmed_throughput(sizes: Sizes) -> Row:
    """Encoding 16 triples with slimming, against without; the results differ by design."""
    return _slim("encoding", replace(sizes, batch=16), encoding_of, at_least=1.55)


def _slim(title: str, sizes: Sizes, step_of: Step, *, at_least: float) -> Row:
    models = {"plain": make_demo(sizes.backbone), "project": make_demo(sizes.backbone, *SLIMMING)}
    return compare(
        f"{title}, {sizes.backbone}, batch {sizes.batch}, slimming [0] at 0.56 against none",
        {name: step_of(cfg, model, make_batch(cfg, sizes.batch)) for name, (cfg, model) in models.items()},
        sizes,
        at_least=at_least,
    )


def step_memory(sizes: Sizes) -> Row:
    """Memory of a training step that recomputes activations, against one that keeps them."""
    ways: dict[str, list[str]] = {"plain": [], "project": ["SOLVER.GRAD_CHECKPOINT", "True"]}
    notes, seconds = {}, {}
    for (way, overrides), name in zip(ways.items(), ("kept", "recomputed"), strict=True):
        # Peaks at three sizes, and the line through them.
        runs = [
            in_child(partial(_prepare_step, sizes.backbone, batch, overrides), _two_steps)
            for batch in MEMORY_BATCHES
        ]
        per_triple, fixed = np.polyfit(MEMORY_BATCHES, [run.growth / 1e9 for run in runs], 1)
        _, model = make_demo(sizes.backbone, *overrides)
        weights = sum(p.nbytes for p in model.parameters()) / 1e9
        measured = ", ".join(f"{run.growth / 1e9 + weights:.2f}" for run in runs)
        notes[name] = (
            f"{measured} GB; {FULL_BATCH} by the slope {weights + fixed + FULL_BATCH * per_triple:.1f} GB"
        )
        seconds[way] = runs[-1].cpu_seconds / 2
    title = f"training step, {sizes.backbone}, SOLVER.GRAD_CHECKPOINT, memory at batches of {MEMORY_BATCHES}"
    return Row(title, seconds["plain"], seconds["project"], notes=notes)


def _prepare_step(backbone: str, batch: int, overrides: Sequence[str]) -> Callable[[], float]:
    cfg, model = make_demo(backbone, *overrides)
    return training_of(cfg, model, make_batch(cfg, batch))


def _two_steps(step: Callable[[], float]) -> None:
    """From the second step on, Adam's moments are there as well."""
    step()
    step()


def tuning(sizes: Sizes) -> Row:
    """A training step that tunes adapters or LoRA, against one that tunes the whole trunk."""
    parts = ["MODEL.HDM", "False", "MODEL.ATM", "False", "MODEL.USE_SDTPS", "True"]
    models = {
        way: make_demo(sizes.backbone, *parts, "MODEL.TUNE_RANK", "64", "MODEL.TUNE", kind)
        for way, kind in (("plain", "full"), ("project", "adapter"), ("lora", "lora"))
    }
    # What a step holds, as `measure_cost` counts it.
    held = {way: measure_step_memory(model).total(sizes.batch) for way, (_, model) in models.items()}
    notes = {"full holds": f"{held['plain'] / 1e9:.2f} GB"}
    for way, kind in (("project", "adapter"), ("lora", "lora")):
        share = held[way] / held["plain"]
        notes[f"{kind} holds"] = f"{held[way] / 1e9:.2f} GB ({share:.2f} x, ≤ {LARGEST_SHARE} x)"
    steps = {
        way: training_of(cfg, model, make_batch(cfg, sizes.batch)) for way, (cfg, model) in models.items()
    }
    title = f"training step, {sizes.backbone}, batch {sizes.batch}, adapters of rank 64 against full tuning"
    return compare(title, steps, sizes, at_least=1.25, notes=notes)


def training_of(cfg: CfgNode, model: MultiModalReID, batch: ModalBatch) -> Callable[[], float]:
    """The project's training step, which also takes the gradient norm."""
    return partial(train_step, model, make_optimizer(cfg, model), make_criterion(cfg), batch, clip=True)


def encoding_of(cfg: CfgNode, model: MultiModalReID, batch: ModalBatch) -> Callable[[], float]:
    """The features of a batch, in evaluation mode."""

    @torch.no_grad()
    def encode() -> float:
        return float(model.eval()(batch).heads[0].features.sum())

    return encode


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    criterion: Callable[[ModelOutput, Tensor], dict[str, Tensor]],
    batch: ModalBatch,
    *,
    clip: bool = False,
) -> float:
    """One training step; returns its loss. With `clip` the gradient norm is taken, as the engine does."""
    torch.manual_seed(0)
    losses = criterion(model.train()(batch), batch.person_ids)
    loss = torch.stack(list(losses.values())).sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if clip:
        gradient_norm(model.parameters())
    optimizer.step()
    return loss.item()
