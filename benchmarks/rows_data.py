"""The row on data: from JPEG files to training batches, with and without the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from benchmarks.baselines import PlainImages
from benchmarks.measure import by_turns, one_thread
from benchmarks.report import RATIO, Figure, Row
from benchmarks.sizes import Sizes
from datasets.cache import RamCache
from datasets.dataset import MultiModalDataset, collate
from datasets.transforms import TrainTransform
from structures import ImageRecord, Modality, PerModality

SIZE = (256, 128)
BATCH = 16
QUALITY = 90


def draw_triples(folder: Path, count: int) -> list[ImageRecord]:
    """Triples of JPEG files with soft shapes and a little noise, about 10 kB each, like photographs."""
    rng = np.random.default_rng(0)
    records = []
    for row in range(count):
        paths = [folder / f"{row:04d}_{modality.value}.jpg" for modality in Modality]
        for path in paths:
            coarse = rng.integers(0, 256, (SIZE[0] // 16, SIZE[1] // 16, 3), dtype=np.uint8)
            soft = Image.fromarray(coarse).resize(SIZE[::-1], Image.Resampling.BICUBIC)
            pixels = np.asarray(soft.filter(ImageFilter.GaussianBlur(1))) + rng.normal(0, 4, (*SIZE, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=QUALITY)
        records.append(ImageRecord(PerModality[Path | None](*paths), person_id=row, camera_id=0))
    return records


def data(sizes: Sizes) -> Row:
    """Triples per second of one loading process; all ways run in this one, with one thread."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        records = draw_triples(Path(folder), sizes.triples)
        rows = range(len(records))
        plain = PlainImages([record.files for record in records], size=SIZE)
        direct = make_dataset(records)
        cached = make_dataset(records, RamCache(len(records), SIZE))
        timing = by_turns(
            {
                "plain": lambda: _read_all(plain.batch, rows),
                "project": lambda: _read_all(lambda part: collate(direct.__getitems__(part)).images, rows),
                "cache": lambda: _read_all(lambda part: collate(cached.__getitems__(part)).images, rows),
            },
            sizes.effort,
        )
        difference = without_chance(records)
    speeds = {way: len(records) / timing.median(way) for way in timing.seconds}
    return Row(
        "data",
        f"data: {len(records)} training triples of {SIZE[0]} x {SIZE[1]} JPEG, one worker",
        timing.median("plain"),
        timing.median("project"),
        (
            Figure(RATIO, timing.ratio("plain", "project"), "x", at_least=1.3),
            Figure("with cache", timing.ratio("plain", "cache"), "x", at_least=2.5),
            *(Figure(way, speed, "triples/s") for way, speed in speeds.items()),
        ),
        difference=difference,
        tolerance=1e-6,
        repeats=len(timing.seconds["plain"]),
    )


def make_dataset(
    records: Sequence[ImageRecord], cache: RamCache | None = None, *, random: bool = True
) -> MultiModalDataset:
    """The project's way, with DeMo's augmentation or without any."""
    transform = TrainTransform(
        size=SIZE,
        flip_prob=0.5 if random else 0.0,
        padding=10 if random else 0,
        erase_prob=0.5 if random else 0.0,
        mean=[0.5] * 3,
        std=[0.5] * 3,
        shared=False,
    )
    return MultiModalDataset(records, transform, cache=cache)


def without_chance(records: Sequence[ImageRecord]) -> float:
    """The largest difference between the ways where nothing is random: they draw in different orders."""
    rows = range(min(BATCH, len(records)))
    files = [record.files for record in records]
    plain = PlainImages(files, size=SIZE, flip_prob=0, padding=0, erase_prob=0).batch(rows)
    cache = RamCache(len(records), SIZE)
    ways = [make_dataset(records, kept, random=False) for kept in (None, cache, cache)]
    batches = [collate(dataset.__getitems__(rows)).images for dataset in ways]
    return max(
        float((ours - theirs).abs().max())
        for images in batches
        for ours, theirs in zip(images, plain, strict=True)
    )


def _read_all(read: Callable[[Sequence[int]], Sequence[Tensor]], rows: Sequence[int]) -> Tensor:
    """Read batch by batch; the last one's images of one modality."""
    last = torch.empty(0)
    for start in range(0, len(rows), BATCH):
        last = read(rows[start : start + BATCH])[0]
    return last
