"""The rows on exported files: torch against ONNX Runtime, in fp32 and int8, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench import Row, Sizes, compare
from benchmarks.rows_model import NUM_CAMERAS, NUM_CLASSES, SLIMMING
from config import load_config
from datasets.build import make_eval_transform
from inference.export import (
    TOLERANCE,
    ImagesToFeatures,
    compare_features,
    complete_inputs,
    open_onnx,
    quantise,
    random_inputs,
    to_onnx,
)
from modeling.make_model import make_model
from structures import Modality

CONFIG = Path(__file__).parent.parent / "configs" / "RGBNT201" / "DeMo_SDTPS.yml"
Measure = Callable[[Sizes], Row]
COMPARED = 4  # triples whose features in int8 are compared


def latency(sizes: Sizes) -> Row:
    """One triple in torch and in ONNX Runtime; int8 in the notes."""
    return _compare(sizes, batch=1)


def throughput(sizes: Sizes) -> Row:
    """16 triples in torch and in ONNX Runtime; int8 in the notes."""
    return _compare(sizes, batch=16)


def slimmed_latency(sizes: Sizes) -> Row:
    """As onnx_latency, with slimming."""
    return _compare(sizes, batch=1, slimmed=True)


def slimmed_throughput(sizes: Sizes) -> Row:
    """As onnx_throughput, with slimming."""
    return _compare(sizes, batch=16, slimmed=True)


def _compare(sizes: Sizes, *, batch: int, slimmed: bool = False) -> Row:
    graph, content, small = _export(sizes.backbone, slimmed)
    images = random_inputs(batch, graph.size)
    inputs = complete_inputs(graph, images, np.ones((batch, len(Modality)), dtype=bool))
    quantised = open_onnx(small)
    largest, cosine = compare_features(quantised, graph, random_inputs(COMPARED, graph.size))
    height, width = graph.size
    what = f"DeMo_SDTPS, {sizes.backbone}, {height} x {width}{', slimmed' if slimmed else ''}"
    return compare(
        f"torch against ONNX Runtime, {what}, batch {batch}, RANDOM weights",
        {
            "plain": partial(graph.run, inputs),
            "project": partial(open_onnx(content), inputs),
            "int8": partial(quantised, inputs),
        },
        sizes,
        at_least=None,
        difference=lambda first, second: float(np.abs(first - second).max()),
        tolerance=TOLERANCE,
        notes={
            "int8 difference": f"{largest:.0e}",
            "int8 cosine": f"{cosine:.4f}",
            "MB": f"{len(content) / 1e6:.0f} and int8 {len(small) / 1e6:.0f}",
        },
    )


@cache
def _export(backbone: str, slimmed: bool) -> tuple[ImagesToFeatures, bytes, bytes]:
    """The model of configs/RGBNT201/DeMo_SDTPS.yml with random weights, as it is, in fp32 and in int8."""
    options = ["MODEL.TRANSFORMER_TYPE", backbone, *(SLIMMING if slimmed else [])]
    cfg = load_config(CONFIG, options)
    torch.manual_seed(0)
    model = make_model(cfg, NUM_CLASSES, NUM_CAMERAS)
    graph = ImagesToFeatures(model, make_eval_transform(cfg), pattern=3)
    content = to_onnx(graph, {})
    return graph, content, quantise(content)
