"""Triples of your own, listed in a CSV file: `rgb, ni, ti` and perhaps `id, camera, split`.

A cell of `rgb`, `ni` and `ti` is the path of an image, from the folder of the file, or empty for a modality
that is missing. A modality that no triple has needs no column. See `datasets/sources.py`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.dataset import DatasetError, Problem, Scan
from errors import on_one_line
from structures import ImageRecord, PerModality

IMAGE_COLUMNS = PerModality("rgb", "ni", "ti")
LABEL_COLUMNS = ("id", "camera", "split")
SPLITS = {"train": ("train",), "query": ("query",), "gallery": ("gallery",), "test": ("query", "gallery")}
"""By the word in the column `split`, the splits that the row is part of."""

_LAYOUT = (
    "The file should have the columns rgb, ni, ti, id, camera and split. Images are paths from its folder; "
    "id and camera are whole numbers; split is train, query, gallery, or test for query and gallery at once. "
    "A modality that no triple has needs no column. Without a column camera, only the query itself is left "
    "out of a ranking."
)
_HEADER = f"its first line names the columns: {', '.join(IMAGE_COLUMNS)}[, {', '.join(LABEL_COLUMNS)}]"
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MOST_DIGITS = 18  # of a number that fits into 64 bits

Note = Callable[[int, str], None]
"""Takes a line number and what is wrong there, in the words after a colon; may raise."""


class ListedTriple(NamedTuple):
    """A row of the file."""

    line: int  # from 1, the header included
    paths: PerModality[Path | None]  # None for a missing modality
    person_id: int | None  # None without the column, or if the cell is empty
    camera_id: int | None  # likewise
    split: str  # a key of `SPLITS`, or empty


def read_columns(path: Path) -> list[str]:
    """The names in the header; a `DatasetError` if the file cannot be read or lacks one."""
    return next(_read_cells(path))[1]


def read_triples(path: Path, note: Note) -> Iterator[ListedTriple]:
    """The rows one by one, in constant memory; those that cannot be used are noted and left out.

    The image files are not looked at.
    """
    rows = _read_cells(path)
    _, columns = next(rows)
    for line, row in rows:
        if len(row) != len(columns):
            note(line, f"there are {len(row)} cells, and {len(columns)} columns; separate them by commas")
            continue
        cells = dict(zip(columns, map(str.strip, row), strict=True))
        images = PerModality(*(path.parent / cell if (cell := cells.get(c)) else None for c in IMAGE_COLUMNS))
        fault = _find_fault(cells)
        if fault is not None:
            note(line, fault)
            continue
        person, camera = (int(cells[name]) if cells.get(name) else None for name in ("id", "camera"))
        yield ListedTriple(line, images, person, camera, cells.get("split", ""))


def _find_fault(cells: dict[str, str]) -> str | None:
    """What is wrong with the cells of a row, by column."""
    if not any(map(cells.get, IMAGE_COLUMNS)):
        return "rgb, ni and ti are all empty; name at least one image, or remove the row"
    for column in ("id", "camera"):
        text = cells.get(column, "")
        if text and not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            return f"{column} is {text!r}, not a whole number from 0"
    split = cells.get("split", "")
    if split and split not in SPLITS:
        return f"split is {split!r}; choose from {', '.join(SPLITS)}"
    return None


def _read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row that is not empty, with its line; the header first, checked."""
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        raise DatasetError(f"there is no CSV file {on_one_line(path)}; name another one")
    try:
        with open(path, "rb") as file:
            reader = csv.reader(_decode_lines(file, path), strict=True)
            header: list[str] | None = None
            for row in reader:
                if not any(map(str.strip, row)):
                    continue
                if header is None:
                    row = header = _check_header(row, path)
                yield reader.line_num, row
    except csv.Error as error:
        raise DatasetError(f"{_place(path, reader.line_num)}: the row cannot be read ({error})") from None
    except OSError as error:
        raise DatasetError(f"the CSV file {on_one_line(path)} cannot be read: {error.strerror}") from None
    if header is None:
        raise DatasetError(f"the CSV file {on_one_line(path)} is empty; {_HEADER}")


def _decode_lines(lines: Iterable[bytes], path: Path) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise DatasetError(f"{_place(path, number)}: the text is not UTF-8; save it as UTF-8") from None


def _check_header(row: Sequence[str], path: Path) -> list[str]:
    columns = [cell.strip().lower() for cell in row]
    where, known = _place(path, 1), (*IMAGE_COLUMNS, *LABEL_COLUMNS)
    for separator, plural in _OTHER_SEPARATORS.items():
        if separator in columns[0]:
            raise DatasetError(
                f"{where}: {columns[0]!r} is separated by {plural}; separate the columns by commas"
            )
    for name in columns:
        if name not in known:
            raise DatasetError(f"{where}: there is no column {name!r}; choose from {', '.join(known)}")
        if columns.count(name) > 1:
            raise DatasetError(f"{where}: the column {name} is there twice; remove one")
    if not set(columns) & set(IMAGE_COLUMNS):
        raise DatasetError(f"{where}: the columns rgb, ni and ti are all missing; add at least one of them")
    return columns


def _place(path: Path, line: int) -> str:
    return f"{on_one_line(path)}, line {line}"


def scan_csv(path: Path, *, test_only: bool = False) -> Scan:
    """The records in the order of the file, and all that is wrong with its rows."""
    problems: list[Problem] = []

    def note(line: int, what: str) -> None:
        where = f"{on_one_line(path.name)}, line {line}"
        problems.append(Problem("row", where, f"{where}: {what}"))

    # The columns that training and testing need.
    columns = read_columns(path)
    for name in ("id", "split"):
        if name not in columns:
            raise DatasetError(f"{_place(path, 1)}: a data set needs the column {name}; add it")
    # The rows, each triple once.
    splits: dict[str, list[ImageRecord]] = {"train": [], "query": [], "gallery": []}
    lines: dict[PerModality[Path | None], int] = {}
    for row in read_triples(path, note):
        if test_only and row.split == "train":
            continue
        fault = _find_record_fault(row, "camera" in columns)
        if fault is None and lines.setdefault(row.paths, row.line) != row.line:
            fault = f"the images are those of line {lines[row.paths]}; remove one (test: query and gallery)"
        if fault is not None:
            note(row.line, fault)
            continue
        record = ImageRecord(row.paths, row.person_id or 0, row.camera_id or 0)
        for name in SPLITS[row.split]:
            splits[name].append(record)
    # The splits: no identity is in training and test, and none is empty.
    train, query, gallery = map(tuple, splits.values())
    trained = {record.person_id: lines[record.paths] for record in reversed(train)}
    tested = {record.person_id: lines[record.paths] for record in reversed((*query, *gallery))}
    for person in sorted(trained.keys() & tested.keys()):
        note(tested[person], f"identity {person} is also in training, line {trained[person]}")
    for name, records in splits.items():
        if not records and not problems and not (test_only and name == "train"):
            note(1, f"no row has the split {name}{' or test' * (name != 'train')}; add some")
    return Scan(path.parent, _LAYOUT, train, query, gallery, tuple(problems))


def _find_record_fault(row: ListedTriple, has_cameras: bool) -> str | None:
    """What a row lacks to be part of a data set."""
    if not row.split:
        return f"split is empty; choose from {', '.join(SPLITS)}"
    if row.person_id is None or (has_cameras and row.camera_id is None):
        return f"{'id' if row.person_id is None else 'camera'} is empty; give a whole number from 0"
    for path in row.paths:
        if path is not None and not os.path.isfile(path):
            return f"there is no file {on_one_line(path)}; correct the path, or remove the row"
    return None
