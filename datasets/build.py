"""Configuration → readers, transforms, loaders."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from datasets.dataset import DatasetError, MultiModalDataset, Sample, Scan, Splits, collate
from datasets.rgbnt201 import read_rgbnt201, scan_rgbnt201
from datasets.sampler import IdentitySampler
from datasets.synthetic import ensure_synthetic
from datasets.transforms import TestTransform, TrainTransform

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataBundle:
    """All that training and evaluation need to know of a data set.

    Attributes:
        train_loader: batches (`ModalBatch`) of P × K training triples.
        sampler: the sampler of `train_loader`; call its `set_epoch` before each epoch.
        test_loader: batches (`ModalBatch`) of the distinct test triples, each once, in a fixed order; with
            several processes, this one's block of them.
        query_rows: for each query, its row in the order of `test_loader`.
        gallery_rows: for each gallery entry, its row in the order of `test_loader`.
        num_classes: training identities.
        num_cameras: cameras in training. Camera ids are numbered so that those of training come first;
            a test camera with a larger number was never seen in training.
        num_views: one more than the largest scene id in training; 0 if there is only one scene.
        protocol: a gallery triple of the query's identity is dropped if it shares its `camera` or `scene`.
    """

    train_loader: DataLoader[Sample]
    sampler: IdentitySampler
    test_loader: DataLoader[Sample]
    query_rows: np.ndarray
    gallery_rows: np.ndarray
    num_classes: int
    num_cameras: int
    num_views: int
    protocol: str


def build_data(cfg: CfgNode, *, rank: int = 0, num_processes: int = 1) -> DataBundle:
    """Read the data set that `cfg.DATASETS` names, and make its loaders.

    Args:
        cfg: a configuration.
        rank: number of this process; it gets its part of every training batch, and of the test triples.
        num_processes: number of processes.
    """
    name = _known_name(cfg)
    splits = READERS[name](Path(cfg.DATASETS.ROOT_DIR))
    logger.info("data set %s in %s\n%s", name, cfg.DATASETS.ROOT_DIR, splits.describe())

    splits = _number_cameras(splits, unseen=cfg.TEST.UNSEEN_CAMERA if cfg.MODEL.SIE_CAMERA else "ignore")

    normalisation = {"mean": cfg.INPUT.PIXEL_MEAN, "std": cfg.INPUT.PIXEL_STD}
    train_transform = TrainTransform(
        size=tuple(cfg.INPUT.SIZE_TRAIN),
        flip_prob=cfg.INPUT.PROB,
        padding=cfg.INPUT.PADDING,
        erase_prob=cfg.INPUT.RE_PROB,
        shared=cfg.INPUT.SHARED_AUGMENT,
        **normalisation,
    )
    test_transform = TestTransform(size=tuple(cfg.INPUT.SIZE_TEST), **normalisation)

    train_ids = [record.person_id for record in splits.train]
    scene_ids = {record.scene_id for record in splits.train}
    sampler = IdentitySampler(
        train_ids,
        num_instances=cfg.DATALOADER.NUM_INSTANCE,
        batch_size=cfg.SOLVER.IMS_PER_BATCH,
        seed=cfg.SOLVER.SEED,
        rank=rank,
        num_processes=num_processes,
    )
    distinct = {record.paths: record for record in (*splits.query, *splits.gallery)}
    row_of = {paths: row for row, paths in enumerate(distinct)}
    return DataBundle(
        train_loader=_make_loader(
            MultiModalDataset(
                splits.train,
                train_transform,
                cfg.SOLVER.SEED,
                replace_unreadable=cfg.DATALOADER.ON_ERROR == "skip",
            ),
            batch_size=cfg.SOLVER.IMS_PER_BATCH // num_processes,
            num_workers=cfg.DATALOADER.NUM_WORKERS,
            sampler=sampler,
            drop_last=True,
        ),
        sampler=sampler,
        test_loader=_make_loader(
            MultiModalDataset(tuple(distinct.values()), test_transform, mask_transform=test_transform.mask),
            batch_size=cfg.TEST.IMS_PER_BATCH,
            num_workers=cfg.DATALOADER.NUM_WORKERS,
            # A block of consecutive rows for each process: joined by rank, they are in order again.
            sampler=np.array_split(np.arange(len(distinct)), num_processes)[rank].tolist(),
        ),
        query_rows=np.array([row_of[record.paths] for record in splits.query]),
        gallery_rows=np.array([row_of[record.paths] for record in splits.gallery]),
        num_classes=len(set(train_ids)),
        num_cameras=len({record.camera_id for record in splits.train}),
        num_views=1 + max(scene_ids) if len(scene_ids) > 1 else 0,
        protocol="camera",
    )


def scan_data(cfg: CfgNode) -> Scan:
    """List the files of the data set that `cfg.DATASETS` names, even if it cannot be used as it is."""
    return SCANNERS[_known_name(cfg)](Path(cfg.DATASETS.ROOT_DIR))


def _known_name(cfg: CfgNode) -> str:
    name: str = cfg.DATASETS.NAMES
    if name not in READERS:
        raise DatasetError(f"unknown data set {name!r} in DATASETS.NAMES; choose from {sorted(READERS)}")
    return name


def _number_cameras(splits: Splits, *, unseen: str) -> Splits:
    """Number the cameras from 0, those of training first; say what happens to the others.

    Args:
        splits: as read.
        unseen: `mean`, `zero` (logged), `error`, or `ignore` where cameras do not matter to the model.
    """
    trained = sorted({record.camera_id for record in splits.train})
    others = sorted({record.camera_id for record in (*splits.query, *splits.gallery)} - set(trained))
    if others and unseen == "error":
        raise DatasetError(
            f"test cameras {others} (counted from 0) have no training images; see TEST.UNSEEN_CAMERA"
        )
    if others and unseen != "ignore":
        logger.warning("test cameras %s have no training images; their embedding is %s", others, unseen)
    number = {camera: index for index, camera in enumerate([*trained, *others])}
    return Splits(
        *(tuple(replace(record, camera_id=number[record.camera_id]) for record in split) for split in splits)
    )


def _outlive_signals(_: int) -> None:
    """In a loader process: leave a stop signal to the main process, which finishes its step first."""

    def ignore_once(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # torch ends loader processes with a second one

    signal.signal(signal.SIGTERM, ignore_once)
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


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


def _find_rgbnt201(root: Path) -> Path:
    folder = root / "RGBNT201"
    if not os.path.isdir(folder):  # unlike Path.is_dir, this is False for a name that cannot exist
        raise DatasetError(
            f"there is no folder {folder.absolute()}: put the RGBNT201 data set there, "
            "or set DATASETS.ROOT_DIR to the folder that holds it"
        )
    return folder


def _draw_synthetic(root: Path) -> Path:
    try:
        return ensure_synthetic(root, seed=0)  # the same data set for every training seed
    except OSError as error:
        raise DatasetError(
            f"the synthetic data set cannot be drawn in {root.absolute()} ({error.strerror}); "
            "set DATASETS.ROOT_DIR to a folder with space that can be written"
        ) from error


READERS: dict[str, Callable[[Path], Splits]] = {
    "RGBNT201": lambda root: read_rgbnt201(_find_rgbnt201(root)),
    "Synthetic": lambda root: read_rgbnt201(_draw_synthetic(root)),
}
"""By the name in DATASETS.NAMES: from DATASETS.ROOT_DIR to records."""

SCANNERS: dict[str, Callable[[Path], Scan]] = {
    "RGBNT201": lambda root: scan_rgbnt201(_find_rgbnt201(root)),
    "Synthetic": lambda root: scan_rgbnt201(_draw_synthetic(root)),
}
"""Likewise: from DATASETS.ROOT_DIR to records and problems."""
