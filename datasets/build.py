"""Configuration → readers, transforms, loaders."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from datasets.cache import RamCache, make_caches
from datasets.dataset import DatasetError, MultiModalDataset, Sample, Scan, Splits, collate
from datasets.fingerprint import fingerprint
from datasets.sampler import IdentitySampler
from datasets.sources import SOURCES, DataSource
from datasets.transforms import TestTransform, TrainTransform
from datasets.validation import HeldOutSplits, hold_out
from structures import ImageRecord, RetrievalSet

logger = logging.getLogger(__name__)

Records = tuple[ImageRecord, ...]


@dataclass(frozen=True)
class TrainingSplit:
    """What a model is built for: it decides the sizes of classifiers and of the camera embedding.

    Attributes:
        classes: identities, without those held out.
        cameras: cameras by the reader's numbers; the place of a camera is its row in the camera embedding.
        scenes: likewise.
    """

    classes: int
    cameras: tuple[int, ...]
    scenes: tuple[int, ...]

    @property
    def num_views(self) -> int:
        """Scenes that an embedding can tell apart; 0 if there is only one."""
        return len(self.scenes) if len(self.scenes) > 1 else 0


@dataclass(frozen=True, kw_only=True)
class EvaluationData:
    """All that evaluation needs to know of a data set.

    Attributes:
        test: the test split.
        camera_names: by camera id, what the data set calls each camera of training and test.
        scene_names: by scene id, the number of each scene in the data set.
    """

    test: RetrievalSet
    camera_names: tuple[str, ...]
    scene_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DataBundle(EvaluationData):
    """All that training and evaluation need to know of a data set.

    Attributes:
        train_loader: batches (`ModalBatch`) of P × K training triples.
        sampler: the sampler of `train_loader`; call its `set_epoch` before each epoch.
        validation: the training identities that DATASETS.VAL_IDS holds out, all of their triples as query and
            gallery; None where it holds out none.
        split: identities, cameras and scenes of training. Camera ids are numbered so that those of training
            come first; a test camera with a larger number was never seen in training. So are scenes.
        fingerprints: by split, see `fingerprint`.
    """

    train_loader: DataLoader[Sample]
    sampler: IdentitySampler
    validation: RetrievalSet | None
    split: TrainingSplit
    fingerprints: dict[str, str]

    @property
    def num_classes(self) -> int:
        """Training identities, without those held out."""
        return self.split.classes

    @property
    def num_cameras(self) -> int:
        """Cameras in training."""
        return len(self.split.cameras)

    @property
    def num_views(self) -> int:
        """Scenes in training; 0 if there is only one."""
        return self.split.num_views


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
    splits = _hold_out(cfg, source, read)
    if held_out := splits.validation:
        message = "held out for validation: %d identities, %d triples, from %s to %s"
        logger.info(message, cfg.DATASETS.VAL_IDS, len(held_out), held_out[0].name, held_out[-1].name)
    fingerprints = {
        "training": fingerprint((*splits.train, *splits.validation), folder),
        "test": fingerprint((*splits.query, *splits.gallery), folder),
    }
    split = _describe_training(splits.train)
    splits, names = _number_all(cfg, source, splits, split)

    sampler = IdentitySampler(
        [record.person_id for record in splits.train],
        num_instances=cfg.DATALOADER.NUM_INSTANCE,
        batch_size=cfg.SOLVER.IMS_PER_BATCH,
        seed=cfg.SOLVER.SEED,
        rank=rank,
        num_processes=num_processes,
    )
    train_transform = TrainTransform(
        size=tuple(cfg.INPUT.SIZE_TRAIN),
        flip_prob=cfg.INPUT.PROB,
        padding=cfg.INPUT.PADDING,
        erase_prob=cfg.INPUT.RE_PROB,
        shared=cfg.INPUT.SHARED_AUGMENT,
        mean=cfg.INPUT.PIXEL_MEAN,
        std=cfg.INPUT.PIXEL_STD,
    )
    looked_up = {"test": (splits.query, splits.gallery)}
    if splits.validation:
        looked_up["validation"] = (splits.validation, splits.validation)
    counts = [len(splits.train), *(len(_distinct(*pair)) for pair in looked_up.values())]
    train_cache, *caches = _make_caches(cfg, *counts, num_processes=num_processes)
    share: dict[str, Any] = {"protocol": source.protocol, "rank": rank, "num_processes": num_processes}
    retrieval_sets = {
        name: _make_retrieval_set(cfg, *pair, cache=cache, **share)
        for (name, pair), cache in zip(looked_up.items(), caches, strict=True)
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
        split=split,
        fingerprints=fingerprints,
        **names,
    )


def build_test_data(
    cfg: CfgNode, trained_on: TrainingSplit | None, *, rank: int = 0, num_processes: int = 1
) -> EvaluationData:
    """Read the test split of the data set that `cfg.DATASETS` names; the training split need not be there.

    Args:
        cfg: a configuration.
        trained_on: what the model was built for; None if it embeds neither cameras nor scenes.
        rank: number of this process; it gets its part of the test triples.
        num_processes: number of processes.
    """
    source, folder = _find_data(cfg)
    read = source.read(folder, test_only=True)
    logger.info("data set %s in %s\n%s", cfg.DATASETS.NAMES, cfg.DATASETS.ROOT_DIR, read.describe())
    splits, names = _number_all(cfg, source, HeldOutSplits(*read), trained_on or TrainingSplit(0, (), ()))
    pair = splits.query, splits.gallery
    (cache,) = _make_caches(cfg, len(_distinct(*pair)), num_processes=num_processes)
    share: dict[str, Any] = {"protocol": source.protocol, "rank": rank, "num_processes": num_processes}
    return EvaluationData(test=_make_retrieval_set(cfg, *pair, cache=cache, **share), **names)


def find_training_split(cfg: CfgNode) -> TrainingSplit | None:
    """The training split of the data set that `cfg.DATASETS` names, if it is there and in order."""
    source = SOURCES.get(cfg.DATASETS.NAMES)
    if source is None or not os.path.isdir(folder := Path(cfg.DATASETS.ROOT_DIR) / source.folder):
        return None
    try:
        return _describe_training(_hold_out(cfg, source, source.read(folder)).train)
    except DatasetError:
        return None


def _hold_out(cfg: CfgNode, source: DataSource, read: Splits) -> HeldOutSplits:
    """Take the identities that DATASETS.VAL_IDS holds out from the training split."""
    if not cfg.DATASETS.VAL_IDS:
        return HeldOutSplits(*read)
    ids_per_batch = cfg.SOLVER.IMS_PER_BATCH // cfg.DATALOADER.NUM_INSTANCE
    return hold_out(read, cfg.DATASETS.VAL_IDS, protocol=source.protocol, ids_per_batch=ids_per_batch)


def _describe_training(records: Records) -> TrainingSplit:
    return TrainingSplit(
        classes=len({record.person_id for record in records}),
        cameras=tuple(sorted({record.camera_id for record in records})),
        scenes=tuple(sorted({record.scene_id for record in records})),
    )


def _number_all(
    cfg: CfgNode, source: DataSource, splits: HeldOutSplits, trained_on: TrainingSplit
) -> tuple[HeldOutSplits, dict[str, tuple[str, ...]]]:
    """Number cameras and scenes, see `_number`; returns also `camera_names` and `scene_names`."""
    unseen = cfg.TEST.UNSEEN_CAMERA
    splits, cameras = _number(
        "camera", splits, trained_on.cameras, unseen=unseen if cfg.MODEL.SIE_CAMERA else "ignore"
    )
    splits, scenes = _number(
        "scene", splits, trained_on.scenes, unseen=unseen if cfg.MODEL.SIE_VIEW else "ignore"
    )
    names = {
        "camera_names": tuple(source.name_camera(camera) for camera in cameras),
        "scene_names": tuple(map(str, scenes)),
    }
    return splits, names


def _make_retrieval_set(
    cfg: CfgNode,
    query: Records,
    gallery: Records,
    *,
    cache: RamCache | None,
    protocol: str,
    rank: int,
    num_processes: int,
) -> RetrievalSet:
    """A loader of the distinct triples of query and gallery, this process's part, and their rows."""
    transform = TestTransform(
        size=tuple(cfg.INPUT.SIZE_TEST), mean=cfg.INPUT.PIXEL_MEAN, std=cfg.INPUT.PIXEL_STD
    )
    records = _distinct(query, gallery)
    row_of = {record.paths: row for row, record in enumerate(records)}
    dataset = MultiModalDataset(records, transform, mask_transform=transform.mask, cache=cache)
    # A block of consecutive rows for each process: joined by rank, they are in order again.
    own_rows = np.array_split(np.arange(len(records)), num_processes)[rank].tolist()
    return RetrievalSet(
        _make_loader(
            dataset,
            sampler=own_rows,
            batch_size=cfg.TEST.IMS_PER_BATCH,
            num_workers=cfg.DATALOADER.NUM_WORKERS,
        ),
        query_rows=np.array([row_of[record.paths] for record in query]),
        gallery_rows=np.array([row_of[record.paths] for record in gallery]),
        protocol=protocol,
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
        raise DatasetError(
            f"unknown data set {name!r} in DATASETS.NAMES; choose from {', '.join(sorted(SOURCES))}"
        )
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


def _number(
    kind: str, splits: HeldOutSplits, trained: Sequence[int], *, unseen: str
) -> tuple[HeldOutSplits, list[int]]:
    """Number the cameras or scenes from 0, those of training first; say what happens to the others.

    Args:
        kind: `camera` or `scene`.
        splits: with the numbers of the reader.
        trained: the numbers of training, in the order of their rows in the embedding.
        unseen: `mean`, `zero` (logged), `error`, or `ignore` where the kind does not matter to the model.

    Returns:
        the splits with the new numbers, and by new number the old one.
    """
    key = f"{kind}_id"
    evaluated = (*splits.query, *splits.gallery, *splits.validation)
    others = sorted({getattr(record, key) for record in evaluated} - set(trained))
    where = "test or validation" if splits.validation else "test"
    without = f"no training images of the {where} {kind}s {', '.join(map(str, others))} (counted from 0)"
    if others and unseen == "error":
        raise DatasetError(
            f"there are {without}; set TEST.UNSEEN_CAMERA to mean or zero to give them an embedding"
        )
    if others and unseen != "ignore":
        logger.warning("there are %s; their embedding is %s", without, unseen)
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
