"""Records → samples → `ModalBatch`, and the types that the files of this package share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info
from typing_extensions import NamedTuple

from datasets.cache import RamCache
from datasets.pixels import convert_to, make_upright
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
            if not records:  # the training split, where only the test split is read
                continue
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


class Transform(Protocol):
    """From images to tensors, in two steps: what is always the same, and what each draw does anew.

    Attributes:
        size: height and width of the result.
    """

    size: tuple[int, int]

    def resize(self, image: Image.Image) -> Tensor:
        """An RGB image → (3, H, W) bytes; nothing is random."""

    def __call__(self, images: Tensor, out: Tensor) -> None:
        """From bytes, left as they are, to floats, both (3, 3, H, W); may use torch's global generator."""


class MultiModalDataset(Dataset[Sample]):
    """Reads and transforms triples.

    The augmentation of a sample depends on the seed and its `SampleKey` alone. Neither the number of worker
    processes nor what ran before has an influence on it, and reading a sample leaves the global random state
    as it was. The same holds for the triple that stands in for an unreadable one.
    """

    def __init__(
        self,
        records: Sequence[ImageRecord],
        transform: Transform,
        seed: int = 0,
        *,
        mask_transform: Callable[[Image.Image], Tensor] | None = None,
        replace_unreadable: bool = False,
        cache: RamCache | None = None,
    ) -> None:
        """Hold the records; nothing is read yet.

        Args:
            records: the triples.
            transform: turns three RGB images into three (3, H, W) tensors.
            seed: non-negative; decides the augmentation.
            mask_transform: turns a grey-scale image into an (H, W) mask. Without it no masks are read.
            replace_unreadable: read another triple of the same identity where an image cannot be read,
                instead of raising an error.
            cache: keeps resized images, with a place for each record; without it files are read every time.
                Masks are always read.
        """
        self.records = tuple(records)
        self._transform = transform
        self._seed = seed
        self._mask_transform = mask_transform
        self._replace_unreadable = replace_unreadable
        self._cache = cache

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: SampleKey | int) -> Sample:
        """Read one triple; a plain index stands for its first draw in epoch 0."""
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> list[Sample]:
        """Read the triples of a batch side by side into one tensor, so that `collate` need not copy them."""
        images = _new_tensor(len(Modality), len(keys), 3, *self._transform.size)
        wanted = (key if isinstance(key, SampleKey) else SampleKey(key) for key in keys)
        return [self._sample(key, images[:, place]) for place, key in enumerate(wanted)]

    def _sample(self, key: SampleKey, out: Tensor) -> Sample:
        """One triple; its images are written to `out`, (3, 3, H, W)."""
        row, resized, unreadable = self._read(key)
        record = self.records[row]
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: that would also reseed CUDA, and only when there are no workers.
            torch.default_generator.manual_seed(_seed_of(self._seed, key))
            self._transform(resized, out)
        images = PerModality(*out)
        for path, image in zip(record.paths, images, strict=True):
            if path is None:
                image.zero_()
        mask = None
        if self._mask_transform is not None and record.mask_path is not None:
            mask = self._mask_transform(_read_image(record.mask_path, "mask", mode="L"))
        return Sample(images, record, mask, unreadable)

    def _read(self, key: SampleKey) -> tuple[int, Tensor, tuple[str, ...]]:
        """The wanted record or the one in its place, its images, and the files that could not be read."""
        failures: list[UnreadableImageError] = []
        for row in self._candidates(key):
            try:
                return row, self._resized(row), tuple(failure.summary for failure in failures)
            except UnreadableImageError as error:
                if not self._replace_unreadable:
                    raise
                failures.append(error)
        raise DatasetError(
            f"none of the {len(failures)} triples of the identity of {self.records[key.index].name} can be "
            f"read, so that nothing can replace it; the first failure: {failures[0]}"
        )

    def _resized(self, row: int) -> Tensor:
        """The images of a record, from the cache or from disk, (3, 3, H, W) bytes."""
        images = None if self._cache is None else self._cache.get(row)
        if images is None:
            images = self._read_and_resize(self.records[row])
            if self._cache is not None:
                self._cache.put(row, images)
        return images

    def _read_and_resize(self, record: ImageRecord) -> Tensor:
        resized = torch.zeros(len(Modality), 3, *self._transform.size, dtype=torch.uint8)
        for target, image in zip(resized, read_images(record), strict=True):
            if image is not None:
                target.copy_(self._transform.resize(image))
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
        rng = np.random.default_rng((self._seed, key.epoch, key.index, key.draw))
        yield from map(int, rng.permutation(others))


def collate(samples: Sequence[Sample]) -> ModalBatch:
    """Stack B samples to a batch; it has masks if every sample has one."""
    records = [sample.record for sample in samples]
    masks = [sample.person_mask for sample in samples if sample.person_mask is not None]
    return ModalBatch(
        images=PerModality.build(lambda m: _stack([sample.images.of(m) for sample in samples])),
        person_ids=torch.tensor([record.person_id for record in records]),
        camera_ids=torch.tensor([record.camera_id for record in records]),
        scene_ids=torch.tensor([record.scene_id for record in records]),
        names=tuple(record.name for record in records),
        person_masks=torch.stack(masks) if len(masks) == len(samples) else None,
        unreadable=tuple(text for sample in samples for text in sample.unreadable),
    )


def _new_tensor(*shape: int) -> Tensor:
    """Of floats with any values; in a loader process it lies in the memory that the main process reads."""
    if get_worker_info() is None:
        return torch.empty(shape)
    storage = torch.UntypedStorage._new_shared(torch.Size(shape).numel() * torch.float32.itemsize)
    return torch.empty(0).set_(storage).view(shape)


def _stack(images: Sequence[Tensor]) -> Tensor:
    """Stack B images to (B, 3, H, W); without a copy if they stand one behind the other already."""
    first, step = images[0], images[0].numel()
    stand_in_line = all(
        image.is_contiguous()
        and image.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and image.storage_offset() == first.storage_offset() + place * step
        for place, image in enumerate(images)
    )
    return (
        first.as_strided((len(images), *first.shape), (step, *first.stride()))
        if stand_in_line
        else torch.stack([*images])
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
            image.load()  # decodes the whole file, so that a truncated one fails here
            return convert_to(make_upright(image), mode)
    except Exception as error:  # what a broken file raises differs from decoder to decoder
        name, reason = on_one_line(path), reason_of(error)
        raise UnreadableImageError(
            f"cannot read the {kind} image {name} ({reason}): restore the file", f"{name} ({kind}): {reason}"
        ) from error
