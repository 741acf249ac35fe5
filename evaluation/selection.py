"""Does token selection find the person? The kept patches against the foreground masks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from structures import Modality, PerModality


@dataclass(frozen=True)
class SelectionMetrics:
    """How well the kept patches cover the person, all in [0, 1]; NaN for a modality without images."""

    precision: PerModality[float]  # share of the kept patches that lie on the person
    chance: float  # what a random choice would reach: the share of all patches that lie on the person
    best: float  # the best possible; below 1 where a person covers fewer patches than are kept
    # The precision if the patch indices that are kept most often were kept in every image. A selection that
    # is not above this knows where people stand, and does not look at the image.
    same_indices: PerModality[float]

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Those that have images."""
        return tuple(m for m in Modality if not math.isnan(self.precision.of(m)))

    def as_dict(self) -> dict[str, float]:
        """Plain numbers for metrics.json, in percent."""
        return {
            **{m.value: 100 * self.precision.of(m) for m in self.modalities},
            "chance": 100 * self.chance,
            "best_possible": 100 * self.best,
            **{f"same_indices_{m.value}": 100 * self.same_indices.of(m) for m in self.modalities},
        }


def patch_foreground(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """Which patches lie on the person: those with more than half of their area inside the mask.

    Args:
        masks: (B, H, W), 1 where the person is.
        grid: rows and columns of the patches. Overlapping patches count with their share of the image only.

    Returns:
        (B, N) booleans, row by row, N = rows * columns.
    """
    covered = F.adaptive_avg_pool2d(masks.float().unsqueeze(1), grid)  # (B, 1, rows, columns)
    return covered.flatten(1) > 0.5


def kept_patch_precision(kept: Tensor, foreground: Tensor) -> Tensor:
    """Share of the kept patches that lie on the foreground: (B, N) booleans each to (B,) in [0, 1]."""
    return (kept & foreground).sum(dim=1) / kept.sum(dim=1)


def best_precision(kept: Tensor, foreground: Tensor) -> Tensor:
    """The precision of a perfect choice of as many patches as were kept: (B, N) booleans each to (B,)."""
    num_kept = kept.sum(dim=1)
    return torch.minimum(foreground.sum(dim=1), num_kept) / num_kept


def most_kept_indices(kept: Tensor) -> Tensor:
    """The K patch indices that are kept most often; of equal ones the smaller: (B, N) booleans -> (K,).

    K is the number of patches that are kept, on average and rounded.
    """
    num_kept = round(kept.sum().item() / len(kept))
    return kept.sum(dim=0).argsort(descending=True, stable=True)[:num_kept]


def score_selection(
    kept: PerModality[Tensor], foreground: Tensor, present: PerModality[Tensor] | None = None
) -> SelectionMetrics:
    """Average the kept-patch precision over the images that are there, beside chance and the best possible.

    Args:
        kept: which patches were kept, each (B, N) booleans.
        foreground: (B, N) booleans; one mask serves the aligned modalities.
        present: which images are there, each (B,) booleans; None for all.
    """

    def mean(values: Tensor) -> float:
        return values.to(torch.float64).mean().item()

    def same_indices(masks: Tensor, on_person: Tensor) -> float:
        if not len(masks):
            return math.nan
        return mean(on_person[:, most_kept_indices(masks)].float().mean(dim=1))

    def of_images(modality: Modality) -> tuple[Tensor, Tensor]:
        there = slice(None) if present is None else present.of(modality)
        return kept.of(modality)[there], foreground[there]

    found = PerModality.build(of_images)
    return SelectionMetrics(
        precision=found.map(lambda image: mean(kept_patch_precision(*image))),
        chance=mean(foreground),
        best=mean(torch.cat([best_precision(*image) for image in found])),
        same_indices=found.map(lambda image: same_indices(*image)),
    )
