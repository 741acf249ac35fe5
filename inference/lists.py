"""Triples of your own, in folders or in a CSV file, one by one."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from datasets.csv_list import read_triples
from datasets.dataset import DatasetError
from datasets.layout import IMAGE_ENDING
from errors import UserError, on_one_line
from inference.gallery import UNKNOWN
from inference.predictor import Triple
from structures import Modality, PerModality
from weight_file import hash_file

logger = logging.getLogger(__name__)


class Listed(NamedTuple):
    """A row of a list."""

    paths: PerModality[Path | None]
    person_id: int = UNKNOWN
    camera_id: int = UNKNOWN

    @property
    def triple(self) -> Triple:
        """For the predictor. The camera is one of the user's, not one of training."""
        return Triple(*self.paths)

    @property
    def present(self) -> PerModality[bool]:
        """Which images are there."""
        return self.paths.map(lambda path: path is not None)

    @property
    def file(self) -> str:
        """The RGB image, or the first that there is."""
        return next(str(path) for path in self.paths if path is not None)


@dataclass(frozen=True)
class TripleList:
    """A folder or a CSV file that was read once, to the end."""

    path: Path
    length: int  # triples
    num_images: int
    kinds: Mapping[PerModality[bool], Listed]  # by the images that are there, the first row that has these
    sha256: str  # of the CSV file, or of the names in the folders
    rows: Callable[[], Iterator[Listed]]  # reads it again, in constant memory for a CSV file

    def only(self, modalities: Collection[Modality]) -> TripleList:
        """The same triples without the images of other modalities; each must have another."""

        def keep(row: Listed) -> Listed:
            kept = PerModality.build(lambda m: row.paths.of(m) if m in modalities else None)
            return row._replace(paths=kept)

        kinds = {kept.present: kept for kept in map(keep, self.kinds.values())}
        return replace(self, kinds=kinds, rows=lambda: map(keep, self.rows()))


def open_list(path: Path) -> TripleList:
    """A folder with some of RGB/, NI/ and TI/, or a CSV file; a UserError for the first fault."""
    if os.path.isdir(path):
        rows, sha256 = _list_folder(path)
    else:
        rows, sha256 = lambda: _read_csv(path), ""
    # Read it to the end, so that a fault in the last row is found before hours of work.
    length = num_images = 0
    kinds: dict[PerModality[bool], Listed] = {}
    for row in rows():
        length += 1
        num_images += sum(row.present)
        kinds.setdefault(row.present, row)
    if not length:
        raise UserError(f"{on_one_line(path)} lists no triples; there is nothing to embed")
    return TripleList(path, length, num_images, kinds, sha256 or hash_file(path), rows)


def _read_csv(path: Path) -> Iterator[Listed]:
    def refuse(line: int, what: str) -> None:
        raise DatasetError(f"{on_one_line(path)}, line {line}: {what}")

    for row in read_triples(path, refuse):
        person, camera = (UNKNOWN if n is None else n for n in (row.person_id, row.camera_id))
        yield Listed(row.paths, person, camera)


def _list_folder(folder: Path) -> tuple[Callable[[], Iterator[Listed]], str]:
    """The images of equal name, sorted by it, and a hash of the names."""
    folders = PerModality.build(lambda modality: folder / modality.value)
    if not any(map(os.path.isdir, folders)):
        wanted = ", ".join(modality.value for modality in Modality)
        raise UserError(f"{on_one_line(folder)} has none of the folders {wanted}; name their parent")
    found = folders.map(_list_images)
    names = sorted(set().union(*found))
    digest = hashlib.sha256(repr([(name, [name in one for one in found]) for name in names]).encode())

    def rows() -> Iterator[Listed]:
        for name in names:
            pairs = zip(folders, found, strict=True)
            yield Listed(PerModality(*(kind / name if name in one else None for kind, one in pairs)))

    return rows, digest.hexdigest()


def _list_images(folder: Path) -> frozenset[str]:
    """The names that end like those of images; the number of others is logged."""
    if not os.path.isdir(folder):
        return frozenset()
    names = [entry.name for entry in os.scandir(folder) if not entry.name.startswith(".")]
    images = frozenset(name for name in names if re.search(f"{IMAGE_ENDING}$", name))
    if len(images) < len(names):
        left_out = len(names) - len(images)
        logger.warning("%d entries of %s are left out: no .jpg, .jpeg or .png", left_out, folder)
    return images
