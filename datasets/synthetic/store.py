"""Drawn data sets on disk: drawn once below DATASETS.ROOT_DIR, in the layout of RGBNT201, and kept."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from datasets.dataset import DatasetError
from datasets.synthetic.draw import SyntheticSpec
from datasets.synthetic.spec import DrawnSpec, ShotKey, Triple
from datasets.synthetic.v1 import SpecV1
from structures import Modality

logger = logging.getLogger(__name__)

FOLDER = "Synthetic"
_STAMP = "stamp.json"
_SCRATCH_LIFETIME = 3600.0
"""Seconds after which the scratch folder of another process counts as left over; a drawing takes far less."""
_MASKS = "MASK"
_SUFFIXES = {**{modality.value: ".jpg" for modality in Modality}, _MASKS: ".png"}
_CHUNK = 32
"""Samples that a process draws at a time; a set of one chunk is drawn without further processes."""


def ensure_synthetic(root: Path, *, name: str = FOLDER, seed: int = 0, spec: DrawnSpec | None = None) -> Path:
    """Draw a data set below `root`, unless it is there already.

    The set is drawn in a scratch folder beside its destination and moved there when it is complete, so that
    neither an interruption nor a second process that does the same can leave half a set.

    Args:
        root: the folder that holds the data sets; made if need be.
        name: of the folder of the data set.
        seed: of all that is random, not negative.
        spec: what is drawn; the default `SyntheticSpec` if None.

    Returns:
        the folder of the data set, `root/name`.

    Raises:
        DatasetError: the folder holds something that was not drawn here.
    """
    spec = spec or SyntheticSpec()
    folder = root / name
    stamp = {"generator": spec.generator, "seed": seed, "spec": asdict(spec)}
    if _is_complete(folder, stamp, spec):
        logger.info("Using the synthetic data set in %s", folder)
        return folder
    _refuse_foreign(folder, spec)
    root.mkdir(parents=True, exist_ok=True)
    _remove_left_over_scratch(root, name)

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=_scratch_prefix(name), dir=root) as scratch:
        drawn = Path(scratch) / "drawn"
        count = _draw_all(drawn, seed, spec)
        (drawn / _STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
        # A process that drew the same set meanwhile may already read it: its set stays.
        if not _is_complete(folder, stamp, spec):
            if folder.exists():
                _refuse_foreign(folder, spec)
                folder.rename(Path(scratch) / "outdated")
            drawn.rename(folder)
    logger.info("Drew %d synthetic triples in %s (%.1f s)", count, folder, time.perf_counter() - start)
    return folder


def _is_complete(folder: Path, stamp: dict[str, Any], spec: DrawnSpec) -> bool:
    """Whether `folder` holds the set that `stamp` describes, with no file missing."""
    try:
        if json.loads((folder / _STAMP).read_text()) != stamp:
            return False
        return all((folder / name).is_file() for name in _file_names(spec))
    except (OSError, ValueError):
        return False


def _file_names(spec: DrawnSpec) -> Iterator[str]:
    """The names of all files that are drawn, below the folder of the data set."""
    for split, key in spec.samples():
        for kind, suffix in _SUFFIXES.items():
            yield f"{split}/{kind}/{key.stem}{suffix}"


def _refuse_foreign(folder: Path, spec: DrawnSpec) -> None:
    """Refuse to replace anything that was not drawn here.

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


def _stamped_spec(folder: Path) -> DrawnSpec | None:
    """What the set in a folder was drawn with; None if its stamp cannot be read."""
    try:
        stamp = json.loads((folder / _STAMP).read_text())
        kind = SpecV1 if stamp["generator"] == SpecV1.generator else SyntheticSpec
        return kind(**stamp["spec"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _scratch_prefix(name: str) -> str:
    return f".{name}-drawing-"


def _remove_left_over_scratch(root: Path, name: str) -> None:
    """Remove what a killed process left; the folder of a process that still draws is too young for that."""
    for scratch in root.glob(f"{_scratch_prefix(name)}*"):
        if scratch.is_symlink() or not scratch.is_dir():
            continue
        is_ours = {path.name for path in scratch.iterdir()} <= {"drawn", "outdated"}
        if is_ours and time.time() - scratch.stat().st_mtime > _SCRATCH_LIFETIME:
            logger.info("Removing %s, left over from an interrupted drawing", scratch)
            shutil.rmtree(scratch, ignore_errors=True)


def _draw_all(folder: Path, seed: int, spec: DrawnSpec) -> int:
    """Draw both splits below `folder`; returns the number of triples."""
    samples = list(spec.samples())
    for split in dict.fromkeys(split for split, _ in samples):
        for kind in _SUFFIXES:
            (folder / split / kind).mkdir(parents=True)
    chunks = [samples[start : start + _CHUNK] for start in range(0, len(samples), _CHUNK)]
    draw_chunk = partial(_draw_chunk, folder, seed, spec)
    with tqdm(total=len(samples), desc="Drawing synthetic data", unit="triple", disable=None) as progress:
        if len(chunks) == 1 or _num_cores() == 1:
            for chunk in chunks:
                progress.update(draw_chunk(chunk))
            return len(samples)
        # A forked process has the modules already; a spawned one would import torch first.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        workers = min(_num_cores(), len(chunks))
        # Ctrl-C reaches every process; this one ends the others.
        with ProcessPoolExecutor(workers, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            try:
                for count in pool.map(draw_chunk, chunks):
                    progress.update(count)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return len(samples)


def _draw_chunk(folder: Path, seed: int, spec: DrawnSpec, chunk: Sequence[tuple[str, ShotKey]]) -> int:
    """Draw and save some samples; returns their number."""
    for split, key in chunk:
        _save(spec.draw(seed, key), folder / split, key.stem, spec.jpeg_quality)
    return len(chunk)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _save(triple: Triple, folder: Path, stem: str, quality: int) -> None:
    for modality in Modality:
        image = Image.fromarray(triple.images.of(modality))
        path = folder / modality.value / f"{stem}{_SUFFIXES[modality.value]}"
        image.save(path, quality=quality, subsampling=0)  # subsampled chroma would blur the textures
    Image.fromarray(triple.mask).save(folder / _MASKS / f"{stem}{_SUFFIXES[_MASKS]}")
