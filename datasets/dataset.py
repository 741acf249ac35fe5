"""Records → samples → `ModalBatch`, and the words that the files of this room share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import NamedTuple

from structures import ImageRecord, ModalBatch, Modality, PerModality, UserError, on_one_line

IMAGE_FORMATS = ("JPEG", "PNG")
"""What is decoded, whatever the name says: for other formats Pillow may start other programs."""

_STRIP = ", ".join(modality.value for modality in Modality)


class DatasetError(UserError):
    """The files on disk are not what the data set should be."""


class UnreadableImageError(DatasetError):
    """An image file that cannot be read.

    Attributes:
        summary: "path (modality): reason".
    """

    def __init__(self, message: str, summary: str = "") -> None:
        # The summary has a default because a loader process hands on an error by its message alone.
        super().__init__(message)
        self.summary = summary


class Problem(NamedTuple):
    """Something that is wrong with a data set.

    Attributes:
        kind: one word, to count by.
        path: the file or folder, below the folder of the data set, on one line.
        message: one sentence on one line that names it.
    """

    kind: str
    path: str
    message: str


class Scan(NamedTuple):
    """What a data set reader finds on disk, be it usable or not.

    Attributes:
        folder: of the data set.
        train: training records with the identities on disk. Of a triple that is not whole, the missing files
            are among the problems.
        query: test records that are looked up, likewise.
        gallery: test records that are ranked, likewise; may be those of `query`.
        problems: all that is wrong with names and folders; empty for a data set that can be used.
    """

    folder: Path
    train: tuple[ImageRecord, ...]
    query: tuple[ImageRecord, ...]
    gallery: tuple[ImageRecord, ...]
    problems: tuple[Problem, ...]

    @property
    def records(self) -> tuple[ImageRecord, ...]:
        """All records, each once: training, query, gallery."""
        return tuple(dict.fromkeys((*self.train, *self.query, *self.gallery)))


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
        images: normalised images, each (3, H, W); zeros for a modality that the data set does not have.
        record: where the triple comes from.
        person_mask: (H, W), 1 where the person is, or None.
        unreadable: the files in whose place this triple was read, see `ModalBatch`.
    """

    images: PerModality[Tensor]
    record: ImageRecord
    person_mask: Tensor | None = None
    unreadable: tuple[str, ...] = ()


class MultiModalDataset(Dataset[Sample]):
    """Reads and transforms triples.

    The augmentation of a sample depends on the seed and its `SampleKey` alone. Neither the number of worker
    processes nor what ran before has an influence on it, and reading a sample leaves the global random state
    as it was. The same holds for the triple that stands in for an unreadable one.
    """

    def __init__(
        self,
        records: Sequence[ImageRecord],
        transform: Callable[[PerModality[Image.Image]], PerModality[Tensor]],
        seed: int = 0,
        *,
        mask_transform: Callable[[Image.Image], Tensor] | None = None,
        replace_unreadable: bool = False,
    ) -> None:
        """Hold the records; nothing is read yet.

        Args:
            records: the triples.
            transform: turns three RGB images into three (3, H, W) tensors; may use torch's global generator.
            seed: non-negative; decides the augmentation.
            mask_transform: turns a grey-scale image into an (H, W) mask. Without it no masks are read.
            replace_unreadable: read another triple of the same identity where an image cannot be read,
                instead of raising an error.
        """
        self.records = tuple(records)
        self._transform = transform
        self._seed = seed
        self._mask_transform = mask_transform
        self._replace_unreadable = replace_unreadable

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: SampleKey | int) -> Sample:
        """Read one triple; a plain index stands for its first draw in epoch 0."""
        if not isinstance(key, SampleKey):
            key = SampleKey(key)
        record, images, unreadable = self._read(key)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: that would also reseed CUDA, and only when there are no workers.
            torch.default_generator.manual_seed(_seed_of(self._seed, key))
            tensors = self._transform_present(images)
        mask = None
        if self._mask_transform is not None and record.mask_path is not None:
            mask = self._mask_transform(_read_image(record.mask_path, "mask", mode="L"))
        return Sample(tensors, record, mask, unreadable)

    def _transform_present(self, images: PerModality[Image.Image | None]) -> PerModality[Tensor]:
        """Transform the images; one that is not there becomes zeros of the same shape."""
        stand_in = next(image for image in images if image is not None)
        tensors = self._transform(images.map(lambda image: stand_in if image is None else image))
        return PerModality.build(
            lambda m: torch.zeros_like(tensors.of(m)) if images.of(m) is None else tensors.of(m)
        )

    def _read(self, key: SampleKey) -> tuple[ImageRecord, PerModality[Image.Image | None], tuple[str, ...]]:
        """The wanted triple or the one in its place, its images, and the files that could not be read."""
        failures: list[UnreadableImageError] = []
        for record in self._candidates(key):
            try:
                return record, read_images(record), tuple(failure.summary for failure in failures)
            except UnreadableImageError as error:
                if not self._replace_unreadable:
                    raise
                failures.append(error)
        raise DatasetError(
            f"none of the {len(failures)} triples of the identity of {self.records[key.index].name} can be "
            f"read, so that nothing can replace it; the first failure: {failures[0]}"
        )

    def _candidates(self, key: SampleKey) -> Iterator[ImageRecord]:
        """The wanted record, then the others of its identity in an order that depends on the key alone."""
        wanted = self.records[key.index]
        yield wanted
        others = [
            row
            for row, record in enumerate(self.records)
            if record.person_id == wanted.person_id and row != key.index
        ]
        rng = np.random.default_rng((self._seed, key.epoch, key.index, key.draw))
        yield from (self.records[row] for row in rng.permutation(others))


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
        unreadable=tuple(text for sample in samples for text in sample.unreadable),
    )


def reason_of(error: Exception) -> str:
    """Why an image could not be read, on one line and without its path."""
    if isinstance(error, UnidentifiedImageError):
        return f"it is no {' or '.join(IMAGE_FORMATS)} image"
    strerror = error.strerror if isinstance(error, OSError) else None
    return on_one_line(strerror or str(error) or type(error).__name__)


def open_image(source: Path | BinaryIO) -> Image.Image:
    """Open an image in one of the formats that data sets use; nothing is decoded yet."""
    return Image.open(source, formats=IMAGE_FORMATS)


def _seed_of(seed: int, key: SampleKey) -> int:
    """Mix the numbers well, so that neighbours (epoch 1 of image 2, epoch 2 of image 1) are unrelated."""
    return int(np.random.SeedSequence((seed, key.epoch, key.index, key.draw)).generate_state(1)[0])


def read_images(record: ImageRecord) -> PerModality[Image.Image | None]:
    """The images of a record, in colour; None for a modality that the data set does not have.

    Raises:
        UnreadableImageError: a file cannot be read, or is not the strip that it should be.
    """
    if record.is_strip:
        return PerModality(*_cut_strip(record.files[0]))

    def read(modality: Modality) -> Image.Image | None:
        path = record.paths.of(modality)
        return None if path is None else _read_image(path, modality.value, mode="RGB")

    return PerModality.build(read)


def strip_fault(height: int, width: int) -> str | None:
    """Why an image of this size cannot be three images side by side, or None if it can.

    The images of a strip are at least as wide as high, so that a single image is not taken for a strip.
    """
    if width % len(Modality):
        return f"its width of {width} pixels is no multiple of {len(Modality)}"
    if height * len(Modality) > width:
        return f"its height of {height} pixels is more than a third of its width of {width}"
    return None


def _cut_strip(path: Path) -> Iterator[Image.Image]:
    strip = _read_image(path, _STRIP, mode="RGB")
    fault = strip_fault(strip.height, strip.width)
    if fault is not None:
        name = on_one_line(path)
        raise UnreadableImageError(
            f"cannot cut {name} into {_STRIP} images ({fault}): restore the file",
            f"{name} ({_STRIP}): {fault}",
        )
    width = strip.width // len(Modality)
    for left in range(0, strip.width, width):
        yield strip.crop((left, 0, left + width, strip.height))


def _read_image(path: Path, kind: str, *, mode: str) -> Image.Image:
    try:
        with open_image(path) as image:
            return image.convert(mode)  # decodes the whole file, so that a truncated one fails here
    except Exception as error:  # what a broken file raises differs from decoder to decoder
        name, reason = on_one_line(path), reason_of(error)
        raise UnreadableImageError(
            f"cannot read the {kind} image {name} ({reason}): restore the file", f"{name} ({kind}): {reason}"
        ) from error
