"""The rows on the model: evaluation, HDM, the optimiser, and a training step with and without slimming."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from benchmarks.baselines import PlainHDM, PlainModel, evaluate_by_passes, plain_adam
from benchmarks.measure import Timing, by_turns
from benchmarks.report import RATIO, Figure, Row
from benchmarks.rows_ranking import score_difference, scores_of
from benchmarks.sizes import Sizes
from config import load_config
from engine.meter import gradient_norm
from evaluation.build import make_evaluate
from modeling.backbone import CLIP_WIDTH
from modeling.branches.demo import HDM
from modeling.cost import count_multiply_adds
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from solver.build import make_criterion, make_optimizer
from structures import ModalBatch, ModelOutput, PerModality, RetrievalSet

NUM_CLASSES, NUM_CAMERAS = 171, 4  # those of RGBNT201
EVALUATION_BATCH = 50
CPU = torch.device("cpu")
SLIMMING = ["MODEL.SLIM_LAYERS", "[3,6,9]", "MODEL.SLIM_KEEP", "0.7", "INPUT.SHARED_AUGMENT", "True"]


def make_batch(cfg: CfgNode, size: int, *, first: int = 0) -> ModalBatch:
    """Random triples, two of each identity under different cameras."""
    generator = torch.Generator().manual_seed(first)
    images = PerModality.build(lambda _: torch.randn(size, 3, *cfg.INPUT.SIZE_TRAIN, generator=generator))
    rows = torch.arange(first, first + size)
    return ModalBatch(images, rows // 2, rows % 2, torch.zeros_like(rows))


def make_demo(sizes: Sizes, backbone: str, *settings: str) -> tuple[CfgNode, MultiModalReID]:
    """DeMo with a backbone, and its configuration; always with the same weights."""
    cfg = load_config(None, [*sizes.settings(backbone), *settings])
    torch.manual_seed(0)
    return cfg, make_model(cfg, NUM_CLASSES, NUM_CAMERAS)


def evaluation(sizes: Sizes) -> Row:
    """One pass over the test triples against a pass over query and gallery for each return pattern."""
    cfg, model = make_demo(sizes, sizes.small_backbone)
    model.eval()
    batches = [
        make_batch(cfg, min(EVALUATION_BATCH, sizes.evaluated - first), first=first)
        for first in range(0, sizes.evaluated, EVALUATION_BATCH)
    ]
    rows = np.arange(sizes.evaluated)
    triples = RetrievalSet(DataLoader(batches, batch_size=None), rows, rows, "camera")  # type: ignore[arg-type]

    def project() -> dict[int, tuple[float, float, np.ndarray]]:
        (result,) = make_evaluate(cfg, triples, CPU)(model).values()
        return {pattern: scores_of(metrics) for pattern, metrics in result.ranking.items()}

    timing = by_turns({"plain": lambda: evaluate_by_passes(model, batches), "project": project}, sizes.effort)
    plain, found = timing.results.values()
    seconds = timing.median("project")
    rate = sizes.evaluated * 2 * sum(count_multiply_adds(model).values()) / seconds
    return Row(
        "evaluation",
        f"full evaluation, {sizes.evaluated} triples, small model",
        timing.median("plain"),
        seconds,
        (
            Figure(RATIO, timing.ratio("plain", "project"), "x", at_least=5.5),
            Figure("rate", rate / 1e9, "GFLOP/s"),
        ),
        difference=max(score_difference(plain[p], found[p]) for p in plain),
        tolerance=1e-4,  # the plain way rounds distances to float32
        repeats=len(timing.seconds["plain"]),
    )


def hdm(sizes: Sizes) -> Row:
    """HDM forward, in evaluation mode."""
    torch.manual_seed(0)
    project = HDM(CLIP_WIDTH).eval()
    plain = PlainHDM(project).eval()
    globals_ = PerModality.build(lambda _: torch.randn(sizes.hdm_batch, CLIP_WIDTH))
    patches = PerModality.build(lambda _: torch.randn(sizes.hdm_batch, 128, CLIP_WIDTH))
    ways: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: plain(globals_, patches),
        "project": lambda: project(globals_, patches),
    }
    with torch.no_grad():
        timing = by_turns(ways, sizes.effort, calls=10)
    return Row(
        "hdm",
        f"HDM forward, ViT-B-16 sizes, batch {sizes.hdm_batch}",
        timing.median("plain"),
        timing.median("project"),
        (Figure(RATIO, timing.ratio("plain", "project"), "x", at_least=5),),
        difference=float((timing.results["plain"] - timing.results["project"]).abs().max()),
        tolerance=1e-5,
        repeats=len(timing.seconds["plain"]),
    )


def optimizer(sizes: Sizes) -> Row:
    """A step of the optimiser on DeMo's parameters."""
    cfg, model = make_demo(sizes, sizes.backbone)
    models = {"plain": model, "project": copy.deepcopy(model)}
    for each in models.values():
        generator = torch.Generator().manual_seed(0)
        for parameter in each.parameters():
            parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)
    steps = {
        "plain": plain_adam(make_optimizer(cfg, models["plain"]).param_groups).step,
        "project": make_optimizer(cfg, models["project"]).step,
    }
    timing: Timing[object] = by_turns(steps, sizes.effort)
    pairs = zip(*(each.parameters() for each in models.values()), strict=True)
    return Row(
        "optimizer",
        f"optimiser step, DeMo's {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters",
        timing.median("plain"),
        timing.median("project"),
        (Figure(RATIO, timing.ratio("plain", "project"), "x", at_least=3),),
        difference=max(float((a - b).detach().abs().max()) for a, b in pairs),
        tolerance=1e-5,
        repeats=len(timing.seconds["plain"]),
    )


class TrainingRun(NamedTuple):
    """What the training steps took.

    Attributes:
        timing: of the ways `plain`, `project`, `slimmed`, `evaluation` and perhaps `backbone`; the results
            are the losses of the first step.
        shares: by way, the multiply-adds per second as a share of the ceiling.
        ceiling: the rate of matrix multiplication in FLOP/s, a median over the turns as all times are.
        best_product: the rate of the fastest of all those products.
    """

    timing: Timing[float]
    shares: dict[str, float]
    ceiling: float
    best_product: float


def training(sizes: Sizes) -> Row:
    """A training step of DeMo without slimming."""
    run = measure_training(sizes)
    first = run.timing.results
    shares = {name: 100 * share for name, share in run.shares.items()}
    return Row(
        "training",
        f"training step {sizes.backbone} batch {sizes.batch}, no slimming",
        run.timing.median("plain"),
        run.timing.median("project"),
        (
            Figure(RATIO, run.timing.ratio("plain", "project"), "x", at_least=1.03),
            Figure("share of ceiling", shares.pop("project"), "%", at_least=80),
            *(Figure(f"{name} share", share, "%") for name, share in shares.items()),
            Figure("ceiling", run.ceiling / 1e9, "GFLOP/s"),
            Figure("fastest product", run.best_product / 1e9, "GFLOP/s"),
        ),
        difference=abs(first["plain"] - first["project"]) / abs(first["plain"]),
        tolerance=1e-4,
        repeats=len(run.timing.seconds["plain"]),
    )


def slimming(sizes: Sizes) -> Row:
    """A training step of DeMo with slimming, against the plain one without; the results differ by design."""
    timing = measure_training(sizes).timing
    return Row(
        "slimming",
        "the same with slimming [3, 6, 9] at 0.7",
        timing.median("plain"),
        timing.median("slimmed"),
        (
            Figure(RATIO, timing.ratio("plain", "slimmed"), "x", at_least=1.4),
            Figure("to the project's own step", timing.ratio("project", "slimmed"), "x"),
        ),
        repeats=len(timing.seconds["plain"]),
    )


@cache
def measure_training(sizes: Sizes) -> TrainingRun:
    """Time the steps of both rows by turns, and the ceiling between them."""
    cfg, model = make_demo(sizes, sizes.backbone)
    slim_cfg, slimmed = make_demo(sizes, sizes.backbone, *_slimming_for(model))
    plain = PlainModel(copy.deepcopy(model))
    batch = make_batch(cfg, sizes.batch)
    adam = plain_adam(make_optimizer(cfg, plain.model).param_groups)
    costs = count_multiply_adds(model)
    rates: list[MatmulRate] = []
    ways: dict[str, Callable[[], float]] = {
        "plain": partial(train_step, plain, adam, make_criterion(cfg), batch),
        "project": partial(
            train_step, model, make_optimizer(cfg, model), make_criterion(cfg), batch, clip=True
        ),
        "slimmed": partial(
            train_step, slimmed, make_optimizer(slim_cfg, slimmed), make_criterion(slim_cfg), batch, clip=True
        ),
        "evaluation": partial(evaluation_pass, model, batch),
        "ceiling": lambda: rates.append(matmul_rate(model, sizes.batch)) or 0.0,  # type: ignore[func-returns-value]
    }
    flops = {"project": 6 * sum(costs.values()), "evaluation": 2 * sum(costs.values())}  # of one triple
    if sizes.extras:
        ways["backbone"] = partial(backbone_pass, model, batch)
        flops["backbone"] = 6 * costs["backbone"]
    timing = by_turns(ways, sizes.effort)
    ceiling = statistics.median(rate.mean for rate in rates)
    shares = {way: len(batch) * work / timing.median(way) / ceiling for way, work in flops.items()}
    return TrainingRun(timing, shares, ceiling, max(rate.best for rate in rates))


def _slimming_for(model: MultiModalReID) -> list[str]:
    """Slimming as in the table; behind the first blocks of a backbone that has too few."""
    return SLIMMING if len(model.backbone.vit.blocks) >= 9 else ["MODEL.SLIM_LAYERS", "[1,2]", *SLIMMING[2:]]


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


@torch.no_grad()
def evaluation_pass(model: MultiModalReID, batch: ModalBatch) -> float:
    """Encode a batch."""
    return float(model.eval()(batch).heads[0].features.sum())


def backbone_pass(model: MultiModalReID, batch: ModalBatch) -> float:
    """The timm ViT alone, forward and backward, on the images of a batch."""
    images = torch.cat(batch.images)
    encoded = model.backbone(images, torch.zeros(len(images), dtype=torch.long))
    total = encoded.globals_.square().mean() + encoded.patches.square().mean()
    total.backward()
    return total.item()


class MatmulRate(NamedTuple):
    """FLOP/s of matrix products: of all together, and of the fastest."""

    mean: float
    best: float


def matmul_rate(model: MultiModalReID, batch: int, repeats: int = 5) -> MatmulRate:
    """The rate of float32 matrix products of the sizes that the backbone's blocks have."""
    width: int = model.backbone.vit.embed_dim
    rows, columns = model.backbone.grid
    tokens = 3 * batch * (rows * columns + 1)
    flops, seconds = [], []
    for left, middle, right in (
        (tokens, width, 4 * width),
        (tokens, 4 * width, width),
        (width, tokens, width),
    ):
        a, b = torch.randn(left, middle), torch.randn(middle, right)
        out = a @ b
        for _ in range(repeats):
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            seconds.append(time.perf_counter() - start)
            flops.append(2 * left * middle * right)
    best = max(work / taken for work, taken in zip(flops, seconds, strict=True))
    return MatmulRate(sum(flops) / sum(seconds), best)
