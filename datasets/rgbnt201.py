"""RGBNT201: folder layout → sorted records."""

from __future__ import annotations

import re
from pathlib import Path

from datasets.dataset import Scan, Splits
from datasets.layout import IMAGE_ENDING, Labels, Search, to_splits
from structures import PerModality

_TRAIN_FOLDER = "train_171"
_TEST_FOLDER = "test"
_MASK_FOLDER = "MASK"
_EXAMPLE = "000001_cam1_0_00.jpg"
_LAYOUT = (
    f"The folder should hold {_TRAIN_FOLDER}/ and {_TEST_FOLDER}/ with different identities, each with "
    f"RGB/, NI/ and TI/ that hold images of the same names, such as {_EXAMPLE} (identity 1, camera "
    f"1); {_MASK_FOLDER}/ beside them is optional and holds a .png of the same stem for every image."
)
_IMAGE_NAME = re.compile(rf"(?P<person>[0-9]{{6}})_cam(?P<camera>[1-9])_\w+{IMAGE_ENDING}")


def read_rgbnt201(folder: Path, *, test_only: bool = False) -> Splits:
    """Read the records of RGBNT201, or of any data set in its layout.

    Files are sorted by name and paired by name. Training identities are relabelled from 0 in the order of
    their numbers on disk; test identities keep those numbers. Cameras count from 1 on disk, from 0 here.
    All test triples are query and gallery at once.

    Args:
        folder: holds `{train_171,test}/{RGB,NI,TI}/`.
        test_only: leave the training split out; its folder need not exist.

    Raises:
        DatasetError: `scan_rgbnt201` finds a problem. One error for all of them.
    """
    return to_splits(scan_rgbnt201(folder, test_only=test_only), _LAYOUT)


def scan_rgbnt201(folder: Path, *, test_only: bool = False) -> Scan:
    """List the records of a folder in the layout of RGBNT201, and all that is wrong with it.

    Problems are: folders that are missing or empty, entries that are no files, names that cannot be parsed,
    files without a partner in another modality, incomplete masks, identities in both splits. No file is
    opened.

    Args:
        folder: holds `{train_171,test}/{RGB,NI,TI}/`.
        test_only: leave the training split out; its folder need not exist.
    """
    search = Search(folder, test_only=test_only)
    kinds = PerModality.build(lambda modality: modality.value)
    return search.scan(
        lambda split: search.pair(split, kinds, parse_name, _EXAMPLE, masks=_MASK_FOLDER),
        train=_TRAIN_FOLDER,
        query=_TEST_FOLDER,
        gallery=_TEST_FOLDER,
        digits=6,
    )


def parse_name(name: str) -> Labels | None:
    """The identity and the camera (from 0) that a file name says, or None if that has another form."""
    match = _IMAGE_NAME.fullmatch(name)
    return Labels(int(match["person"]), int(match["camera"]) - 1) if match else None
