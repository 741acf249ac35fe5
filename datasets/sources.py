"""The data sets by name: how each is read, by which protocol it is scored, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from datasets.dataset import DatasetError, Scan, Splits
from datasets.msvr310 import read_msvr310, scan_msvr310
from datasets.rgbnt100 import read_rgbnt100, scan_rgbnt100
from datasets.rgbnt201 import read_rgbnt201, scan_rgbnt201
from datasets.synthetic import ANYWHERE_SPEC, HARD_SPEC_V1, DrawnSpec, SpecV1, SyntheticSpec, ensure_synthetic
from datasets.wmveid863 import read_wmveid863, scan_wmveid863


def _draw_synthetic(root: Path, *, name: str, spec: DrawnSpec) -> Path:
    try:
        return ensure_synthetic(root, name=name, seed=0, spec=spec)  # the same set for every training seed
    except OSError as error:
        raise DatasetError(
            f"the synthetic data set cannot be drawn in {root.absolute()} ({error.strerror}); "
            "set DATASETS.ROOT_DIR to a folder with space that can be written"
        ) from error


class Reader(Protocol):
    """From the folder of a data set to its records, or one `DatasetError` for all that is wrong.

    Records are sorted by file name, and by identity where each has a folder; the files of a triple have the
    same name. Training identities are relabelled from 0 in the order of their numbers on disk; test
    identities keep those numbers. No file is opened.
    """

    def __call__(self, folder: Path, *, test_only: bool = False) -> Splits:
        """With `test_only`, the training split is empty, and its folder need not exist."""


@dataclass(frozen=True)
class DataSource:
    """A data set that DATASETS.NAMES may name.

    Attributes:
        folder: its folder below DATASETS.ROOT_DIR.
        read: see `Reader`.
        scan: from its folder to all records and problems, also where `read` refuses it.
        protocol: see `RetrievalSet`.
        name_camera: from the camera of a record to what the data set calls it.
        draw: for a synthetic set: from DATASETS.ROOT_DIR to its folder, drawn if it is not there.
    """

    folder: str
    read: Reader
    scan: Callable[[Path], Scan]
    protocol: str
    name_camera: Callable[[int], str] = str
    draw: Callable[[Path], Path] | None = None


DRAWN_SETS: dict[str, DrawnSpec] = {
    "Synthetic": SyntheticSpec(),
    "SyntheticAnywhere": ANYWHERE_SPEC,
    "SyntheticV1": SpecV1(),
    "SyntheticHard": HARD_SPEC_V1,
}
"""The data sets that the project draws, by their name in DATASETS.NAMES."""

_RGBNT201 = DataSource("RGBNT201", read_rgbnt201, scan_rgbnt201, "camera", lambda camera: f"cam{camera + 1}")

SOURCES = {
    "RGBNT201": _RGBNT201,
    "RGBNT100": DataSource(
        "RGBNT100", read_rgbnt100, scan_rgbnt100, "camera", lambda camera: f"c{camera + 1}"
    ),
    "MSVR310": DataSource("MSVR310", read_msvr310, scan_msvr310, "scene", lambda view: f"v{view}"),
    "WMVeID863": DataSource(
        "WMVEID863", read_wmveid863, scan_wmveid863, "camera", lambda camera: f"v{camera}"
    ),
    **{
        name: replace(_RGBNT201, folder=name, draw=partial(_draw_synthetic, name=name, spec=spec))
        for name, spec in DRAWN_SETS.items()
    },
}
"""The data sets by their name in DATASETS.NAMES."""


def register_reader(name: str, source: DataSource) -> None:
    """Add a data set that DATASETS.NAMES can name; `docs/extending.md` walks through it.

    Args:
        name: for DATASETS.NAMES.
        source: how it is read.
    """
    if name in SOURCES:
        raise ValueError(f"there is a data set {name!r} already; choose another name")
    SOURCES[name] = source
