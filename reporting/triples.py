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
from structures import Modality, ModelOutput, PerModality, Selection

THUMBNAIL_SIDE = 192  # the longer side of one image; smaller images keep their size
MAX_BYTE = 255


def thumbnail_size(height: int, width: int) -> tuple[int, int]:
    """Height and width of a thumbnail of an image."""
    factor = min(1.0, THUMBNAIL_SIDE / max(height, width))
    return round(factor * height), round(factor * width)


def make_strips(
    images: PerModality[Tensor], mean: Sequence[float], std: Sequence[float]
) -> list[Image.Image]:
    """The triples of a batch as pictures: the three modalities side by side.

    Args:
        images: normalised, each (B, 3, H, W).
        mean: of the normalisation, one value per channel.
        std: likewise.

    Returns:
        B pictures.
    """
    wide = torch.cat([denormalise(image, mean, std) for image in images], dim=3)  # (B, 3, H, 3W)
    height, width = thumbnail_size(*images.rgb.shape[-2:])
    small = F.interpolate(wide, (height, len(Modality) * width), mode="bilinear", antialias=True)
    pixels = (MAX_BYTE * small).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()  # (B, H', 3W', 3)
    return [Image.fromarray(strip) for strip in pixels]


def counted_sources(num_sources: int, beta: float) -> list[int]:
    """The rows of `Selection.sources` whose weight in the score is not 0.

    The first, the learned one, has the weight 1 - 2 * beta; the others have a multiple of beta.
    """
    return [row for row in range(num_sources) if (beta if row else 1 - 2 * beta) != 0]


def source_names(selection: Selection, beta: float) -> dict[str, list[str]]:
    """By modality, what the counted rows of `Selection.sources` are; none for slimming, which does not tell.

    Args:
        selection: of any batch.
        beta: weight of the similarities in the score.
    """
    names = {}
    for modality in Modality:
        others = [other.value for other in Modality if other is not modality]
        kinds: list[list[str]] = [[], ["learned", "evidence"], ["learned", f"own: {modality.value}", *others]]
        by_count = {len(kind): kind for kind in kinds}
        all_names = by_count[selection.sources.of(modality).shape[1]]
        names[modality.value] = [all_names[row] for row in counted_sources(len(all_names), beta)]
    return names


def describe_selections(outputs: Mapping[str, ModelOutput], count: int, beta: float) -> list[dict[str, Any]]:
    """For each triple of a batch, by missing-modality setting and modality: kept patches, scores, weights.

    Args:
        outputs: by setting, all with a selection.
        count: B.
        beta: weight of the similarities in the score; sources that do not count are left out.

    Returns:
        B plain dictionaries; the numbers are coded in bytes.
    """
    settings: dict[str, list[dict[str, Any]]] = {}
    for setting, output in outputs.items():
        assert output.selection is not None
        settings[setting] = _describe(output.selection, beta)
    return [{setting: triples[row] for setting, triples in settings.items()} for row in range(count)]


def _describe(selection: Selection, beta: float) -> list[dict[str, Any]]:
    """For each triple, by modality: see `describe_selections`."""
    by_modality = {}
    for modality in Modality:
        kept = selection.kept.of(modality).cpu().tolist()
        total = selection.scores.of(modality).cpu().numpy()  # (B, N)
        sources = selection.sources.of(modality).cpu().numpy()  # (B, 4, N)
        sources = sources[:, counted_sources(sources.shape[1], beta)]  # (B, S, N)
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
