"""RGBNT100: folder layout → sorted records."""

from __future__ import annotations

import re
from pathlib import Path

from datasets.dataset import Scan, Splits
from datasets.layout import IMAGE_ENDING, Labels, Search, to_splits
from structures import ImageRecord, PerModality

_PARENT = "rgbir"
_EXAMPLE = "0548_c0002_000.jpg"
_LAYOUT = (
    f"The folder should hold {_PARENT}/ with bounding_box_train/, query/ and bounding_box_test/, training "
    f"and test with different identities. They hold images such as {_EXAMPLE} (identity 548, camera 2), "
    "each with RGB, NI and TI side by side."
)
_IMAGE_NAME = re.compile(rf"(?P<person>[0-9]{{1,6}})_c(?P<camera>[0-9]{{1,6}})(?![0-9])\w*{IMAGE_ENDING}")


def read_rgbnt100(folder: Path, *, test_only: bool = False) -> Splits:
    """Read the records of RGBNT100, or of any data set in its layout.

    Files are sorted by name. Training identities are relabelled from 0 in the order of their numbers on disk;
    test identities keep those numbers. Cameras count from 1 on disk, from 0 here.

    Args:
        folder: holds `rgbir/{bounding_box_train,query,bounding_box_test}/`.
        test_only: leave the training split out; its folder need not exist.

    Raises:
        DatasetError: `scan_rgbnt100` finds a problem. One error for all of them.
    """
    return to_splits(scan_rgbnt100(folder, test_only=test_only), _LAYOUT)


def scan_rgbnt100(folder: Path, *, test_only: bool = False) -> Scan:
    """List the records of a folder in the layout of RGBNT100, and all that is wrong with it.

    Problems are: folders that are missing or empty, entries that are no files, names that cannot be parsed,
    identities in training and test. No file is opened, so a file that is no strip is not found here.

    Args:
        folder: holds `rgbir/{bounding_box_train,query,bounding_box_test}/`.
        test_only: leave the training split out; its folder need not exist.
    """
    search = Search(folder, test_only=test_only)

    def read_split(split: Path) -> list[ImageRecord]:
        strips = [split / name for name in search.list_files(split)]
        return [
            ImageRecord(PerModality(strip, strip, strip), *labels, is_strip=True)
            for strip in strips
            if (labels := search.labels_of(strip, parse_name, _EXAMPLE)) is not None
        ]

    return search.scan(
        read_split,
        train=f"{_PARENT}/bounding_box_train",
        query=f"{_PARENT}/query",
        gallery=f"{_PARENT}/bounding_box_test",
        digits=4,
    )


def parse_name(name: str) -> Labels | None:
    """The identity and the camera (from 0) that a file name says, or None if that has another form."""
    match = _IMAGE_NAME.fullmatch(name)
    if match is None or int(match["camera"]) == 0:
        return None
    return Labels(int(match["person"]), int(match["camera"]) - 1)
