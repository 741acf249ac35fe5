"""Draw which patches SDTPS keeps: `python -m tools.kept_patches --config_file F --output P TEST.WEIGHT W`.

One column per test triple, one row per modality; the patches that were discarded are veiled.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from config import ConfigError, load_config
from datasets.build import build_data
from engine.arguments import add_config_arguments, add_weight_arguments
from engine.build import make_device
from engine.setup import run_command, setup_log
from modeling.make_model import make_model
from modeling.weights import load_model
from structures import ModalBatch, Modality, Selection

logger = logging.getLogger(__name__)

VEIL = torch.tensor([0.25, 0.35, 0.65]).view(3, 1, 1)  # a blue that neither persons nor scenes have
VEIL_STRENGTH = 0.75


def veil_discarded(images: Tensor, kept: Tensor, grid: tuple[int, int]) -> np.ndarray:
    """Veil the discarded patches.

    Args:
        images: in [0, 1], (B, 3, H, W).
        kept: positions of the kept patches, (B, K).
        grid: rows and columns of the patches.

    Returns:
        (B, H, W, 3), in [0, 1].
    """
    veil = torch.full((len(images), grid[0] * grid[1]), VEIL_STRENGTH).scatter(1, kept, 0.0)
    veil = F.interpolate(veil.view(-1, 1, *grid), size=images.shape[-2:], mode="nearest")  # (B, 1, H, W)
    return (veil * VEIL + (1 - veil) * images).permute(0, 2, 3, 1).numpy()


def draw(batch: ModalBatch, selection: Selection, mean: Tensor, std: Tensor, path: Path) -> None:
    """Write the picture; `mean` and `std` of shape (3, 1, 1) undo the normalisation."""
    count = len(batch)
    figure, axes = plt.subplots(
        len(Modality), count, figsize=(0.9 * count, 1.8 * len(Modality)), squeeze=False, layout="compressed"
    )
    for row, modality in enumerate(Modality):
        images = (batch.images.of(modality).cpu() * std + mean).clamp(0, 1)
        veiled = veil_discarded(images, selection.kept.of(modality).cpu(), selection.grid)
        for axis, image in zip(axes[row], veiled, strict=True):
            axis.imshow(image)
            axis.set_xticks([])
            axis.set_yticks([])
        axes[row][0].set_ylabel(modality.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Encode some test triples and draw their kept patches."""
    parser = argparse.ArgumentParser(description="Draw which patches SDTPS keeps.")
    add_config_arguments(parser, default="the defaults alone")
    add_weight_arguments(parser)
    parser.add_argument("--output", type=Path, default=Path("kept_patches.png"), help="picture to write")
    parser.add_argument("--count", type=int, default=8, help="test triples to draw, evenly spread")
    args = parser.parse_intermixed_args(argv)

    cfg = load_config(args.config_file, args.settings)
    if not cfg.MODEL.USE_SDTPS or not cfg.TEST.WEIGHT:
        raise ConfigError("there is nothing to draw without MODEL.USE_SDTPS True and TEST.WEIGHT")
    setup_log()
    device = make_device(cfg)
    data = build_data(cfg)
    model = make_model(cfg, data.num_classes, data.num_cameras, data.num_views)
    load_model(model, cfg.TEST.WEIGHT, allow_partial=args.allow_partial)
    model.to(device).eval()

    dataset = data.test_loader.dataset
    rows = np.linspace(0, len(dataset) - 1, args.count).astype(int)  # type: ignore[arg-type]
    batch: ModalBatch = data.test_loader.collate_fn([dataset[int(row)] for row in rows]).to(device)
    with torch.no_grad():
        selection = model(batch).selection
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD))
    draw(batch, selection, mean, std, args.output)
    logger.info("wrote %s: %s", args.output, ", ".join(batch.names))


if __name__ == "__main__":
    run_command(main)
