"""RGBNT201: folder layout → sorted records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from datasets.dataset import DatasetError, Splits
from structures import ImageRecord, Modality, PerModality

_TRAIN_FOLDER = "train_171"
_TEST_FOLDER = "test"
_MASK_FOLDER = "MASK"
_LAYOUT = (
    f"The folder should hold {_TRAIN_FOLDER}/ and {_TEST_FOLDER}/ with different identities, each with "
    "RGB/, NI/ and TI/ that hold images of the same names, such as 000001_cam1_0_00.jpg (identity 1, camera "
    f"1); {_MASK_FOLDER}/ beside them is optional and holds a .png of the same stem for every image."
)
_IMAGE_NAME = re.compile(r"(?P<person>[0-9]{6})_cam(?P<camera>[1-9])_\w+\.(?i:jpg|jpeg|png)")
_PROBLEMS_SHOWN = 5


def read_rgbnt201(folder: Path) -> Splits:
    """Read the records of RGBNT201, or of any data set in its layout.

    Files are sorted by name and paired by name. Training identities are relabelled from 0 in the order of
    their numbers on disk; test identities keep those numbers. Cameras count from 1 on disk, from 0 here.
    All test triples are query and gallery at once.

    Args:
        folder: holds `{train_171,test}/{RGB,NI,TI}/`.

    Raises:
        DatasetError: folders are missing or empty, names cannot be parsed, files have no partner in another
            modality, masks are incomplete, or an identity is in both splits. One error for all of these.
    """
    problems: list[str] = []
    train = _read_split(folder / _TRAIN_FOLDER, problems)
    test = _read_split(folder / _TEST_FOLDER, problems)
    train_ids = {record.person_id for record in train}
    in_both = sorted(train_ids & {record.person_id for record in test})
    problems += [f"identity {i:06d} is in both {_TRAIN_FOLDER} and {_TEST_FOLDER}" for i in in_both]
    if problems:
        raise DatasetError(_report(folder, problems))
    labels = {person_id: label for label, person_id in enumerate(sorted(train_ids))}
    train = tuple(replace(record, person_id=labels[record.person_id]) for record in train)
    return Splits(train=train, query=test, gallery=test)


def _read_split(folder: Path, problems: list[str]) -> tuple[ImageRecord, ...]:
    """The records of one split, with the ids on disk; what is wrong is added to `problems`."""
    found = PerModality.build(lambda m: _list_images(folder / m.value, problems))
    masks_folder = folder / _MASK_FOLDER
    has_masks = masks_folder.is_dir()
    names = sorted(found.rgb | found.ni | found.ti)
    records = []
    for name in names:
        having = [m.value for m in Modality if name in found.of(m)]
        # A folder without any file is one problem, already noted, not one for each name.
        lacking = [m.value for m in Modality if found.of(m) and name not in found.of(m)]
        match = _IMAGE_NAME.fullmatch(name)
        if match is None:
            problems.append(f"{folder.name}/{having[0]}/{name} is not named like 000001_cam1_0_00.jpg")
            continue
        if lacking:
            problems.append(f"{folder.name}/{having[0]}/{name} has no partner in {' and '.join(lacking)}")
        records.append(
            ImageRecord(
                paths=PerModality(*(folder / modality.value / name for modality in Modality)),
                person_id=int(match["person"]),
                camera_id=int(match["camera"]) - 1,
                mask_path=masks_folder / _mask_name(name) if has_masks else None,
            )
        )
    if has_masks:
        _check_masks(masks_folder, {_mask_name(name) for name in names}, problems)
    return tuple(records)


def _list_images(folder: Path, problems: list[str]) -> set[str]:
    if not folder.is_dir():
        problems.append(f"the folder {folder.parent.name}/{folder.name} is missing")
        return set()
    names = _visible_names(folder.iterdir())
    if not names:
        problems.append(f"the folder {folder.parent.name}/{folder.name} is empty")
    return names


def _check_masks(folder: Path, expected: set[str], problems: list[str]) -> None:
    present = _visible_names(folder.iterdir())
    where = f"{folder.parent.name}/{folder.name}"
    problems += [f"{where}/{name} is missing" for name in sorted(expected - present)]
    problems += [f"{where}/{name} belongs to no image" for name in sorted(present - expected)]


def _visible_names(paths: Iterable[Path]) -> set[str]:
    """The names without what file managers leave behind."""
    return {path.name for path in paths if not path.name.startswith(".") and path.name != "Thumbs.db"}


def _mask_name(image_name: str) -> str:
    return f"{Path(image_name).stem}.png"


def _report(folder: Path, problems: list[str]) -> str:
    lines = [f"{len(problems)} problem(s) with the data set in {folder}:"]
    lines += [f"  {problem}" for problem in problems[:_PROBLEMS_SHOWN]]
    if len(problems) > _PROBLEMS_SHOWN:
        lines.append(f"  and {len(problems) - _PROBLEMS_SHOWN} more")
    return "\n".join([*lines, _LAYOUT])
