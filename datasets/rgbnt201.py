"""RGBNT201, or any data set in its layout: `{train_171,test}/{RGB,NI,TI}/`. See `datasets/sources.py`."""

from __future__ import annotations

import re
from pathlib import Path

from datasets.dataset import Scan
from datasets.layout import IMAGE_ENDING, Labels, Search
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


def scan_rgbnt201(folder: Path, *, test_only: bool = False) -> Scan:
    """The records, and all that is wrong with names and folders; all test triples are query and gallery."""
    search = Search(folder, _LAYOUT, test_only=test_only)
    kinds = PerModality.build(lambda modality: modality.value)
    return search.scan(
        lambda split: search.pair(split, kinds, parse_name, _EXAMPLE, masks=_MASK_FOLDER),
        train=_TRAIN_FOLDER,
        query=_TEST_FOLDER,
        gallery=_TEST_FOLDER,
        digits=6,
    )


def parse_name(name: str) -> Labels | None:
    """The identity and the camera (from 0) that a file name says, or None if it has another form."""
    match = _IMAGE_NAME.fullmatch(name)
    return Labels(int(match["person"]), int(match["camera"]) - 1) if match else None
