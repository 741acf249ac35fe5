"""`python -m studies shift`: does the selection look at the image, or only know the patch index?

The test images of every finished run are shifted sideways by whole patches, with their masks; what is
uncovered repeats the border. A selection that follows the person keeps its precision. One that knows the
patch index alone falls as the indices do that it keeps in images that are not shifted.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from datasets.build import build_test_data
from engine.build import make_device
from errors import UserError
from evaluation.selection import kept_patch_precision, most_kept_indices, patch_foreground
from structures import ModalBatch
from studies.pages import markdown_table, show_mean
from studies.run_folder import finished_runs
from trained import load_trained

logger = logging.getLogger(__name__)

SHIFTS = (0, -1, 1, -2, 2)
"""In patches; to the left where negative. The first is 0: it tells the indices."""


def main(args: argparse.Namespace) -> None:
    """Evaluate every run with every shift, and log a table."""
    rows = []
    for variant, folders in finished_runs(args.study, args.variants).items():
        runs = [shifted_precision(folder) for folder in folders]
        pairs = [zip(*(run[shift] for run in runs), strict=True) for shift in SHIFTS]
        rows.append([variant, *(" / ".join(show_mean(values) for values in pair) for pair in pairs)])
        logger.info("%s: %d runs evaluated", variant, len(runs))
    header = ["shift, in patches", *(f"{shift:+d}" if shift else "0" for shift in SHIFTS)]
    logger.info("on the person / indices of shift 0\n\n%s", markdown_table(header, rows))


@torch.no_grad()
def shifted_precision(run: Path) -> dict[int, tuple[float, float]]:
    """By shift: the share of the kept patches on the person, and that of the indices of shift 0, in percent.

    Both are means over the modalities.
    """
    trained = load_trained(run / "last.pth")
    cfg, model = trained.cfg, trained.model
    data = build_test_data(cfg, trained.split)
    device = make_device(cfg)
    model.to(device).eval()
    # What is kept, and what lies on the person, by shift.
    step = cfg.INPUT.SIZE_TEST[1] // model.backbone.grid[1]  # pixels
    kept: dict[int, list[Tensor]] = {shift: [] for shift in SHIFTS}
    foreground: dict[int, list[Tensor]] = {shift: [] for shift in SHIFTS}
    for batch in data.test.loader:
        for shift in SHIFTS:
            shifted = shift_batch(batch, shift * step)
            output = model(shifted.to(device))
            if output.selection is None or shifted.person_masks is None:
                raise UserError(
                    f"{run} selects no patches, or its data set has no masks; name other --variants"
                )
            kept[shift].append(torch.stack(list(output.selection.masks)).cpu())  # (3, B, N)
            foreground[shift].append(patch_foreground(shifted.person_masks, model.backbone.grid))
    # The precision of both.
    results: dict[int, tuple[float, float]] = {}
    for shift in SHIFTS:
        on_person = torch.cat(foreground[shift])  # (images, N)
        by_modality = torch.cat(kept[shift], dim=1)
        if not results:
            indices = [most_kept_indices(masks) for masks in by_modality]
        own = torch.stack([kept_patch_precision(masks, on_person) for masks in by_modality])
        prior = torch.stack([on_person[:, same].float().mean(dim=1) for same in indices])
        results[shift] = (100 * own.mean().item(), 100 * prior.mean().item())
    return results


def shift_batch(batch: ModalBatch, pixels: int) -> ModalBatch:
    """The images and masks of a batch moved to the right by some pixels; the border is repeated."""

    def moved(tensor: Tensor) -> Tensor:
        width = tensor.shape[-1]
        return tensor[..., (torch.arange(width) - pixels).clamp(0, width - 1)]

    masks = None if batch.person_masks is None else moved(batch.person_masks)
    return replace(batch, images=batch.images.map(moved), person_masks=masks)
