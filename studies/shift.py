"""Does the selection look at the image, or only know the place? `python -m tools.study_shift STUDY`.

The test images of every finished run are shifted sideways by whole patches, with their masks; what is
uncovered repeats the border. A selection that follows the person keeps its precision. One that knows the
place alone falls as the places do that it keeps in images that are not shifted.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import study_shift_arguments

if __name__ == "__main__":
    answer_early(study_shift_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from datasets.build import build_test_data
from engine.build import make_device
from engine.command import run_command
from engine.runtime import setup_log
from evaluation.selection import kept_patch_precision, most_kept_places, patch_foreground
from structures import ModalBatch, UserError
from tools.ablation.finished import finished_runs, markdown_table, show_mean
from trained import load_trained

logger = logging.getLogger(__name__)

SHIFTS = (0, -1, 1, -2, 2)
"""In patches; to the left where negative. The first is 0: it tells the places."""


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate every run with every shift, and log a table."""
    args = study_shift_arguments(argv)
    setup_log()
    runs = finished_runs(args.study, args.variants)
    with tqdm(total=sum(map(len, runs.values())), unit="run", disable=None) as progress:
        rows = []
        for variant, folders in runs.items():
            found = []
            for folder in folders:
                found.append(shifted_precision(folder))
                progress.update()
            rows.append([variant, *(_cell([run[shift] for run in found]) for shift in SHIFTS)])
    header = ["shift, in patches", *(f"{shift:+d}" if shift else "0" for shift in SHIFTS)]
    logger.info("on the person / places of shift 0\n\n%s", markdown_table(header, rows))


def _cell(runs: list[tuple[float, float]]) -> str:
    return " / ".join(show_mean(values) for values in zip(*runs, strict=True))


@torch.no_grad()
def shifted_precision(run: Path) -> dict[int, tuple[float, float]]:
    """By shift: the share of the kept patches on the person, and that of the places of shift 0, in percent.

    Both are means over the modalities.
    """
    trained = load_trained(run / "last.pth")
    cfg, model = trained.cfg, trained.model
    data = build_test_data(cfg, trained.split)
    device = make_device(cfg)
    model.to(device).eval()
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
            kept[shift].append(torch.stack(list(output.selection.kept)).cpu())  # (3, B, K)
            foreground[shift].append(patch_foreground(shifted.person_masks, model.backbone.grid))
    results: dict[int, tuple[float, float]] = {}
    for shift in SHIFTS:
        on_person = torch.cat(foreground[shift])  # (images, N)
        by_modality = torch.cat(kept[shift], dim=1)
        if not results:
            places = [most_kept_places(rows, on_person.shape[1]) for rows in by_modality]
        own = torch.stack([kept_patch_precision(rows, on_person) for rows in by_modality])
        prior = torch.stack([on_person[:, same].float().mean(dim=1) for same in places])
        results[shift] = (100 * own.mean().item(), 100 * prior.mean().item())
    return results


def shift_batch(batch: ModalBatch, pixels: int) -> ModalBatch:
    """The images and masks of a batch moved to the right by some pixels; the border is repeated."""

    def moved(tensor: Tensor) -> Tensor:
        width = tensor.shape[-1]
        return tensor[..., (torch.arange(width) - pixels).clamp(0, width - 1)]

    masks = None if batch.person_masks is None else moved(batch.person_masks)
    return replace(batch, images=batch.images.map(moved), person_masks=masks)


if __name__ == "__main__":
    run_command(main)
