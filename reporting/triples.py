"""What the report shows of one test triple: a strip of thumbnails, and what token selection decided."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from reporting.pictures import denormalise
from structures import Modality, ModelOutput, Selection

THUMBNAIL_SIDE = 192  # the longer side of one image; smaller images keep their size
MAX_BYTE = 255


def thumbnail_size(height: int, width: int) -> tuple[int, int]:
    """Height and width of a thumbnail of an image."""
    factor = min(1.0, THUMBNAIL_SIDE / max(height, width))
    return round(factor * height), round(factor * width)


def make_strips(images: Sequence[Tensor], mean: Sequence[float], std: Sequence[float]) -> list[Image.Image]:
    """B pictures of normalised images, (B, 3, H, W) of each of M modalities: these side by side."""
    wide = torch.cat([denormalise(image, mean, std) for image in images], dim=3)  # (B, 3, H, MW)
    height, width = thumbnail_size(*images[0].shape[-2:])
    small = F.interpolate(wide, (height, len(images) * width), mode="bilinear", antialias=True)
    pixels = (MAX_BYTE * small).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()  # (B, H', MW', 3)
    return [Image.fromarray(strip) for strip in pixels]


def source_names(selection: Selection, modalities: Sequence[Modality]) -> dict[str, list[str]]:
    """By modality, what its scores are made of, as the page calls it; nothing where a method has no parts."""
    titles = {modality.key: modality.value for modality in Modality}
    return {
        m.value: [
            f"own: {m.value}" if name == "own" else titles.get(name, name) for name in selection.sources.of(m)
        ]
        for m in modalities
    }


def describe_selections(
    outputs: Mapping[str, ModelOutput], count: int, modalities: Sequence[Modality]
) -> list[dict[str, Any]]:
    """For each of the `count` triples of a batch, by condition and modality: kept patches, scores, weights.

    Numbers are coded in bytes. Every output must have a selection.
    """
    described: dict[str, list[dict[str, Any]]] = {}
    for condition, output in outputs.items():
        assert output.selection is not None
        described[condition] = _describe(output.selection, modalities)
    return [{condition: triples[row] for condition, triples in described.items()} for row in range(count)]


def _describe(selection: Selection, modalities: Sequence[Modality]) -> list[dict[str, Any]]:
    """For each triple, by modality: see `describe_selections`."""
    by_modality = {}
    for modality in modalities:
        kept = [row.tolist() for row in selection.indices.of(modality)]
        total = selection.scores.of(modality).cpu().numpy()  # (B, N)
        sources = np.zeros((len(total), 0, total.shape[1]), dtype=total.dtype)
        if parts := selection.sources.of(modality):
            sources = torch.stack(list(parts.values()), dim=1).cpu().numpy()  # (B, S, N)
        weights = np.zeros((len(total), 0, 0))
        if selection.weights is not None:
            weights = selection.weights.of(modality).cpu().numpy()  # (B, A, K)
        by_modality[modality.value] = [
            _describe_image(*image) for image in zip(kept, total, sources, weights, strict=True)
        ]
    return [dict(zip(by_modality, images, strict=True)) for images in zip(*by_modality.values(), strict=True)]


def _describe_image(
    kept: list[int], total: np.ndarray, sources: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """One image; `total` (N,), `sources` (S, N) in [0, 1], `weights` (A, K)."""
    score_max, weight_max = float(total.max()), float(weights.max(initial=0.0))
    scores = np.concatenate([total[None] / (score_max or 1.0), sources])  # (1 + S, N)
    return {
        "kept": kept,
        "scores": _as_bytes(scores),
        "score_max": round(score_max, 6),
        "weights": _as_bytes(weights / (weight_max or 1.0)),
        "weight_max": round(weight_max, 6),
        "tokens": len(weights),
    }


def _as_bytes(values: np.ndarray) -> str:
    """Values in [0, 1] as base64 of one byte each."""
    coded = np.rint(np.clip(values, 0, 1) * MAX_BYTE).astype(np.uint8)
    return base64.b64encode(coded.tobytes()).decode("ascii")
