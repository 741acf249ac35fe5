"""A small synthetic data set in the layout of RGBNT201, drawn on disk once and kept.

Every identity, camera and sample draws from a generator of its own, derived from the seed and its numbers
alone, so that the same seed gives the same files.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from datasets.dataset import DatasetError
from datasets.synthetic_person import Person
from datasets.synthetic_scene import Camera, Triple, draw_triple
from structures import Modality

logger = logging.getLogger(__name__)

GENERATOR_VERSION = 1
"""To be raised with every change of what is drawn: a cached set of another version is drawn anew."""

FOLDER = "Synthetic"
_STAMP = "stamp.json"
_SCRATCH_PREFIX = f".{FOLDER}-drawing-"
_SCRATCH_LIFETIME = 3600.0
"""Seconds after which the scratch folder of another process counts as left over; a drawing takes far less."""
_MASKS = "MASK"
_SUFFIXES = {**{modality.value: ".jpg" for modality in Modality}, _MASKS: ".png"}
_PERSON_STREAM, _CAMERA_STREAM, _SAMPLE_STREAM = 1, 2, 3


@dataclass(frozen=True)
class SyntheticSpec:
    """How much is drawn, and how hard it is.

    Attributes:
        train_ids: training identities, numbered from 1.
        test_ids: test identities, numbered after the training ones.
        cameras: at most 9, since a file name has one digit for them.
        train_shots: triples of each training identity under each camera.
        test_shots: triples of each test identity under each camera.
        height: of the images, in pixels.
        width: of the images, in pixels.
        clutter_boxes: boxes in garment colours behind the person, in each modality at other places.
        occluder_share: share of the samples with something in front of the person.
        spoiled_share: share of the samples in which one modality is spoiled.
    """

    train_ids: int = 64
    test_ids: int = 32
    cameras: int = 4
    train_shots: int = 3
    test_shots: int = 2
    height: int = 128
    width: int = 64
    clutter_boxes: int = 4
    occluder_share: float = 0.25
    spoiled_share: float = 0.30

    def __post_init__(self) -> None:
        for name in ("train_ids", "test_ids", "cameras", "train_shots", "test_shots", "height", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("occluder_share", "spoiled_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], not {getattr(self, name)}")
        if self.cameras > 9:
            raise ValueError(
                f"cameras must be at most 9, not {self.cameras}: file names have one digit for it"
            )
        if self.clutter_boxes < 0:
            raise ValueError(f"clutter_boxes must not be negative, not {self.clutter_boxes}")


DEFAULT_SPEC = SyntheticSpec()
HARD_SPEC = SyntheticSpec(clutter_boxes=8, occluder_share=0.5)
"""Twice the clutter and occlusion; people, poses and cameras are the same."""


@dataclass(frozen=True)
class _Split:
    """One half of the data set: its folder, the numbers of its identities, and triples per id and camera."""

    folder: str
    person_ids: range
    shots: int

    def num_triples(self, spec: SyntheticSpec) -> int:
        return len(self.person_ids) * spec.cameras * self.shots


def ensure_synthetic(
    root: Path, *, name: str = FOLDER, seed: int = 0, spec: SyntheticSpec = DEFAULT_SPEC
) -> Path:
    """Draw the synthetic data set below `root`, unless it is there already.

    The set is drawn in a scratch folder beside its place and moved there when it is whole, so that neither an
    interruption nor a second process that does the same can leave half a set.

    Args:
        root: the folder that holds the data sets; made if need be.
        name: of the folder of the data set.
        seed: of all that is random, not negative.
        spec: how much is drawn.

    Returns:
        the folder of the data set, `root/name`.

    Raises:
        DatasetError: something is in the place of the data set that was not drawn here.
    """
    folder = root / name
    stamp = {"generator": GENERATOR_VERSION, "seed": seed, "spec": asdict(spec)}
    if _is_whole(folder, stamp, spec):
        logger.info("Using the synthetic data set in %s", folder)
        return folder
    _refuse_foreign(folder, spec)
    root.mkdir(parents=True, exist_ok=True)
    _remove_left_over_scratch(root)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=root) as scratch:
        drawn = Path(scratch) / "drawn"
        count = _draw_all(drawn, seed, spec)
        (drawn / _STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
        # A process that drew the same set meanwhile may already read it: its set stays.
        if not _is_whole(folder, stamp, spec):
            if folder.exists():
                _refuse_foreign(folder, spec)
                folder.rename(Path(scratch) / "outdated")
            drawn.rename(folder)
    logger.info("Drew %d synthetic triples in %s (%.1f s)", count, folder, time.perf_counter() - start)
    return folder


def _splits(spec: SyntheticSpec) -> tuple[_Split, _Split]:
    first_test_id = spec.train_ids + 1
    return (
        _Split("train_171", range(1, first_test_id), spec.train_shots),
        _Split("test", range(first_test_id, first_test_id + spec.test_ids), spec.test_shots),
    )


def _is_whole(folder: Path, stamp: dict[str, Any], spec: SyntheticSpec) -> bool:
    """Whether `folder` holds the set that `stamp` describes, with no file missing."""
    try:
        if json.loads((folder / _STAMP).read_text()) != stamp:
            return False
        return all((folder / name).is_file() for name in _file_names(spec))
    except (OSError, ValueError):
        return False


def _file_names(spec: SyntheticSpec) -> Iterator[str]:
    """The names of all files that are drawn, from the folder of the data set on."""
    for split in _splits(spec):
        for stem in _stems(split, spec):
            for kind, suffix in _SUFFIXES.items():
                yield f"{split.folder}/{kind}/{stem}{suffix}"


def _stems(split: _Split, spec: SyntheticSpec) -> Iterator[str]:
    for person_id in split.person_ids:
        for camera in range(1, spec.cameras + 1):
            for shot in range(split.shots):
                yield _stem(person_id, camera, shot)


def _stem(person_id: int, camera: int, shot: int) -> str:
    return f"{person_id:06d}_cam{camera}_0_{shot:02d}"


def _refuse_foreign(folder: Path, spec: SyntheticSpec) -> None:
    """Refuse to draw a set in the place of anything that was not drawn here.

    Args:
        folder: where the set will be.
        spec: of the set that will be drawn.
    """
    rest = "is left alone; move it away or choose another DATASETS.ROOT_DIR"
    if folder.is_symlink():
        raise DatasetError(
            f"{folder} is a symbolic link to something other than this synthetic data set and {rest}"
        )
    if not folder.exists():
        return
    if not (folder / _STAMP).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise DatasetError(f"{folder} has no {_STAMP}, so it was not drawn by this project and {rest}")
    drawn = {*_file_names(_stamped_spec(folder) or spec), _STAMP}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.relative_to(folder).as_posix() in drawn):
            raise DatasetError(
                f"the synthetic data set in {folder} must be drawn anew, but {path} was not drawn by this "
                f"project and {rest}"
            )


def _stamped_spec(folder: Path) -> SyntheticSpec | None:
    """What the set in a folder was drawn with; None if its stamp cannot be read."""
    try:
        return SyntheticSpec(**json.loads((folder / _STAMP).read_text())["spec"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _remove_left_over_scratch(root: Path) -> None:
    """Remove what a killed process left; the folder of a process that still draws is too young for that."""
    for scratch in root.glob(f"{_SCRATCH_PREFIX}*"):
        if scratch.is_symlink() or not scratch.is_dir():
            continue
        is_ours = {path.name for path in scratch.iterdir()} <= {"drawn", "outdated"}
        if is_ours and time.time() - scratch.stat().st_mtime > _SCRATCH_LIFETIME:
            logger.info("Removing %s, left over from an interrupted drawing", scratch)
            shutil.rmtree(scratch, ignore_errors=True)


def _draw_all(folder: Path, seed: int, spec: SyntheticSpec) -> int:
    """Draw both splits below `folder`; returns the number of triples."""
    size = (spec.height, spec.width)
    cameras = [
        Camera.draw(np.random.default_rng([seed, _CAMERA_STREAM, camera]), size)
        for camera in range(1, spec.cameras + 1)
    ]
    total = sum(split.num_triples(spec) for split in _splits(spec))
    with tqdm(total=total, desc="Drawing synthetic data", unit="triple", disable=None) as progress:
        for split in _splits(spec):
            for kind in _SUFFIXES:
                (folder / split.folder / kind).mkdir(parents=True)
            for stem, triple in _draw_split(split, cameras, seed, spec):
                _save(triple, folder / split.folder, stem)
                progress.update()
    return total


def _draw_split(
    split: _Split, cameras: list[Camera], seed: int, spec: SyntheticSpec
) -> Iterator[tuple[str, Triple]]:
    """The file stem and the picture of each sample of one split."""
    for person_id in split.person_ids:
        person = Person.draw(np.random.default_rng([seed, _PERSON_STREAM, person_id]))
        for number, camera in enumerate(cameras, start=1):
            for shot in range(split.shots):
                triple = draw_triple(
                    np.random.default_rng([seed, _SAMPLE_STREAM, person_id, number, shot]),
                    person,
                    camera,
                    clutter_boxes=spec.clutter_boxes,
                    occluder_share=spec.occluder_share,
                    spoiled_share=spec.spoiled_share,
                )
                yield _stem(person_id, number, shot), triple


def _save(triple: Triple, folder: Path, stem: str) -> None:
    for modality in Modality:
        image = Image.fromarray(triple.images.of(modality))
        # No chroma subsampling: at this size it would blur the textures.
        image.save(folder / modality.value / f"{stem}{_SUFFIXES[modality.value]}", quality=95, subsampling=0)
    Image.fromarray(triple.mask).save(folder / _MASKS / f"{stem}{_SUFFIXES[_MASKS]}")
