"""MSVR310, or any data set in its layout: a folder per identity with `{vis,ni,th}/` in each split.

The eight views, from 0, take the place of cameras. See `datasets/sources.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from datasets.dataset import Scan
from datasets.layout import IMAGE_ENDING, VIS_NI_TH, Labels, Search
from structures import ImageRecord

_EXAMPLE = "0002_s002_v0_000.jpg"
_LAYOUT = (
    "The folder should hold bounding_box_train/, query3/ and bounding_box_test/, training and test with "
    "different identities. Each holds a folder such as 0002/ for every identity, with vis/, ni/ and th/ that "
    f"hold images of the same names, such as {_EXAMPLE} (identity 2, scene 2, view 0)."
)
_IMAGE_NAME = re.compile(
    rf"(?P<person>[0-9]{{4}})_s(?P<scene>[0-9]{{3}})_v(?P<view>[0-7])(?![0-9])\w*{IMAGE_ENDING}"
)


def scan_msvr310(folder: Path, *, test_only: bool = False) -> Scan:
    """The records, and all that is wrong with names and folders."""
    search = Search(folder, _LAYOUT, test_only=test_only)

    def read_split(split: Path) -> list[ImageRecord]:
        records = []
        for identity in search.list_identities(split):
            found = search.pair(split / identity, VIS_NI_TH, parse_name, _EXAMPLE)
            for record in found:
                if record.person_id != int(identity):
                    search.note("identity", record.files[0], f"lies in the folder of identity {identity}")
            records += found
        return records

    return search.scan(
        read_split, train="bounding_box_train", query="query3", gallery="bounding_box_test", digits=4
    )


def parse_name(name: str) -> Labels | None:
    """The identity, view and scene that a file name says, or None if it has another form."""
    match = _IMAGE_NAME.fullmatch(name)
    return Labels(int(match["person"]), int(match["view"]), int(match["scene"])) if match else None
