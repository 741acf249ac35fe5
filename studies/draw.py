"""`python -m studies draw`: one picture of what the variants of a study keep of the same triples."""

from __future__ import annotations

import argparse
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datasets.build import build_test_data
from engine.build import make_device
from engine.files import check_destination, save_bytes
from errors import UserError
from reporting.extra import import_extra
from reporting.figures import draw_kept
from reporting.pictures import denormalise, veil_discarded
from reporting.watch import read_triples, spread_evenly
from structures import Modality
from studies.run_folder import finished_runs
from trained import load_trained

logger = logging.getLogger(__name__)

FORMATS: dict[str, dict[str, Any]] = {
    ".jpg": {"pil_kwargs": {"quality": 85}},
    ".png": {"metadata": {"Software": None}},
}
"""Options of matplotlib by the ending of the file."""


def main(args: argparse.Namespace) -> None:
    """Draw the images in the first row, then what each variant that selects keeps of them."""
    ending = args.output.suffix
    if ending not in FORMATS:
        raise UserError(f"--output must end in {' or '.join(FORMATS)}, not {ending or 'nothing'}")
    if args.count < 1:
        raise UserError(f"--count must be 1 or more, not {args.count}")
    check_destination(args.output, replaces=ending)
    import_extra("matplotlib")
    # The first seed of each variant.
    rows: dict[str, np.ndarray] = {}
    names: list[str] = []
    for variant, folders in finished_runs(args.study, args.variants).items():
        images, kept, found = kept_pictures(folders[0], args.count)
        if found != (names or found):
            raise UserError(
                f"{variant} was tested on other triples than the variants before; name --variants"
            )
        rows.setdefault("image", images)
        names = found
        if kept is None:
            logger.info("%s keeps every patch: it has no row", variant)
        else:
            rows[variant] = kept
    picture = io.BytesIO()
    draw_kept(rows, [Path(name).stem for name in names], width=args.width).savefig(
        picture, format=ending[1:], dpi=150, **FORMATS[ending]
    )
    save_bytes(args.output, picture.getvalue())
    logger.info("wrote %s: %d triples, rows %s", args.output, len(names), ", ".join(rows))


@torch.no_grad()
def kept_pictures(run: Path, count: int) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """Evenly spread test triples of a run: the images, what is kept of them (if it selects), their names.

    Pictures are (T, 3, H, W, 3) in [0, 1]; what was discarded is veiled.
    """
    trained = load_trained(run / "last.pth")
    cfg, model = trained.cfg, trained.model
    loader = build_test_data(cfg, trained.split).test.loader
    batch = read_triples(loader, spread_evenly(len(loader.dataset), count))  # type: ignore[arg-type]
    device = make_device(cfg)
    selection = model.to(device).eval()(batch.to(device)).selection
    images = batch.images.map(lambda each: denormalise(each, cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD))
    views = [images]
    if selection is not None:
        masks = selection.masks.map(torch.Tensor.cpu)
        views.append(images.build(lambda m: veil_discarded(images.of(m), masks.of(m), selection.grid)))
    pictures = [
        torch.stack([view.of(m) for m in Modality], dim=1).permute(0, 1, 3, 4, 2).numpy() for view in views
    ]
    return pictures[0], pictures[1] if len(pictures) > 1 else None, list(batch.names)
