"""The row on data: from JPEG files to training batches, with and without the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from benchmarks.bench import Row, Sizes, compare
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
    """Training triples from files against the cache, in one process with one thread, as in a worker."""
    # As in a worker: one thread.
    transform = TrainTransform(
        size=SIZE, flip_prob=0.5, padding=10, erase_prob=0.5, mean=[0.5] * 3, std=[0.5] * 3, shared=False
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            records = draw_triples(Path(folder), sizes.triples)
            files = MultiModalDataset(records, transform)
            cached = MultiModalDataset(records, transform, cache=RamCache(len(records), SIZE))
            row = compare(
                f"data: {len(records)} triples of {SIZE[0]} x {SIZE[1]}, files against DATALOADER.CACHE ram",
                {"plain": lambda: read_all(files), "project": lambda: read_all(cached)},
                sizes,
                at_least=1.5,
                difference=lambda plain, project: float((plain - project).abs().max()),
            )
    finally:
        torch.set_num_threads(threads)
    # Throughput.
    assert row.plain is not None
    row.notes.update({"from files": f"{len(records) / row.plain:.0f} triples/s"})
    row.notes.update({"from the cache": f"{len(records) / row.project:.0f} triples/s"})
    return row


def read_all(dataset: MultiModalDataset) -> Tensor:
    """Read batch by batch; the last one's RGB images."""
    rows: Sequence[int] = range(len(dataset))
    for start in range(0, len(dataset), BATCH):
        batch = collate([dataset[row] for row in rows[start : start + BATCH]])
    return batch.images.rgb
