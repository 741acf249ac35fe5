"""What the readers share: folders → names → records, and all that is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from typing_extensions import NamedTuple

from datasets.dataset import DatasetError, Problem, Scan, Splits
from errors import on_one_line
from structures import ImageRecord, Modality, PerModality

IMAGE_ENDING = r"\.(?i:jpg|jpeg|png)"
"""The end of a file name, for regular expressions."""

VIS_NI_TH = PerModality("vis", "ni", "th")
"""The folders of the modalities below each identity, in MSVR310 and WMVeID863."""

PROBLEMS_SHOWN = 5
"""How many problems a message lists; it counts the others."""

_IDENTITY_DIGITS = 6


class Labels(NamedTuple):
    """What a file name says; see `ImageRecord`."""

    person_id: int
    camera_id: int
    scene_id: int = 0


@dataclass(frozen=True)
class Search:
    """Lists the files below the folder of a data set and collects what is wrong. No file is opened."""

    folder: Path  # of the data set
    layout: str  # what the folder should hold, in words
    test_only: bool = False  # leave the training split out
    problems: list[Problem] = field(default_factory=list)  # what was found so far

    def note(self, kind: str, path: Path, what: str, subject: str = "") -> None:
        """Add a problem with the sentence "<subject><path below the data set's folder> <what>"."""
        where = on_one_line(path.relative_to(self.folder).as_posix())
        self.problems.append(Problem(kind, where, f"{subject}{where} {what}"))

    def scan(
        self,
        read: Callable[[Path], Sequence[ImageRecord]],
        *,
        train: str,
        query: str,
        gallery: str,
        digits: int,
    ) -> Scan:
        """Read the folder of each split once, and check that no identity is in training and test.

        `query` may be the folder of the gallery. An identity has so many `digits` in messages.
        """
        wanted = dict.fromkeys((query, gallery) if self.test_only else (train, query, gallery))
        found = {train: (), **{name: tuple(read(self.folder / name)) for name in wanted}}
        trained = {record.person_id for record in found[train]}
        for name in dict.fromkeys((query, gallery)):
            for person_id in sorted(trained & {record.person_id for record in found[name]}):
                sentence = f"identity {person_id:0{digits}d} is in both {train} and {name}"
                self.problems.append(Problem("identity", name, sentence))
        records = found[train], found[query], found[gallery]
        return Scan(self.folder, self.layout, *records, tuple(self.problems))

    def list_files(self, folder: Path) -> list[str]:
        """The names of the files in a folder, sorted."""
        files = []
        for entry in self._list(folder):
            # Opening a pipe would wait for ever, and a link may lead nowhere.
            if entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path):
                files.append(entry.name)
            else:
                self.note("unreadable", folder / entry.name, "is not a file")
        return files

    def list_identities(self, folder: Path) -> list[str]:
        """The folders of a split that holds one for each identity, named by its number; sorted."""
        identities = []
        for entry in self._list(folder):
            name = entry.name
            is_number = name.isascii() and name.isdigit() and len(name) <= _IDENTITY_DIGITS
            if is_number and os.path.isdir(entry.path):
                identities.append(name)
            else:
                self.note("unparsable", folder / name, "is not the folder of an identity, such as 0001")
        return identities

    def pair(
        self,
        folder: Path,
        kinds: PerModality[str] | PerModality[str | None],
        parse: Callable[[str], Labels | None],
        example: str,
        *,
        masks: str = "",
    ) -> list[ImageRecord]:
        """The records of a folder with one folder per modality, in which a triple has one name; sorted by it.

        The missing files of an incomplete triple are among the problems.

        Args:
            folder: holds the folders.
            kinds: their names; None for a modality that the data set does not have.
            parse: from a file name to its labels, or None if it has another form.
            example: a valid file name, for messages.
            masks: name of the folder of the masks, which need not exist. A mask is a .png of the same stem.
        """
        folders = {m: folder / kind for m in Modality if (kind := kinds.of(m)) is not None}
        found = {m: set(self.list_files(path)) for m, path in folders.items()}
        names = sorted(set().union(*found.values()))
        records = []
        for name in names:
            path = folders[next(m for m in found if name in found[m])] / name
            labels = self.labels_of(path, parse, example)
            if labels is None:
                continue
            # A folder without any file is one problem, already noted, not one for each name.
            lacking = [folders[m].name for m in found if found[m] and name not in found[m]]
            if lacking:
                self.note("unpaired", path, f"has no partner in {' and '.join(lacking)}")
            paths = PerModality(*(folders[m] / name if m in folders else None for m in Modality))
            records.append(ImageRecord(paths, *labels))
        if masks and os.path.isdir(folder / masks):
            records = self._add_masks(records, folder / masks, names)
        return records

    def labels_of(self, path: Path, parse: Callable[[str], Labels | None], example: str) -> Labels | None:
        """The labels in the name of a file; None, and a problem, if it has another form."""
        labels = parse(path.name)
        if labels is None:
            self.note("unparsable", path, f"is not named like {example}")
        return labels

    def _add_masks(
        self, records: Sequence[ImageRecord], folder: Path, image_names: Sequence[str]
    ) -> list[ImageRecord]:
        masks = set(self.list_files(folder))
        if masks:
            for name in sorted({_mask_name(record.name) for record in records} - masks):
                self.note("mask", folder / name, "is missing")
            for name in sorted(masks - {_mask_name(name) for name in image_names}):
                self.note("mask", folder / name, "belongs to no image")
        return [replace(record, mask_path=folder / _mask_name(record.name)) for record in records]

    def _list(self, folder: Path) -> list[os.DirEntry[str]]:
        """The entries of a folder, sorted by name, without the files that file managers leave in it."""
        try:
            with os.scandir(folder) as scan:
                entries = [e for e in scan if not e.name.startswith(".") and e.name != "Thumbs.db"]
        except FileNotFoundError:
            self.note("folder", folder, "is missing", "the folder ")
            return []
        except OSError as error:
            self.note("folder", folder, f"cannot be read ({error.strerror})", "the folder ")
            return []
        if not entries:
            self.note("folder", folder, "is empty", "the folder ")
        return sorted(entries, key=lambda entry: entry.name)


def to_splits(scan: Scan) -> Splits:
    """The records of a scan, with training identities labelled from 0; one `DatasetError` for all problems.

    Labels follow the order of the identities on disk; test identities keep their numbers.
    """
    if scan.problems:
        count, more = len(scan.problems), len(scan.problems) - PROBLEMS_SHOWN
        lines = [f"{count} problem{'s' * (count > 1)} with the data set in {on_one_line(scan.folder)}:"]
        lines += [f"  {problem.message}" for problem in scan.problems[:PROBLEMS_SHOWN]]
        lines += [f"  and {more} more"] * (more > 0)
        raise DatasetError("\n".join([*lines, scan.layout]))
    train_ids = sorted({record.person_id for record in scan.train})
    labels = {person_id: label for label, person_id in enumerate(train_ids)}
    train = tuple(replace(record, person_id=labels[record.person_id]) for record in scan.train)
    return Splits(train=train, query=scan.query, gallery=scan.gallery)


def _mask_name(image_name: str) -> str:
    return f"{Path(image_name).stem}.png"
