"""Records → samples → `ModalBatch`, and the types that the files of this package share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from typing_extensions import NamedTuple

from datasets.cache import RamCache
from datasets.pixels import convert_to, make_upright
from errors import UserError, on_one_line
from structures import ImageRecord, ModalBatch, Modality, PerModality

IMAGE_FORMATS = ("JPEG", "PNG")
"""What is decoded, whatever the name says: for other formats Pillow may start other programs."""

Records = tuple[ImageRecord, ...]

_DROPOUT_STREAM = 1
"""Keeps the random numbers of modality dropout apart from those of the augmentation."""

_ALL_MODALITIES = ", ".join(modality.value for modality in Modality)


class DatasetError(UserError):
    """The files on disk are not what the data set should be."""


class UnreadableImageError(DatasetError):
    """An image file that cannot be read; `summary` is "path (modality): reason"."""

    def __init__(self, message: str, summary: str = "") -> None:
        # The summary has a default because a loader process hands on an error by its message alone.
        super().__init__(message)
        self.summary = summary


class Problem(NamedTuple):
    """Something that is wrong with a data set."""

    kind: str  # one word, to count by
    path: str  # the file or folder, below the folder of the data set, on one line
    message: str  # one sentence on one line that names it


class Scan(NamedTuple):
    """What a data set reader finds on disk, whether it can be used or not."""

    folder: Path  # of the data set
    layout: str  # what the folder should hold, in words
    # Training records with the identities on disk. The missing files of an incomplete triple are among the
    # problems.
    train: Records
    query: Records  # test records that are looked up
    gallery: Records  # test records that are ranked; may be those of `query`
    # All that is wrong with names and folders; empty for a data set that can be used.
    problems: tuple[Problem, ...]

    @property
    def records(self) -> Records:
        """All records, each once: training, query, gallery."""
        return tuple(dict.fromkeys((*self.train, *self.query, *self.gallery)))


class Splits(NamedTuple):
    """What a data set reader yields."""

    train: Records  # records with `person_id` in [0, number of training identities)
    query: Records  # test records that are looked up
    gallery: Records  # test records that are ranked; may hold the same images as `query`
    validation: Records = ()  # records that `hold_out` took from `train`; they are looked up in each other

    def describe(self) -> str:
        """A table of identities, triples and cameras of each split that is not empty."""
        lines = [f"{'split':<12}{'ids':>8}{'triples':>10}{'cameras':>10}"]
        for name, records in self._asdict().items():
            if records:
                ids = {record.person_id for record in records}
                cameras = {record.camera_id for record in records}
                lines.append(f"{name:<12}{len(ids):>8}{len(records):>10}{len(cameras):>10}")
        return "\n".join(lines)


@dataclass(frozen=True)
class SampleKey:
    """Which image is wanted, and all that its augmentation may depend on beside the seed."""

    index: int  # of the record in the data set
    epoch: int = 0  # the epoch of training
    draw: int = 0  # how often this record was drawn before in this epoch, so that repeats look different
    batch: int = 0  # the batch of the epoch; decides which modalities are dropped


@dataclass(frozen=True)
class Sample:
    """One triple, ready to be collated."""

    images: PerModality[Tensor]  # normalised, each (3, H, W); zeros where one is absent
    present: PerModality[bool]  # which images are there
    record: ImageRecord  # where the triple comes from
    person_mask: Tensor | None = None  # (H, W), 1 where the person is, or None
    # The files that could not be read and that this triple replaces, see `ModalBatch`.
    unreadable: tuple[str, ...] = ()


class Transform(Protocol):
    """From images to tensors, in two steps: `resize` is always the same, the call may differ by draw."""

    size: tuple[int, int]  # height and width of the result

    def resize(self, image: Image.Image) -> Tensor:
        """An RGB image → (3, H, W) bytes; nothing is random."""

    def __call__(self, images: Tensor) -> Tensor:
        """From bytes, which are not changed, to floats, both (3, 3, H, W); may use torch's generator."""


@dataclass(eq=False)
class MultiModalDataset(Dataset[Sample]):
    """Reads and transforms triples.

    The augmentation of a sample depends on the seed and its `SampleKey` alone, not on the number of worker
    processes or on what ran before, and reading a sample leaves the global random state as it was. The same
    holds for the triple that replaces an unreadable one.
    """

    records: Sequence[ImageRecord]
    transform: Transform
    seed: int = 0  # not negative
    _: KW_ONLY
    # Turns a grey image into an (H, W) mask; without it no masks are read.
    mask_transform: Callable[[Image.Image], Tensor] | None = None
    # Whether another triple of the identity is read where an image cannot be read, instead of an error.
    replace_unreadable: bool = False
    # Keeps the resized images of all records; without it files are read every time. Masks always are.
    cache: RamCache | None = None
    # The probability that a batch loses a modality, each on its own, but never all of a triple.
    modality_dropout: float = 0.0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: SampleKey | int) -> Sample:
        """Read one triple; a plain index stands for its first draw in epoch 0."""
        if not isinstance(key, SampleKey):
            key = SampleKey(key)
        row, resized, unreadable = self._read(key)
        record = self.records[row]
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: that would also reseed CUDA, and only when there are no workers.
            torch.default_generator.manual_seed(_seed_of(self.seed, key))
            images = PerModality(*self.transform(resized))
        # The augmentation of an image does not depend on whether the others are there.
        present = self._drop(record.present, key)
        blank_absent(images, present)
        mask = None
        if self.mask_transform is not None and record.mask_path is not None:
            mask = self.mask_transform(read_image(record.mask_path, "mask", mode="L"))
        return Sample(images, present, record, mask, unreadable)

    def _drop(self, present: PerModality[bool], key: SampleKey) -> PerModality[bool]:
        """What modality dropout leaves; drawn apart from the augmentation, which stays as it is.

        A whole batch loses the same modalities. If each triple lost its own, the triplet loss would compare
        descriptors that have different parts, whose distances say what is missing and not who it is.
        """
        if not self.modality_dropout:
            return present
        rng = np.random.default_rng((self.seed, key.epoch, key.batch, _DROPOUT_STREAM))
        return keep_some(present, PerModality(*rng.random(len(Modality)).tolist()), self.modality_dropout)

    def _read(self, key: SampleKey) -> tuple[int, Tensor, tuple[str, ...]]:
        """The row of the wanted record or its replacement, its images, and the files that cannot be read."""
        failures: list[UnreadableImageError] = []
        for row in self._candidates(key):
            try:
                return row, self._resized(row), tuple(failure.summary for failure in failures)
            except UnreadableImageError as error:
                if not self.replace_unreadable:
                    raise
                failures.append(error)
        raise DatasetError(
            f"none of the {len(failures)} triples of the identity of {self.records[key.index].name} can be "
            f"read, so nothing can replace it; the first failure: {failures[0]}"
        )

    def _resized(self, row: int) -> Tensor:
        """The images of a record, from the cache or from disk, (3, 3, H, W) bytes."""
        if self.cache is not None and (kept := self.cache.get(row)) is not None:
            return kept
        resized = resize_images(read_images(self.records[row]), self.transform)
        if self.cache is not None:
            self.cache.put(row, resized)
        return resized

    def _candidates(self, key: SampleKey) -> Iterator[int]:
        """The wanted record, then the others of its identity in an order that depends on the key alone."""
        yield key.index
        wanted = self.records[key.index]
        others = [
            row
            for row, record in enumerate(self.records)
            if record.person_id == wanted.person_id and row != key.index
        ]
        rng = np.random.default_rng((self.seed, key.epoch, key.index, key.draw))
        yield from map(int, rng.permutation(others))


def keep_some(present: PerModality[bool], draws: PerModality[float], probability: float) -> PerModality[bool]:
    """Which images are left if those with a draw below `probability` are taken away; never none.

    If all would go, that with the largest draw stays. `draws` are in [0, 1).
    """
    there = [m for m in Modality if present.of(m)]
    luckiest = max(there, key=draws.of)
    return PerModality.build(lambda m: m in there and (m is luckiest or draws.of(m) >= probability))


def blank_absent(images: PerModality[Tensor], present: PerModality[bool]) -> None:
    """Fill the images that are not there with zeros, in place."""
    for image, there in zip(images, present, strict=True):
        if not there:
            image.zero_()


def resize_images(images: PerModality[Image.Image | None], transform: Transform) -> Tensor:
    """The resized images of a triple, (3, 3, H, W) bytes; black for one that is not there."""
    black = torch.zeros(3, *transform.size, dtype=torch.uint8)
    return torch.stack([black if image is None else transform.resize(image) for image in images])


def collate(samples: Sequence[Sample]) -> ModalBatch:
    """Stack B samples to a batch; it has masks if every sample has one."""
    records = [sample.record for sample in samples]
    masks = [sample.person_mask for sample in samples if sample.person_mask is not None]
    present = [sample.present for sample in samples]
    return ModalBatch(
        images=default_collate([sample.images for sample in samples]),
        present=PerModality(*torch.tensor(present).unbind(dim=1)),
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
    """The images of a record, in colour and upright; None for a modality that the data set does not have.

    Raises:
        UnreadableImageError: a file cannot be read, or does not hold three images side by side if it should.
    """
    if record.is_strip:
        cut = PerModality(*_cut_strip(record.files[0]))
        return PerModality.build(lambda m: cut.of(m) if record.present.of(m) else None)
    pairs = zip(Modality, record.paths, strict=True)
    return PerModality(
        *(None if path is None else read_image(path, m.value, mode="RGB") for m, path in pairs)
    )


def strip_fault(height: int, width: int) -> str | None:
    """Why an image of this size cannot be three images side by side, or None if it can.

    Each of the three must be at least as wide as high, so that a single image is not cut by mistake.
    """
    if width % len(Modality):
        return f"its width of {width} pixels is no multiple of {len(Modality)}"
    if height * len(Modality) > width:
        return f"its height of {height} pixels is more than a third of its width of {width}"
    return None


def _cut_strip(path: Path) -> Iterator[Image.Image]:
    strip = read_image(path, _ALL_MODALITIES, mode="RGB")
    fault = strip_fault(strip.height, strip.width)
    if fault is not None:
        name = on_one_line(path)
        raise UnreadableImageError(
            f"cannot cut {name} into {_ALL_MODALITIES} images ({fault}): restore the file",
            f"{name} ({_ALL_MODALITIES}): {fault}",
        )
    width = strip.width // len(Modality)
    for left in range(0, strip.width, width):
        yield strip.crop((left, 0, left + width, strip.height))


def read_image(path: Path, kind: str, *, mode: str) -> Image.Image:
    """The image in a file, upright, as `RGB` or `L`; `kind` names it in the error."""
    try:
        with open_image(path) as image:
            image.load()  # decodes the whole file, so that a truncated one fails here
            return convert_to(make_upright(image), mode)
    except Exception as error:  # what a broken file raises differs from decoder to decoder
        name, reason = on_one_line(path), reason_of(error)
        raise UnreadableImageError(
            f"cannot read the {kind} image {name} ({reason}): restore the file, or name another",
            f"{name} ({kind}): {reason}",
        ) from error
