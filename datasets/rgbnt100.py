"""RGBNT100, or any data set in its layout: `rgbir/{bounding_box_train,query,bounding_box_test}/`.

Each file holds a triple, the three images side by side. See `datasets/sources.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from datasets.dataset import Scan
from datasets.layout import IMAGE_ENDING, Labels, Search
from structures import ImageRecord, PerModality

_PARENT = "rgbir"
_EXAMPLE = "0548_c0002_000.jpg"
_LAYOUT = (
    f"The folder should hold {_PARENT}/ with bounding_box_train/, query/ and bounding_box_test/, training "
    f"and test with different identities. They hold images such as {_EXAMPLE} (identity 548, camera 2), "
    "each with RGB, NI and TI side by side."
)
_IMAGE_NAME = re.compile(rf"(?P<person>[0-9]{{1,6}})_c(?P<camera>[0-9]{{1,6}})(?![0-9])\w*{IMAGE_ENDING}")


def scan_rgbnt100(folder: Path, *, test_only: bool = False) -> Scan:
    """The records, and all that is wrong with names and folders. Cameras count from 1 on disk, from 0 here.

    No file is opened, so a file that cannot be cut into three images is not found here.
    """
    search = Search(folder, _LAYOUT, test_only=test_only)

    def read_split(split: Path) -> list[ImageRecord]:
        paths = [split / name for name in search.list_files(split)]
        return [
            ImageRecord(PerModality(path, path, path), *labels, is_strip=True)
            for path in paths
            if (labels := search.labels_of(path, parse_name, _EXAMPLE)) is not None
        ]

    return search.scan(
        read_split,
        train=f"{_PARENT}/bounding_box_train",
        query=f"{_PARENT}/query",
        gallery=f"{_PARENT}/bounding_box_test",
        digits=4,
    )


def parse_name(name: str) -> Labels | None:
    """The identity and the camera (from 0) that a file name says, or None if it has another form."""
    match = _IMAGE_NAME.fullmatch(name)
    if match is None or int(match["camera"]) == 0:
        return None
    return Labels(int(match["person"]), int(match["camera"]) - 1)
