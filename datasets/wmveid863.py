"""WMVeID863, or any data set in its layout: a folder per identity with `{vis,ni,th}/` in each split.

The time of day is the scene. See `datasets/sources.py`.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from datasets.dataset import Scan
from datasets.layout import IMAGE_ENDING, VIS_NI_TH, Labels, Search
from structures import ImageRecord

_EXAMPLE = "0001_v1_n0_000.jpg"
_LAYOUT = (
    "The folder should hold train/, query/ and test/, training and test with different identities. Each "
    "holds a folder such as 0001/ for every identity, with vis/, ni/ and th/ that hold images of the same "
    f"names. A name says the camera after v and the time of day after n, such as {_EXAMPLE} (camera 1, time "
    "0)."
)
_IMAGE_NAME = re.compile(rf"[\w-]+{IMAGE_ENDING}")
_NUMBER_AFTER = r"(?<![A-Za-z]){letter}([0-9]{{1,6}})(?![0-9])"  # no letter may stand before
_CAMERA = re.compile(_NUMBER_AFTER.format(letter="v"))
_TIME_OF_DAY = re.compile(_NUMBER_AFTER.format(letter="n"))


def scan_wmveid863(folder: Path, *, test_only: bool = False) -> Scan:
    """The records, and all that is wrong with names and folders."""
    search = Search(folder, _LAYOUT, test_only=test_only)

    def read_split(split: Path) -> list[ImageRecord]:
        records = []
        for identity in search.list_identities(split):
            parse = partial(parse_name, person_id=int(identity))
            records += search.pair(split / identity, VIS_NI_TH, parse, _EXAMPLE)
        return records

    return search.scan(read_split, train="train", query="query", gallery="test", digits=4)


def parse_name(name: str, *, person_id: int) -> Labels | None:
    """The camera and the time of day that a file name says, or None if it has another form.

    Each is the first number after its letter; a letter before that one makes it part of a word. The
    identity is known from the folder.
    """
    camera, time_of_day = _CAMERA.search(name), _TIME_OF_DAY.search(name)
    if not _IMAGE_NAME.fullmatch(name) or camera is None or time_of_day is None:
        return None
    return Labels(person_id, int(camera[1]), int(time_of_day[1]))
