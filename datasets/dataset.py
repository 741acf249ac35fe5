"""Records → samples → `ModalBatch`, and the words that the files of this room share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import NamedTuple

from structures import ImageRecord, ModalBatch, PerModality, UserError


class DatasetError(UserError):
    """The files on disk are not what the data set should be."""


class Splits(NamedTuple):
    """What a data set reader yields.

    Attributes:
        train: records with `person_id` in [0, number of training identities).
        query: test records that are looked up.
        gallery: test records that are ranked; may hold the same images as `query`.
    """

    train: tuple[ImageRecord, ...]
    query: tuple[ImageRecord, ...]
    gallery: tuple[ImageRecord, ...]

    def describe(self) -> str:
        """A table of identities, triples and cameras per split."""
        lines = [f"{'split':<8}{'ids':>8}{'triples':>10}{'cameras':>10}"]
        for name, records in self._asdict().items():
            ids = {record.person_id for record in records}
            cameras = {record.camera_id for record in records}
            lines.append(f"{name:<8}{len(ids):>8}{len(records):>10}{len(cameras):>10}")
        return "\n".join(lines)


@dataclass(frozen=True)
class SampleKey:
    """Which image is wanted, and all that its augmentation may depend on beside the seed.

    Attributes:
        index: the record's place in the data set.
        epoch: the epoch of training.
        draw: how often this record was drawn before in this epoch, so that repeats look different.
    """

    index: int
    epoch: int = 0
    draw: int = 0


@dataclass(frozen=True)
class Sample:
    """One triple, ready to be collated.

    Attributes:
        images: normalised images, each (3, H, W).
        record: where the triple comes from.
        person_mask: (H, W), 1 where the person is, or None.
    """

    images: PerModality[Tensor]
    record: ImageRecord
    person_mask: Tensor | None = None


class MultiModalDataset(Dataset[Sample]):
    """Reads and transforms triples.

    The augmentation of a sample depends on the seed and its `SampleKey` alone. Neither the number of worker
    processes nor what ran before has an influence on it, and reading a sample leaves the global random state
    as it was.
    """

    def __init__(
        self,
        records: Sequence[ImageRecord],
        transform: Callable[[PerModality[Image.Image]], PerModality[Tensor]],
        seed: int = 0,
        *,
        mask_transform: Callable[[Image.Image], Tensor] | None = None,
    ) -> None:
        """Hold the records; nothing is read yet.

        Args:
            records: the triples.
            transform: turns three RGB images into three (3, H, W) tensors; may use torch's global generator.
            seed: non-negative; decides the augmentation.
            mask_transform: turns a grey-scale image into an (H, W) mask. Without it no masks are read.
        """
        self.records = tuple(records)
        self._transform = transform
        self._seed = seed
        self._mask_transform = mask_transform

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: SampleKey | int) -> Sample:
        """Read one triple; a plain index stands for its first draw in epoch 0."""
        if not isinstance(key, SampleKey):
            key = SampleKey(key)
        record = self.records[key.index]
        images = PerModality.build(lambda m: _read_image(record.paths.of(m), m.value, mode="RGB"))
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: that would also reseed CUDA, and only when there are no workers.
            torch.default_generator.manual_seed(_seed_of(self._seed, key))
            tensors = self._transform(images)
        mask = None
        if self._mask_transform is not None and record.mask_path is not None:
            mask = self._mask_transform(_read_image(record.mask_path, "mask", mode="L"))
        return Sample(tensors, record, mask)


def collate(samples: Sequence[Sample]) -> ModalBatch:
    """Stack B samples to a batch; it has masks if every sample has one."""
    records = [sample.record for sample in samples]
    masks = [sample.person_mask for sample in samples if sample.person_mask is not None]
    return ModalBatch(
        images=PerModality.build(lambda m: torch.stack([sample.images.of(m) for sample in samples])),
        person_ids=torch.tensor([record.person_id for record in records]),
        camera_ids=torch.tensor([record.camera_id for record in records]),
        scene_ids=torch.tensor([record.scene_id for record in records]),
        names=tuple(record.name for record in records),
        person_masks=torch.stack(masks) if len(masks) == len(samples) else None,
    )


def _seed_of(seed: int, key: SampleKey) -> int:
    """Mix the numbers well, so that neighbours (epoch 1 of image 2, epoch 2 of image 1) are unrelated."""
    return int(np.random.SeedSequence((seed, key.epoch, key.index, key.draw)).generate_state(1)[0])


def _read_image(path: Path, kind: str, *, mode: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert(mode)  # decodes the whole file, so that a truncated one fails here
    except Exception as error:  # what a broken file raises differs from decoder to decoder
        raise DatasetError(f"cannot read the {kind} image {path} ({error}): restore the file") from error
