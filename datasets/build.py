"""Configuration → readers, transforms, loaders."""

from __future__ import annotations

import atexit
import hashlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from datasets.cache import RamCache, check_memory
from datasets.csv_list import read_columns
from datasets.dataset import DatasetError, MultiModalDataset, Problem, Records, Sample, Scan, Splits, collate
from datasets.sampler import IdentitySampler
from datasets.sources import SOURCES, DataSource
from datasets.transforms import EvalTransform, TrainTransform
from datasets.validation import hold_out
from errors import on_one_line
from structures import ImageRecord, Modality, PerModality, RetrievalSet

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingSplit:
    """What a model is built for: it decides the sizes of classifiers and of the camera embedding."""

    classes: int  # identities, without those held out
    cameras: tuple[int, ...]  # the reader's camera numbers, in the order of the rows of the camera embedding
    scenes: tuple[int, ...]  # the reader's scene numbers, likewise
    modalities: tuple[Modality, ...] = tuple(Modality)  # of which any training triple has an image

    @property
    def num_views(self) -> int:
        """Scenes that an embedding can tell apart; 0 if there is only one."""
        return len(self.scenes) if len(self.scenes) > 1 else 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Identities, cameras and views, as `make_model` takes them."""
        return self.classes, len(self.cameras), self.num_views

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {**asdict(self), "modalities": [modality.value for modality in self.modalities]}


def stored_modalities(stored: Any) -> tuple[Modality, ...]:
    """Those in the entry `data` of a checkpoint; all of them if it comes from a version that named none."""
    names = stored.get("modalities") if isinstance(stored, Mapping) else None
    return tuple(Modality) if names is None else tuple(Modality(name) for name in names)


@dataclass(frozen=True, kw_only=True)
class EvaluationData:
    """All that evaluation needs to know of a data set."""

    test: RetrievalSet  # the test split
    camera_names: tuple[str, ...]  # by camera id, what the data set calls each camera of training and test
    scene_names: tuple[str, ...]  # by scene id, the number of each scene in the data set


@dataclass(frozen=True, kw_only=True)
class DataBundle(EvaluationData):
    """All that training and evaluation need to know of a data set."""

    train_loader: DataLoader[Sample]  # batches (`ModalBatch`) of P × K training triples
    sampler: IdentitySampler  # the sampler of `train_loader`; call its `set_epoch` before each epoch
    # The training identities that DATASETS.VAL_IDS holds out, all of their triples as query and gallery; None
    # where it holds out none.
    validation: RetrievalSet | None
    # Identities, cameras and scenes of training. Camera ids are numbered so that those of training come
    # first; a test camera with a larger number was never seen in training. So are scenes.
    split: TrainingSplit
    fingerprints: dict[str, str]  # by split, see `fingerprint`


def build_data(
    cfg: CfgNode, resumed: Mapping[str, Any] | None = None, *, rank: int = 0, num_processes: int = 1
) -> DataBundle:
    """Read the data set that `cfg.DATASETS` names, and make its loaders.

    Process number `rank` gets its part of every training batch, and of the test and validation triples. A
    run that is `resumed` from a checkpoint keeps the modalities that its model was built for.
    """
    # Records, with some identities held out, and their fingerprints.
    source, folder = _find_data(cfg)
    splits = _hold_out(cfg, source, _read(cfg, source, folder))
    if held_out := splits.validation:
        message = "held out for validation: %d identities, %d triples, from %s to %s"
        logger.info(message, cfg.DATASETS.VAL_IDS, len(held_out), held_out[0].name, held_out[-1].name)
    fingerprints = {
        "training": fingerprint((*splits.train, *splits.validation), folder),
        "test": fingerprint((*splits.query, *splits.gallery), folder),
    }
    split = _describe_training(splits.train)
    if resumed is not None:
        split = replace(split, modalities=stored_modalities(resumed.get("data")))
    if len(split.modalities) < len(Modality):
        logger.info(
            "the training images are %s: the model is built for these alone", _listed(split.modalities)
        )
    splits, names = _number_groups(cfg, source, _restrict(splits, split.modalities), split)
    _check_memory(cfg, splits, num_processes)

    # Training: the order of the samples, how they are augmented, and a loader.
    sampler = IdentitySampler(
        [record.person_id for record in splits.train],
        num_instances=cfg.DATALOADER.NUM_INSTANCE,
        batch_size=cfg.SOLVER.IMS_PER_BATCH,
        seed=cfg.SOLVER.SEED,
        rank=rank,
        num_processes=num_processes,
    )
    transform = TrainTransform(
        size=tuple(cfg.INPUT.SIZE_TRAIN),
        flip_prob=cfg.INPUT.PROB,
        padding=cfg.INPUT.PADDING,
        erase_prob=cfg.INPUT.RE_PROB,
        jitter=cfg.INPUT.JITTER,
        shared=cfg.INPUT.SHARED_AUGMENT,
        mean=cfg.INPUT.PIXEL_MEAN,
        std=cfg.INPUT.PIXEL_STD,
    )
    dataset = MultiModalDataset(
        splits.train,
        transform,
        cfg.SOLVER.SEED,
        replace_unreadable=cfg.DATALOADER.ON_ERROR == "skip",
        cache=_make_cache(cfg, splits.train),
        modality_dropout=cfg.INPUT.MODALITY_DROPOUT,
    )
    batch_size = cfg.SOLVER.IMS_PER_BATCH // num_processes
    train_loader = _make_loader(cfg, dataset, batch_size=batch_size, sampler=sampler, drop_last=True)

    # What is evaluated: the test split, and the identities that are held out.
    retrieve = partial(_make_retrieval_set, cfg, source, rank=rank, num_processes=num_processes)
    validation = retrieve(splits.validation, splits.validation) if splits.validation else None
    return DataBundle(
        train_loader=train_loader,
        sampler=sampler,
        test=retrieve(splits.query, splits.gallery),
        validation=validation,
        split=split,
        fingerprints=fingerprints,
        **names,
    )


def build_test_data(
    cfg: CfgNode, trained_on: TrainingSplit, *, rank: int = 0, num_processes: int = 1
) -> EvaluationData:
    """Read the test split of the data set that `cfg.DATASETS` names; the training split need not be there.

    `trained_on` is what the model was built for. Process number `rank` gets its part of the triples.
    """
    source, folder = _find_data(cfg)
    read = _restrict(_read(cfg, source, folder, test_only=True), trained_on.modalities)
    splits, names = _number_groups(cfg, source, read, trained_on)
    _check_memory(cfg, splits, num_processes)
    share = {"rank": rank, "num_processes": num_processes}
    return EvaluationData(
        test=_make_retrieval_set(cfg, source, splits.query, splits.gallery, **share), **names
    )


def build_training_triples(
    cfg: CfgNode, trained_on: TrainingSplit, *, rank: int = 0, num_processes: int = 1
) -> RetrievalSet:
    """The training split of the data set, seen as test images: not augmented, each triple once."""
    source, folder = _find_data(cfg)
    read = _hold_out(cfg, source, _read(cfg, source, folder))
    splits, _ = _number_groups(cfg, source, _restrict(read, trained_on.modalities), trained_on)
    return _make_retrieval_set(
        cfg, source, splits.train, splits.train, rank=rank, num_processes=num_processes
    )


def read_splits(cfg: CfgNode, *, test_only: bool = False, may_draw: bool = True) -> tuple[Splits, str]:
    """The records of the data set that `cfg.DATASETS` names, some held out, and its protocol."""
    source, folder = _find_data(cfg, may_draw=may_draw)
    read = _read(cfg, source, folder, test_only=test_only)
    return (read if test_only else _hold_out(cfg, source, read)), source.protocol


def find_test_data(cfg: CfgNode, trained_on: TrainingSplit) -> EvaluationData | None:
    """As `build_test_data`, if the data set is there and in order; if not, the log says why.

    Nothing is drawn for it.
    """
    if _find_folder(cfg) is None:
        logger.warning("the data set %s is not in %s", cfg.DATASETS.NAMES, cfg.DATASETS.ROOT_DIR)
        return None
    try:
        return build_test_data(cfg, trained_on)
    except DatasetError as error:
        logger.warning("the data set %s cannot be used: %s", cfg.DATASETS.NAMES, error)
        return None


def fingerprint(records: Iterable[ImageRecord], folder: Path) -> str:
    """A hash over the files of each record (path below `folder` and size), its identity, camera and scene.

    No file is opened. The sizes show that two images were exchanged under their names. The folder itself may
    move.
    """

    def size_of(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:  # the loader will name the file
            return -1

    digest = hashlib.sha256()
    for record in records:
        files = [(os.path.relpath(path, folder), size_of(path)) for path in record.files]
        digest.update(repr((files, record.person_id, record.camera_id, record.scene_id)).encode())
    return digest.hexdigest()


def find_training_split(cfg: CfgNode) -> TrainingSplit | None:
    """The training split of the data set that `cfg.DATASETS` names, if it is there and in order."""
    found = _find_folder(cfg)
    if found is None:
        return None
    source, place = found
    try:
        return _describe_training(_hold_out(cfg, source, source.read(place)).train)
    except DatasetError:
        return None


def _find_folder(cfg: CfgNode) -> tuple[DataSource, Path] | None:
    """The data set that `cfg.DATASETS` names, and its folder or list, if that is there."""
    if cfg.DATASETS.NAMES not in SOURCES:
        return None
    try:
        source, place = _locate(cfg)
    except DatasetError:
        return None
    return (source, place) if source.is_list or os.path.isdir(place) else None


def _read(cfg: CfgNode, source: DataSource, folder: Path, *, test_only: bool = False) -> Splits:
    """The splits of a data set; their sizes are logged. A test split that cannot be scored is refused."""
    read = source.read(folder, test_only=test_only)
    place = folder if source.is_list else cfg.DATASETS.ROOT_DIR
    logger.info("data set %s in %s\n%s", cfg.DATASETS.NAMES, place, read.describe())
    unscored = source.find_unscored(read.query, read.gallery)
    if unscored is not None:
        raise DatasetError(f"{on_one_line(folder)}: {unscored}")
    return read


def _hold_out(cfg: CfgNode, source: DataSource, read: Splits) -> Splits:
    """Take the identities that DATASETS.VAL_IDS holds out from the training split."""
    if not cfg.DATASETS.VAL_IDS:
        return read
    ids_per_batch = cfg.SOLVER.IMS_PER_BATCH // cfg.DATALOADER.NUM_INSTANCE
    return hold_out(read, cfg.DATASETS.VAL_IDS, protocol=source.protocol, ids_per_batch=ids_per_batch)


def _describe_training(records: Records) -> TrainingSplit:
    return TrainingSplit(
        classes=len({record.person_id for record in records}),
        cameras=tuple(sorted({record.camera_id for record in records})),
        scenes=tuple(sorted({record.scene_id for record in records})),
        modalities=_modalities_of(records),
    )


def _modalities_of(records: Records) -> tuple[Modality, ...]:
    """Those of which any record has an image, in the order of `Modality`."""
    return tuple(m for m in Modality if any(record.present.of(m) for record in records))


def _listed(modalities: Iterable[Modality]) -> str:
    return ", ".join(modality.value for modality in modalities)


def _restrict(splits: Splits, known: Sequence[Modality]) -> Splits:
    """The records with the images that the model was built for; the others are not read."""
    evaluated = (*splits.query, *splits.gallery)
    unused = [modality for modality in _modalities_of(evaluated) if modality not in known]
    if not unused:
        return splits
    logger.warning(
        "the model was trained on %s: the %s images of this data set are not used",
        _listed(known),
        _listed(unused),
    )

    def restrict(record: ImageRecord) -> ImageRecord:
        paths = PerModality.build(lambda m: record.paths.of(m) if m in known else None)
        if not any(paths):
            raise DatasetError(
                f"{record.name} has no {' or '.join(m.value for m in known)} image, and the model was "
                "trained on these alone; leave the record out, or use another model"
            )
        return replace(record, paths=paths)

    return Splits(*(tuple(map(restrict, split)) for split in splits))


def _number_groups(
    cfg: CfgNode, source: DataSource, splits: Splits, trained_on: TrainingSplit
) -> tuple[Splits, dict[str, tuple[str, ...]]]:
    """Number cameras and scenes from 0, those of training first, and say what happens to the others.

    Returns:
        The splits with the new numbers, and `camera_names` and `scene_names` by new number.
    """
    evaluated = (*splits.query, *splits.gallery, *splits.validation)
    where = "test or validation" if splits.validation else "test"
    numbers: dict[str, dict[int, int]] = {}
    # Number each kind, and report what training never saw.
    for kind, trained, is_embedded in (
        ("camera", trained_on.cameras, cfg.MODEL.SIE_CAMERA),
        ("scene", trained_on.scenes, cfg.MODEL.SIE_VIEW),
    ):
        others = sorted({getattr(record, f"{kind}_id") for record in evaluated} - set(trained))
        numbers[kind] = {old: new for new, old in enumerate([*trained, *others])}
        if others and is_embedded:
            unseen = cfg.TEST.UNSEEN_CAMERA
            listed = ", ".join(map(str, others))
            without = f"no training images of the {where} {kind}s {listed} (counted from 0)"
            if unseen == "error":
                raise DatasetError(
                    f"there are {without}; set TEST.UNSEEN_CAMERA to mean or zero to give them an embedding"
                )
            logger.warning("there are %s; their embedding is %s", without, unseen)

    # Apply the numbers.
    def renumber(record: ImageRecord) -> ImageRecord:
        camera, scene = numbers["camera"][record.camera_id], numbers["scene"][record.scene_id]
        return replace(record, camera_id=camera, scene_id=scene)

    names = {
        "camera_names": tuple(map(source.name_camera, numbers["camera"])),
        "scene_names": tuple(map(str, numbers["scene"])),
    }
    return Splits(*(tuple(map(renumber, split)) for split in splits)), names


def _make_retrieval_set(
    cfg: CfgNode, source: DataSource, query: Records, gallery: Records, *, rank: int, num_processes: int
) -> RetrievalSet:
    """A loader of the distinct triples of query and gallery, this process's part, and their rows."""
    transform = make_eval_transform(cfg)
    records = _distinct(query, gallery)
    row_of = {record.paths: row for row, record in enumerate(records)}
    dataset = MultiModalDataset(
        records, transform, mask_transform=transform.mask, cache=_make_cache(cfg, records)
    )
    # A block of consecutive rows for each process: joined by rank, they are in order again.
    own_rows = np.array_split(np.arange(len(records)), num_processes)[rank].tolist()
    return RetrievalSet(
        _make_loader(cfg, dataset, batch_size=cfg.TEST.IMS_PER_BATCH, sampler=own_rows),
        query_rows=np.array([row_of[record.paths] for record in query]),
        gallery_rows=np.array([row_of[record.paths] for record in gallery]),
        protocol=source.protocol,
        modalities=_modalities_of(records),
    )


def make_eval_transform(cfg: CfgNode) -> EvalTransform:
    """What test images go through."""
    return EvalTransform(size=tuple(cfg.INPUT.SIZE_TEST), mean=cfg.INPUT.PIXEL_MEAN, std=cfg.INPUT.PIXEL_STD)


def _distinct(*splits: Records) -> Records:
    """The records of all, each once, in order."""
    return tuple({record.paths: record for split in splits for record in split}.values())


def scan_data(cfg: CfgNode) -> Scan:
    """List the files of the data set that `cfg.DATASETS` names, even if it cannot be used as it is."""
    source, folder = _find_data(cfg)
    found = source.scan(folder)
    unscored = source.find_unscored(found.query, found.gallery)
    if unscored is None:
        return found
    where = on_one_line(folder.name)
    return found._replace(problems=(*found.problems, Problem("positive", where, f"{where}: {unscored}")))


def _find_data(cfg: CfgNode, *, may_draw: bool = True) -> tuple[DataSource, Path]:
    """The data set that `cfg.DATASETS` names, and its folder or list; a synthetic one may be drawn first."""
    name, root = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR)
    if name not in SOURCES:
        raise DatasetError(
            f"unknown data set {name!r} in DATASETS.NAMES; choose from {', '.join(sorted(SOURCES))}"
        )
    source, folder = _locate(cfg)
    if source.draw is not None and (may_draw or os.path.isdir(folder)):
        return source, source.draw(root)
    # Unlike Path.is_dir, os.path.isdir is False for a name that cannot exist.
    if not source.is_list and not os.path.isdir(folder):
        raise DatasetError(
            f"there is no folder {folder.absolute()}: put the {name} data set there, "
            "or set DATASETS.ROOT_DIR to the folder that holds it"
        )
    return source, folder


def _locate(cfg: CfgNode) -> tuple[DataSource, Path]:
    """The data set that `cfg.DATASETS` names, and where it should be."""
    source = SOURCES[cfg.DATASETS.NAMES]
    if not source.is_list:
        return source, Path(cfg.DATASETS.ROOT_DIR) / source.folder
    file = Path(cfg.DATASETS.CSV)
    return source if "camera" in read_columns(file) else replace(source, protocol="none"), file


def _check_memory(cfg: CfgNode, splits: Splits, num_processes: int) -> None:
    """With DATALOADER.CACHE ram: are there enough bytes for the caches of all splits?"""
    if cfg.DATALOADER.CACHE == "ram":
        count = len(splits.train) + len(_distinct(splits.query, splits.gallery)) + len(splits.validation)
        # torchrun may have started processes on other machines, which have memory of their own.
        local = int(os.environ.get("LOCAL_WORLD_SIZE", num_processes))
        check_memory(count, tuple(cfg.INPUT.SIZE_TRAIN), num_processes=local)


def _make_cache(cfg: CfgNode, records: Records) -> RamCache | None:
    return RamCache(len(records), tuple(cfg.INPUT.SIZE_TRAIN)) if cfg.DATALOADER.CACHE == "ram" else None


def _outlive_signals(_: int) -> None:
    """In a loader process: ignore stop signals; the main process gets them too, and finishes its step first.

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
    cfg: CfgNode, dataset: MultiModalDataset, *, batch_size: int, **options: Any
) -> DataLoader[Sample]:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=cfg.DATALOADER.NUM_WORKERS,
        collate_fn=collate,
        worker_init_fn=_outlive_signals,
        pin_memory=torch.cuda.is_available() and cfg.MODEL.DEVICE != "cpu",
        persistent_workers=cfg.DATALOADER.NUM_WORKERS > 0,
        # Without its own generator each pass over a loader would draw from the global one.
        generator=torch.Generator(),
        **options,
    )
