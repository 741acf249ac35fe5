"""How cost grows: with the gallery, with the batch, with the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.measure import ChildRun, in_child
from benchmarks.report import show_seconds
from benchmarks.rows_model import NUM_CAMERAS, NUM_CLASSES, make_batch, train_step
from benchmarks.rows_ranking import Features, make_features, rank_project
from benchmarks.sizes import Sizes
from config import load_config
from evaluation.rerank import rerank
from modeling.make_model import make_model
from solver.build import make_criterion, make_optimizer

QUERIES = 1000
HEADINGS = ("curve", "size", "seconds", "seconds per item", "memory")


@dataclass(frozen=True)
class Curve:
    """The sizes at which something is measured.

    Attributes:
        galleries: gallery items that 1,000 queries are ranked against.
        reranked: gallery items that they are re-ranked with.
        batches: triples of a training step.
        images: heights and widths, for a training step with a batch of 4.
    """

    galleries: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    reranked: tuple[int, ...] = (1_000, 4_000, 15_000)
    batches: tuple[int, ...] = (2, 4, 8, 16)
    images: tuple[tuple[int, int], ...] = ((128, 64), (256, 128), (384, 128), (384, 192))


FULL_CURVE = Curve()
QUICK_CURVE = Curve((1_000, 10_000, 100_000), (1_000, 4_000), (2, 4), ((128, 64), (256, 128)))
TINY_CURVE = Curve((50, 100), (50,), (2,), ((128, 64),))


@dataclass(frozen=True)
class Point:
    """One measurement, in a process of its own.

    Attributes:
        curve: `ranking`, `re-ranking`, `batch` or `image`.
        size: at which size, as text.
        items: gallery items, triples or pixels.
        run: time and memory.
    """

    curve: str
    size: str
    items: int
    run: ChildRun

    def cells(self) -> list[str]:
        """As text, in the order of `HEADINGS`."""
        return [
            self.curve,
            self.size,
            show_seconds(self.run.seconds),
            show_seconds(self.run.seconds / self.items),
            f"{self.run.peak / 1e9:.2f} GB",
        ]


def measure_curves(sizes: Sizes, curve: Curve) -> Iterator[Point]:
    """All points, one after the other; memory is that of the whole process."""
    for name, galleries, work in (
        ("ranking", curve.galleries, rank_project),
        ("re-ranking", curve.reranked, _rerank),
    ):
        for gallery in galleries:
            shape = (min(QUERIES, gallery), gallery)
            prepare = partial(make_features, shape, sizes.million_width)
            yield Point(name, f"{shape[0]:,} x {gallery:,}", gallery, in_child(prepare, work))
    for batch in curve.batches:
        run = _time_step(sizes, batch, None)
        yield Point("batch", f"{batch} triples", batch, run)
    for height, width in curve.images:
        run = _time_step(sizes, 4, (height, width))
        yield Point("image", f"{height} x {width}", height * width, run)


def _rerank(features: Features) -> None:
    rerank(features.query, features.gallery)


def _time_step(sizes: Sizes, batch: int, image: tuple[int, int] | None) -> ChildRun:
    return in_child(partial(_prepare_step, sizes, batch, image), _run_step)


def _prepare_step(sizes: Sizes, batch: int, image: tuple[int, int] | None) -> partial[float]:
    """A training step that has been done twice: once for the optimiser's state, once for its memory."""
    size = [] if image is None else [f"[{image[0]},{image[1]}]"]
    settings = [word for text in size for key in ("TRAIN", "TEST") for word in (f"INPUT.SIZE_{key}", text)]
    cfg = load_config(None, [*sizes.settings(sizes.backbone), *settings])
    torch.manual_seed(0)
    model = make_model(cfg, NUM_CLASSES, NUM_CAMERAS)
    step = partial(
        train_step, model, make_optimizer(cfg, model), make_criterion(cfg), make_batch(cfg, batch), clip=True
    )
    for _ in range(2):
        step()
    return step


def _run_step(step: partial[float]) -> None:
    step()
