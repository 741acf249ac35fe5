"""The data sets by name: how each is read, by which protocol it is scored, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from datasets.csv_list import scan_csv
from datasets.dataset import DatasetError, Records, Scan, Splits
from datasets.layout import to_splits
from datasets.msvr310 import scan_msvr310
from datasets.rgbnt100 import scan_rgbnt100
from datasets.rgbnt201 import scan_rgbnt201
from datasets.synthetic import (
    ANYWHERE_SPEC,
    HARD_SPEC_V1,
    TRUNK_SPEC,
    DrawnSpec,
    SpecV1,
    SyntheticSpec,
    ensure_synthetic,
)
from datasets.validation import has_positive
from datasets.wmveid863 import scan_wmveid863
from structures import check_protocol


def _draw_synthetic(root: Path, *, name: str, spec: DrawnSpec, seed: int) -> Path:
    try:
        return ensure_synthetic(root, name=name, seed=seed, spec=spec)  # the same set for every training seed
    except OSError as error:
        raise DatasetError(
            f"the synthetic data set cannot be drawn in {root.absolute()} ({error.strerror}); "
            "set DATASETS.ROOT_DIR to a folder with space that can be written"
        ) from error


class Reader(Protocol):
    """Lists the records of a data set, and all that is wrong with its names and folders; opens no file.

    Records are sorted by file name, and by identity where each has a folder; the files of a triple have the
    same name. A list has its own order and names.
    """

    def __call__(self, folder: Path, /, *, test_only: bool = False) -> Scan:
        """With `test_only`, the training split is empty, and its folder need not exist."""


@dataclass(frozen=True)
class DataSource:
    """A data set that DATASETS.NAMES may name."""

    folder: str  # its folder below DATASETS.ROOT_DIR
    scan: Reader  # see `Reader`
    protocol: str  # see `RetrievalSet`
    name_camera: Callable[[int], str] = str  # from the camera of a record to what the data set calls it
    # For a synthetic set: from DATASETS.ROOT_DIR to its folder, drawn if it is not there.
    draw: Callable[[Path], Path] | None = None
    is_list: bool = False  # `scan` takes the file that DATASETS.CSV names, in place of a folder

    def __post_init__(self) -> None:
        check_protocol(self.protocol)

    def read(self, folder: Path, *, test_only: bool = False) -> Splits:
        """The splits, or one `DatasetError` for all that is wrong."""
        return to_splits(self.scan(folder, test_only=test_only))

    def find_unscored(self, query: Records, gallery: Records) -> str | None:
        """Why no query can be scored, and what to do; None if one can, or if a split is empty."""
        if not query or not gallery or has_positive(query, gallery, self.protocol):
            return None
        if has_positive(query, gallery, "none"):  # then it is the protocol that drops them
            lacking = f"image of the same identity from another {self.protocol}"
            remedy = f"give other {self.protocol}s" + ", or leave out the column camera" * self.is_list
        else:
            lacking = "other image of the same identity"
            remedy = "add some" + f" from other {self.protocol}s" * (self.protocol != "none")
        return f"none of the {len(query)} queries can be scored: the gallery has no {lacking}; {remedy}"


DRAWN_SETS: dict[str, DrawnSpec] = {
    "Synthetic": SyntheticSpec(),
    "SyntheticAnywhere": ANYWHERE_SPEC,
    "SyntheticV1": SpecV1(),
    "SyntheticHard": HARD_SPEC_V1,
    "SyntheticTrunk": TRUNK_SPEC,
}
"""The data sets that the project draws, by their name in DATASETS.NAMES."""

SEEDS = {"SyntheticTrunk": 1}
"""Of the drawings; others have 0. People of different seeds are different people."""

_RGBNT201 = DataSource("RGBNT201", scan_rgbnt201, "camera", lambda camera: f"cam{camera + 1}")

SOURCES = {
    "RGBNT201": _RGBNT201,
    "RGBNT100": DataSource("RGBNT100", scan_rgbnt100, "camera", lambda camera: f"c{camera + 1}"),
    "MSVR310": DataSource("MSVR310", scan_msvr310, "scene", lambda view: f"v{view}"),
    "WMVeID863": DataSource("WMVEID863", scan_wmveid863, "camera", lambda camera: f"v{camera}"),
    **{
        name: replace(
            _RGBNT201,
            folder=name,
            draw=partial(_draw_synthetic, name=name, spec=spec, seed=SEEDS.get(name, 0)),
        )
        for name, spec in DRAWN_SETS.items()
    },
    "CSV": DataSource("", scan_csv, "camera", is_list=True),
}
"""The data sets by their name in DATASETS.NAMES."""


def register_reader(name: str, source: DataSource) -> None:
    """Add a data set that DATASETS.NAMES can name; `docs/data.md` walks through it."""
    if name in SOURCES:
        raise ValueError(f"there is a data set {name!r} already; choose another name")
    SOURCES[name] = source
