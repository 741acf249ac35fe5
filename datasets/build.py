"""Configuration → readers, transforms, loaders."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from datasets.cache import RamCache, make_caches
from datasets.dataset import DatasetError, MultiModalDataset, Sample, Scan, Splits, collate
from datasets.msvr310 import read_msvr310, scan_msvr310
from datasets.rgbnt100 import read_rgbnt100, scan_rgbnt100
from datasets.rgbnt201 import read_rgbnt201, scan_rgbnt201
from datasets.sampler import IdentitySampler
from datasets.synthetic import DEFAULT_SPEC, HARD_SPEC, SyntheticSpec, ensure_synthetic
from datasets.transforms import TestTransform, TrainTransform
from datasets.validation import HeldOutSplits, hold_out
from datasets.wmveid863 import read_wmveid863, scan_wmveid863
from structures import ImageRecord, RetrievalSet

logger = logging.getLogger(__name__)

Records = tuple[ImageRecord, ...]


@dataclass(frozen=True)
class DataBundle:
    """All that training and evaluation need to know of a data set.

    Attributes:
        train_loader: batches (`ModalBatch`) of P × K training triples.
        sampler: the sampler of `train_loader`; call its `set_epoch` before each epoch.
        test: the test split.
        validation: the training identities that DATASETS.VAL_IDS holds out, all of their triples as query and
            gallery; None where it holds out none.
        num_classes: training identities, without those held out.
        num_cameras: cameras in training. Camera ids are numbered so that those of training come first;
            a test camera with a larger number was never seen in training.
        camera_names: by camera id, what the data set calls each camera of training and test.
        scene_names: by scene id, the number of each scene in the data set.
        num_views: scenes in training, numbered likewise; 0 if there is only one.
    """

    train_loader: DataLoader[Sample]
    sampler: IdentitySampler
    test: RetrievalSet
    validation: RetrievalSet | None
    num_classes: int
    num_cameras: int
    camera_names: tuple[str, ...]
    scene_names: tuple[str, ...]
    num_views: int


def build_data(cfg: CfgNode, *, rank: int = 0, num_processes: int = 1) -> DataBundle:
    """Read the data set that `cfg.DATASETS` names, and make its loaders.

    Args:
        cfg: a configuration.
        rank: number of this process; it gets its part of every training batch, and of the test and
            validation triples.
        num_processes: number of processes.
    """
    source, folder = _find_data(cfg)
    read = source.read(folder)
    logger.info("data set %s in %s\n%s", cfg.DATASETS.NAMES, cfg.DATASETS.ROOT_DIR, read.describe())
    splits = HeldOutSplits(*read)
    if cfg.DATASETS.VAL_IDS:
        ids_per_batch = cfg.SOLVER.IMS_PER_BATCH // cfg.DATALOADER.NUM_INSTANCE
        count = cfg.DATASETS.VAL_IDS
        splits = hold_out(read, count, protocol=source.protocol, ids_per_batch=ids_per_batch)
        held_out = splits.validation
        message = "held out for validation: %d identities, %d triples, from %s to %s"
        logger.info(message, count, len(held_out), held_out[0].name, held_out[-1].name)

    unseen = cfg.TEST.UNSEEN_CAMERA
    splits, cameras = _number("camera", splits, unseen=unseen if cfg.MODEL.SIE_CAMERA else "ignore")
    splits, scenes = _number("scene", splits, unseen=unseen if cfg.MODEL.SIE_VIEW else "ignore")

    normalisation = {"mean": cfg.INPUT.PIXEL_MEAN, "std": cfg.INPUT.PIXEL_STD}
    train_transform = TrainTransform(
        size=tuple(cfg.INPUT.SIZE_TRAIN),
        flip_prob=cfg.INPUT.PROB,
        padding=cfg.INPUT.PADDING,
        erase_prob=cfg.INPUT.RE_PROB,
        shared=cfg.INPUT.SHARED_AUGMENT,
        **normalisation,
    )

    train_ids = [record.person_id for record in splits.train]
    num_scenes = len({record.scene_id for record in splits.train})
    sampler = IdentitySampler(
        train_ids,
        num_instances=cfg.DATALOADER.NUM_INSTANCE,
        batch_size=cfg.SOLVER.IMS_PER_BATCH,
        seed=cfg.SOLVER.SEED,
        rank=rank,
        num_processes=num_processes,
    )
    looked_up = {"test": (splits.query, splits.gallery)}
    if splits.validation:
        looked_up["validation"] = (splits.validation, splits.validation)
    counts = [len(splits.train), *(len(_distinct(*pair)) for pair in looked_up.values())]
    train_cache, *caches = _make_caches(cfg, *counts, num_processes=num_processes)
    transform = TestTransform(size=tuple(cfg.INPUT.SIZE_TEST), **normalisation)
    options = {"batch_size": cfg.TEST.IMS_PER_BATCH, "num_workers": cfg.DATALOADER.NUM_WORKERS}

    def make_retrieval_set(query: Records, gallery: Records, cache: RamCache | None) -> RetrievalSet:
        records = _distinct(query, gallery)
        row_of = {record.paths: row for row, record in enumerate(records)}
        dataset = MultiModalDataset(records, transform, mask_transform=transform.mask, cache=cache)
        # A block of consecutive rows for each process: joined by rank, they are in order again.
        own_rows = np.array_split(np.arange(len(records)), num_processes)[rank].tolist()
        return RetrievalSet(
            _make_loader(dataset, sampler=own_rows, **options),
            query_rows=np.array([row_of[record.paths] for record in query]),
            gallery_rows=np.array([row_of[record.paths] for record in gallery]),
            protocol=source.protocol,
        )

    retrieval_sets = {
        split: make_retrieval_set(*pair, cache)
        for (split, pair), cache in zip(looked_up.items(), caches, strict=True)
    }
    return DataBundle(
        train_loader=_make_loader(
            MultiModalDataset(
                splits.train,
                train_transform,
                cfg.SOLVER.SEED,
                replace_unreadable=cfg.DATALOADER.ON_ERROR == "skip",
                cache=train_cache,
            ),
            batch_size=cfg.SOLVER.IMS_PER_BATCH // num_processes,
            num_workers=cfg.DATALOADER.NUM_WORKERS,
            sampler=sampler,
            drop_last=True,
        ),
        sampler=sampler,
        test=retrieval_sets["test"],
        validation=retrieval_sets.get("validation"),
        num_classes=len(set(train_ids)),
        num_cameras=len({record.camera_id for record in splits.train}),
        camera_names=tuple(source.name_camera(camera) for camera in cameras),
        scene_names=tuple(map(str, scenes)),
        num_views=num_scenes if num_scenes > 1 else 0,
    )


def _distinct(*splits: Records) -> Records:
    """The records of all, each once, in order."""
    return tuple({record.paths: record for split in splits for record in split}.values())


def scan_data(cfg: CfgNode) -> Scan:
    """List the files of the data set that `cfg.DATASETS` names, even if it cannot be used as it is."""
    source, folder = _find_data(cfg)
    return source.scan(folder)


def _find_data(cfg: CfgNode) -> tuple[DataSource, Path]:
    """The data set that `cfg.DATASETS` names, and its folder, drawn first if it is one that is drawn."""
    name, root = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR)
    if name not in SOURCES:
        raise DatasetError(f"unknown data set {name!r} in DATASETS.NAMES; choose from {sorted(SOURCES)}")
    source = SOURCES[name]
    if source.draw is not None:
        return source, source.draw(root)
    folder = root / source.folder
    if not os.path.isdir(folder):  # unlike Path.is_dir, this is False for a name that cannot exist
        raise DatasetError(
            f"there is no folder {folder.absolute()}: put the {name} data set there, "
            "or set DATASETS.ROOT_DIR to the folder that holds it"
        )
    return source, folder


def _number(kind: str, splits: HeldOutSplits, *, unseen: str) -> tuple[HeldOutSplits, list[int]]:
    """Number the cameras or scenes from 0, those of training first; say what happens to the others.

    Args:
        kind: `camera` or `scene`.
        splits: with the numbers of the reader.
        unseen: `mean`, `zero` (logged), `error`, or `ignore` where the kind does not matter to the model.

    Returns:
        the splits with the new numbers, and by new number the old one.
    """
    key = f"{kind}_id"
    trained = sorted({getattr(record, key) for record in splits.train})
    evaluated = (*splits.query, *splits.gallery, *splits.validation)
    others = sorted({getattr(record, key) for record in evaluated} - set(trained))
    where = "test or validation" if splits.validation else "test"
    if others and unseen == "error":
        raise DatasetError(
            f"{where} {kind}s {others} (counted from 0) have no training images; see TEST.UNSEEN_CAMERA"
        )
    if others and unseen != "ignore":
        message = "%s %ss %s have no training images; their embedding is %s"
        logger.warning(message, where, kind, others, unseen)
    old_numbers = [*trained, *others]
    number = {old: new for new, old in enumerate(old_numbers)}

    def renumber(record: ImageRecord) -> ImageRecord:
        changed: dict[str, Any] = {key: number[getattr(record, key)]}
        return replace(record, **changed)

    return HeldOutSplits(*(tuple(map(renumber, split)) for split in splits)), old_numbers


def _make_caches(cfg: CfgNode, *counts: int, num_processes: int) -> list[RamCache] | list[None]:
    """For each number of triples what DATALOADER.CACHE says: a cache, or none."""
    if cfg.DATALOADER.CACHE == "none":
        return [None for _ in counts]
    # torchrun may have started processes on other machines, which have memory of their own.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", num_processes))
    return make_caches(*counts, size=tuple(cfg.INPUT.SIZE_TRAIN), num_processes=local)


def _outlive_signals(_: int) -> None:
    """In a loader process: leave a stop signal to the main process, which finishes its step first.

    SLURM and a terminal send their signals to the whole process group. A loader process ends when the main
    process has no more work for it, when `_end_loader_processes` kills it, or when the main process is gone.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_after_parent, daemon=True).start()


def _end_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@atexit.register
def _end_loader_processes() -> None:
    """At the end of the main process: kill the loader processes that are left, for instance after an error.

    This runs before multiprocessing's own handler, which sends them the SIGTERM that they ignore and then
    waits for them without a limit.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would raise an error for each that is killed
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def _make_loader(
    dataset: MultiModalDataset, *, batch_size: int, num_workers: int, **options: Any
) -> DataLoader[Sample]:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        collate_fn=collate,
        worker_init_fn=_outlive_signals,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=num_workers > 0,
        # Without its own generator each pass over a loader would draw from the global one.
        generator=torch.Generator(),
        **options,
    )


def _draw_synthetic(root: Path, *, name: str, spec: SyntheticSpec) -> Path:
    try:
        return ensure_synthetic(root, name=name, seed=0, spec=spec)  # the same set for every training seed
    except OSError as error:
        raise DatasetError(
            f"the synthetic data set cannot be drawn in {root.absolute()} ({error.strerror}); "
            "set DATASETS.ROOT_DIR to a folder with space that can be written"
        ) from error


@dataclass(frozen=True)
class DataSource:
    """A data set that DATASETS.NAMES may name.

    Attributes:
        folder: its folder below DATASETS.ROOT_DIR.
        read: from its folder to records, or one error for all that is wrong.
        scan: from its folder to records and problems.
        protocol: see `RetrievalSet`.
        name_camera: from the camera of a record to what the data set calls it.
        draw: for a set that is drawn: from DATASETS.ROOT_DIR to its folder, which it makes if need be.
    """

    folder: str
    read: Callable[[Path], Splits]
    scan: Callable[[Path], Scan]
    protocol: str
    name_camera: Callable[[int], str] = str
    draw: Callable[[Path], Path] | None = None


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
        for name, spec in {"Synthetic": DEFAULT_SPEC, "SyntheticHard": HARD_SPEC}.items()
    },
}
"""The data sets by their name in DATASETS.NAMES."""
