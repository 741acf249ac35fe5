"""Print what the images of data sets look like, in figures: `python -m tools.describe_images FOLDER …`.

Each figure has its 5, 50 and 95 % points over the images. Medians are compared with those of real RGBNT201
triples: `!` marks one that lies outside their 5–95 % band and further away than a factor of 1.5.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import describe_images_arguments

if __name__ == "__main__":
    answer_early(describe_images_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from datasets.dataset import open_image, read_images
from datasets.sources import SOURCES, DataSource
from datasets.statistics import (
    REAL,
    SIZE,
    Comparison,
    ImageFigures,
    Percentiles,
    compare,
    describe_image,
    describe_placement,
    describe_set,
)
from engine.command import run_command
from engine.runtime import setup_log
from errors import UserError
from structures import ImageRecord, Modality

logger = logging.getLogger(__name__)


def describe_folder(folder: Path, source: DataSource, num_triples: int) -> Iterator[str]:
    """The lines of the table of one data set.

    Args:
        folder: of the data set.
        source: its layout.
        num_triples: read at most so many, evenly spread; 0 for all.
    """
    records = source.scan(folder).records
    if not records:
        raise UserError(f"{folder} holds no images in this layout; name another folder or --layout")
    count = min(num_triples or len(records), len(records))
    chosen = [records[index] for index in np.linspace(0, len(records) - 1, count).astype(int)]

    # Describe every image.
    figures: dict[Modality, list[tuple[str, ImageFigures]]] = {modality: [] for modality in Modality}
    for record in tqdm(chosen, "describing", unit="triple", disable=None, leave=False):
        camera = source.name_camera(record.camera_id)
        for modality, image in zip(Modality, read_images(record), strict=True):
            if image is not None:
                figures[modality].append((camera, describe_image(_pixels(image))))

    # One block of lines for each modality.
    yield f"{folder}: {count} of {len(records)} triples"
    for modality, real in zip(Modality, REAL, strict=True):
        if not figures[modality]:
            continue
        drawn = describe_set(figures[modality])
        close = {row.what: row for row in compare(drawn, real)}
        yield f"{modality.value:<4}{'':14}{'5 %':>10}{'50 %':>10}{'95 %':>10}{'real 50 %':>12}"
        for name in ("brightness", "contrast", "saturation"):
            yield _line(name, getattr(drawn, name), close.get(name))
        for camera, points in drawn.sharpness.items():
            yield _line(f"sharpness {camera}", points, close.get(f"sharpness {camera}"))
        for row in close.values():
            if row.what.startswith("power"):
                yield f"{row.what:<18}{'':10}{row.drawn:>10.2g}{'':10}{row.real:>12.2g}{_mark(row)}"
    yield from _placement_lines(chosen)


def _pixels(image: Image.Image) -> np.ndarray:
    height, width = SIZE
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _line(name: str, points: Percentiles, row: Comparison | None) -> str:
    shown = "".join(f"{point:>10.3f}" for point in points)
    return f"{name:<18}{shown}" + ("" if row is None else f"{row.real:>12.3f}{_mark(row)}")


def _mark(row: Comparison) -> str:
    return "" if row.close else "  !"


def _placement_lines(records: Sequence[ImageRecord]) -> Iterator[str]:
    """Where people are, if there are masks."""
    masks = []
    for record in records:
        if record.mask_path is not None:
            with open_image(record.mask_path) as image:
                mask = image.convert("L").resize((SIZE[1], SIZE[0]), Image.Resampling.NEAREST)
            masks.append(np.asarray(mask) > 127)
    if masks:
        placement = describe_placement(masks)
        yield (
            f"on the person, 64 of 128 patches: {100 * placement.chance:.1f} % by chance, "
            f"{100 * placement.fixed:.1f} % with the best fixed indices, {100 * placement.best:.1f} % at best"
        )


def draw_sheet(folder: Path, source: DataSource, *, identities: int = 6, views: int = 2) -> Image.Image:
    """Test identities in rows, each with some views by each camera, and their modalities side by side."""
    by_camera: dict[int, dict[int, list[ImageRecord]]] = {}
    for record in source.scan(folder).query:
        by_camera.setdefault(record.person_id, {}).setdefault(record.camera_id, []).append(record)
    people = list(by_camera.values())
    height, width = (3 * size // 4 for size in SIZE)
    rows = []
    for index in np.linspace(0, len(people) - 1, min(identities, len(people))).astype(int):
        shown = [record for _, records in sorted(people[index].items()) for record in records[:views]]
        tiles = [
            np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))
            for record in shown
            for image in read_images(record)
            if image is not None
        ]
        rows.append(np.concatenate(tiles, axis=1))
    widest = max(row.shape[1] for row in rows)
    rows = [np.pad(row, ((0, 4), (0, widest - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
    return Image.fromarray(np.concatenate(rows))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables of all folders."""
    args = describe_images_arguments(argv)
    setup_log()
    if args.layout not in SOURCES:
        raise UserError(f"unknown data set {args.layout!r} for --layout; choose from {', '.join(SOURCES)}")
    if args.triples < 0:
        raise UserError(f"--triples must be 0 or more, not {args.triples}")
    for folder in args.folders:
        for line in describe_folder(folder, SOURCES[args.layout], args.triples):
            logger.info("%s", line)
    if args.sheet is not None:
        draw_sheet(args.folders[0], SOURCES[args.layout]).save(args.sheet, quality=82)


if __name__ == "__main__":
    run_command(main)
