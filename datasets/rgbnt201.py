"""RGBNT201: folder layout → sorted records."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from datasets.dataset import DatasetError, Problem, Scan, Splits
from structures import ImageRecord, Modality, PerModality, on_one_line

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
        DatasetError: `scan_rgbnt201` finds a problem. One error for all of them.
    """
    scan = scan_rgbnt201(folder)
    if scan.problems:
        raise DatasetError(_report(scan))
    train_ids = sorted({record.person_id for record in scan.train})
    labels = {person_id: label for label, person_id in enumerate(train_ids)}
    train = tuple(replace(record, person_id=labels[record.person_id]) for record in scan.train)
    return Splits(train=train, query=scan.test, gallery=scan.test)


def scan_rgbnt201(folder: Path) -> Scan:
    """List the records of a folder in the layout of RGBNT201, and all that is wrong with it.

    Problems are: folders that are missing or empty, entries that are no files, names that cannot be parsed,
    files without a partner in another modality, incomplete masks, identities in both splits. No file is
    opened.

    Args:
        folder: holds `{train_171,test}/{RGB,NI,TI}/`.
    """
    train, train_problems = _scan_split(folder / _TRAIN_FOLDER)
    test, test_problems = _scan_split(folder / _TEST_FOLDER)
    in_both = sorted({record.person_id for record in train} & {record.person_id for record in test})
    identity_problems = [
        Problem("identity", _TEST_FOLDER, f"identity {i:06d} is in both {_TRAIN_FOLDER} and {_TEST_FOLDER}")
        for i in in_both
    ]
    return Scan(folder, train, test, (*train_problems, *test_problems, *identity_problems))


def parse_name(name: str) -> tuple[int, int] | None:
    """The identity and the camera (from 0) that a file name says, or None if that has another form."""
    match = _IMAGE_NAME.fullmatch(name)
    return (int(match["person"]), int(match["camera"]) - 1) if match else None


def _scan_split(folder: Path) -> tuple[tuple[ImageRecord, ...], list[Problem]]:
    """The records of one split, with the ids on disk, and what is wrong."""
    problems: list[Problem] = []
    found = PerModality.build(lambda m: _list_files(folder / m.value, problems))
    masks_folder = folder / _MASK_FOLDER
    masks = _list_files(masks_folder, problems) if os.path.isdir(masks_folder) else None
    records = []
    names = sorted(found.rgb | found.ni | found.ti)
    for name in names:
        having = [m.value for m in Modality if name in found.of(m)]
        # A folder without any file is one problem, already noted, not one for each name.
        lacking = [m.value for m in Modality if found.of(m) and name not in found.of(m)]
        path = _where(folder.name, having[0], name)
        parsed = parse_name(name)
        if parsed is None:
            problems.append(Problem("unparsable", path, f"{path} is not named like 000001_cam1_0_00.jpg"))
            continue
        if lacking:
            problems.append(Problem("unpaired", path, f"{path} has no partner in {' and '.join(lacking)}"))
        records.append(
            ImageRecord(
                paths=PerModality(*(folder / modality.value / name for modality in Modality)),
                person_id=parsed[0],
                camera_id=parsed[1],
                mask_path=None if masks is None else masks_folder / _mask_name(name),
            )
        )
    if masks:
        wanted = {_mask_name(record.name) for record in records}
        problems += _mask_problems(masks_folder, wanted - masks, "is missing")
        problems += _mask_problems(
            masks_folder, masks - {_mask_name(n) for n in names}, "belongs to no image"
        )
    return tuple(records), problems


def _list_files(folder: Path, problems: list[Problem]) -> set[str]:
    """The names in a folder without what file managers leave behind; what is wrong is added to `problems`."""
    where = _where(folder.parent.name, folder.name)
    try:
        with os.scandir(folder) as scan:
            entries = [e for e in scan if not e.name.startswith(".") and e.name != "Thumbs.db"]
    except FileNotFoundError:
        problems.append(Problem("folder", where, f"the folder {where} is missing"))
        return set()
    except OSError as error:
        problems.append(Problem("folder", where, f"the folder {where} cannot be read ({error.strerror})"))
        return set()
    if not entries:
        problems.append(Problem("folder", where, f"the folder {where} is empty"))
    # A pipe would be waited for ever, and a link may lead nowhere.
    files = {entry.name for entry in entries if entry.is_file()}
    for name in sorted({entry.name for entry in entries} - files):
        path = _where(folder.parent.name, folder.name, name)
        problems.append(Problem("unreadable", path, f"{path} is not a file"))
    return files


def _mask_problems(folder: Path, names: set[str], what: str) -> list[Problem]:
    paths = [_where(folder.parent.name, folder.name, name) for name in sorted(names)]
    return [Problem("mask", path, f"{path} {what}") for path in paths]


def _where(*parts: str) -> str:
    return on_one_line("/".join(parts))


def _mask_name(image_name: str) -> str:
    return f"{Path(image_name).stem}.png"


def _report(scan: Scan) -> str:
    lines = [f"{len(scan.problems)} problem(s) with the data set in {on_one_line(scan.folder)}:"]
    lines += [f"  {problem.message}" for problem in scan.problems[:_PROBLEMS_SHOWN]]
    if len(scan.problems) > _PROBLEMS_SHOWN:
        lines.append(f"  and {len(scan.problems) - _PROBLEMS_SHOWN} more")
    return "\n".join([*lines, _LAYOUT])
