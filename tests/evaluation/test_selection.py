from __future__ import annotations

import pytest
import torch

from evaluation.selection import (
    best_precision,
    kept_patch_precision,
    most_kept_indices,
    patch_foreground,
    score_selection,
)
from structures import PerModality


def as_masks(kept: torch.Tensor, num_patches: int) -> torch.Tensor:
    """Indices (B, K) as booleans (B, N)."""
    return torch.zeros(len(kept), num_patches, dtype=torch.bool).scatter(1, kept, True)


def test_a_patch_counts_from_more_than_half_of_its_area() -> None:
    masks = torch.zeros(1, 8, 8)
    masks[0, :2, :4] = 1  # upper left patch: 8 of 16 pixels, exactly half
    masks[0, 5:, 4:] = 1  # lower right patch: 12 of 16
    assert patch_foreground(masks, (2, 2)).tolist() == [[False, False, False, True]]
    masks[0, 2, 0] = 1  # now 9 of 16
    assert patch_foreground(masks, (2, 2)).tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16])
def test_patches_are_numbered_row_by_row_for_any_mask_type(dtype: torch.dtype) -> None:
    masks = torch.zeros(2, 16, 8, dtype=dtype)
    masks[1, 4:8, 4:] = 1  # row 1, column 1 of 4 x 2
    expected = torch.zeros(2, 8, dtype=torch.bool)
    expected[1, 3] = True
    assert torch.equal(patch_foreground(masks, (4, 2)), expected)


def test_precision_and_best_possible_per_sample() -> None:
    foreground = torch.tensor([[True, True, True, False], [False, False, True, False]])
    kept = as_masks(torch.tensor([[0, 3], [1, 2]]), 4)
    assert kept_patch_precision(kept, foreground).tolist() == [0.5, 0.5]
    assert best_precision(kept, foreground).tolist() == [1.0, 0.5]


def test_samples_may_keep_different_numbers() -> None:
    foreground = torch.tensor([[True, True, False, False], [True, False, False, False]])
    kept = torch.tensor([[True, False, False, False], [True, True, True, False]])
    assert kept_patch_precision(kept, foreground).tolist() == pytest.approx([1, 1 / 3])
    assert best_precision(kept, foreground).tolist() == pytest.approx([1, 1 / 3])
    assert most_kept_indices(kept).tolist() == [0, 1]  # two on average; 1 and 2 are kept once
    metrics = score_selection(PerModality(kept, kept, ~kept), foreground)
    assert metrics.best == pytest.approx((1 + 1 / 3 + 1 + 1 / 3 + 2 / 3 + 1) / 6)
    assert metrics.same_indices.rgb == 0.75


def test_scores_are_means_over_the_samples() -> None:
    foreground = torch.tensor([[True, True, True, False], [False, False, True, False]])
    kept = PerModality([[1, 2], [2, 0]], [[3, 0], [0, 1]], [[0, 1], [0, 1]])  # perfect, worst, in between
    metrics = score_selection(kept.map(lambda rows: as_masks(torch.tensor(rows), 4)), foreground)
    assert metrics.precision == PerModality(0.75, 0.25, 0.5)
    assert metrics.chance == 0.5
    assert metrics.best == 0.75
    # Patch 2 is kept twice, then come 0 and 1: the earlier of equals, 0. They hold 2 of 2, and 1 of 2.
    assert metrics.same_indices.rgb == 0.75


def test_random_choice_reaches_chance_and_nothing_beats_the_best() -> None:
    generator = torch.Generator().manual_seed(0)
    foreground = torch.rand(500, 32, generator=generator) < torch.rand(500, 1, generator=generator)
    random_choice = torch.rand(500, 32, generator=generator).argsort(dim=1)[:, :16]
    perfect = foreground.int().argsort(dim=1, descending=True)[:, :16]
    kept = PerModality(random_choice, perfect, random_choice)
    metrics = score_selection(kept.map(lambda rows: as_masks(rows, 32)), foreground)
    assert metrics.precision.rgb == pytest.approx(metrics.chance, abs=0.02)
    assert metrics.precision.ni == pytest.approx(metrics.best)
