"""Write the descriptors of your own images: `python -m tools.embed FOLDER|LIST.csv OUT --weights FILE`.

Resumable: shards that are there are not made again. `torchrun --nproc_per_node=N -m tools.embed …` gives each
process its share of the shards.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import embed_arguments

if __name__ == "__main__":
    answer_early(embed_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice

import numpy as np
import torch
from tqdm import tqdm

from datasets.build import read_splits
from datasets.dataset import DatasetError
from engine.build import make_device
from engine.command import run_command
from engine.distributed import World
from engine.runtime import setup_log
from errors import UserError, on_one_line
from inference.calibration import name_modalities
from inference.compact import fit_pca, load_pca
from inference.lists import Listed, TripleList, open_list
from inference.origin import find_origin
from inference.predictor import Predictor, check_modalities, triple_of
from inference.shards import DESCRIPTION, PCA, UNREADABLE, ShardFolder, read_description, read_features
from reporting.extra import import_extra
from structures import Modality
from trained import Trained, load_trained

logger = logging.getLogger(__name__)

WAIT = timedelta(days=7)
"""How long a process waits for the others, whose shares may take longer."""


def main(argv: Sequence[str] | None = None) -> None:
    """Read the list, prepare the folder, embed this process's shards."""
    # What to embed, and where the result goes.
    args = embed_arguments(argv)
    check_options(args)
    setup_log()
    world = World.from_environment()
    listed = open_list(args.source)
    folder = ShardFolder(args.output, args.format, -(-listed.length // args.shard_size))
    trained = load_trained(args.weights, args.overrides, config_file=args.config_file)
    own = trained.model.modalities
    used = [m for m in own if args.modalities is None or m.value in args.modalities]
    if args.modalities is not None and len(used) < len(set(args.modalities)):
        raise UserError(
            f"--modalities {'+'.join(args.modalities)}: the model uses {name_modalities(own)} alone"
        )
    for present, row in listed.kinds.items():
        check_modalities(present, used, f"the triple of {on_one_line(row.file)}")
    listed = listed.only(used)
    device = make_device(trained.cfg, world)
    with world.joined(device, WAIT):
        # The first process locks the folder, and learns the PCA; the others wait for it.
        if world.is_main:
            lock = folder.open()
            prepare_pca(args, trained, device)
        world.gather_objects(None)
        predictor = load_predictor(args, trained, device)
        if world.is_main:
            folder.describe(describe(args, listed, predictor))
        # The shards that the first process misses, each made by one of all.
        missing = world.gather_objects(folder.find_missing() if world.is_main else [])[0]
        embed_shards(predictor, listed, folder, missing[world.rank :: world.size], args.shard_size, world)
        world.gather_objects(None)
        if world.is_main:
            finish(folder, listed, predictor)
            lock.close()


def check_options(args: argparse.Namespace) -> None:
    """Refuse what cannot work before anything slow."""
    for name in ("shard_size", "batch_size", "dim"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be 1 or more, not {value}")
    if args.fit_on is not None and (args.dim is None or args.pca is not None):
        raise UserError("--fit_on learns a new PCA; add --dim N, and leave out --pca")
    if args.whiten and (args.dim is None or args.pca is not None):
        raise UserError("--whiten shapes a new PCA; add --dim N, and leave out --pca")
    if args.format == "parquet":
        import_extra("pyarrow", "search")
    if not os.path.exists(args.source):
        raise UserError(f"there is no folder or CSV file {args.source}; name another one")


def prepare_pca(args: argparse.Namespace, trained: Trained, device: torch.device) -> None:
    """Write OUT/pca.npz, if descriptors are to be shortened and it is not there yet."""
    file = args.output / PCA
    if args.dim is None and args.pca is None:
        return
    origin = find_origin(trained, args.weights, args.pattern)
    if args.pca is not None:
        pca = load_pca(args.pca, origin)
        pca = pca if args.dim is None else pca.shortened(args.dim)
    elif file.exists():
        pca = load_pca(file, origin)
        if pca.dim != args.dim:
            raise UserError(f"{file} has {pca.dim} numbers, not --dim {args.dim}; name another folder")
        if not math.isclose(pca.whiten, args.whiten, abs_tol=1e-6):
            raise UserError(
                f"{file} was learned with --whiten {pca.whiten:g}; add it, or name another folder"
            )
        return
    elif (args.output / DESCRIPTION).exists():
        raise UserError(f"{args.output} was started without --dim; name another folder")
    elif args.fit_on is not None:
        origin.check(read_description(args.fit_on), args.fit_on / DESCRIPTION)
        logger.info("learning a PCA on %s", args.fit_on)
        pca = fit_pca(read_features(args.fit_on), args.dim, origin, args.whiten)
    else:
        pca = fit_pca(training_features(args, trained, device), args.dim, origin, args.whiten)
    if not file.exists():  # otherwise the description is compared
        pca.save(file)


def training_features(
    args: argparse.Namespace, trained: Trained, device: torch.device
) -> Iterator[np.ndarray]:
    """The descriptors of the training split, batch by batch."""
    try:
        records = read_splits(trained.cfg, may_draw=False)[0].train
    except DatasetError as error:
        raise UserError(
            f"--dim learns a PCA on the training split, but {error}; --fit_on learns it on descriptors that "
            "were written before, --pca takes one that was learned before"
        ) from None
    predictor = Predictor.of(
        trained, args.weights, device=device, pattern=args.pattern, batch_size=args.batch_size
    )
    if args.dim > predictor.dim:  # known before hours of work
        raise UserError(
            f"--dim is {args.dim}, but descriptors of this model have {predictor.dim} numbers; choose fewer"
        )
    logger.info("learning a PCA on the %d training triples of the data set", len(records))
    with tqdm(total=len(records), desc="learn", unit="triple", leave=False, disable=None) as bar:
        for part in predictor.stream(map(triple_of, records)):
            yield part.features.numpy()
            bar.update(len(part.indices))


def load_predictor(args: argparse.Namespace, trained: Trained, device: torch.device) -> Predictor:
    """The predictor, with OUT/pca.npz if descriptors are to be shortened."""
    pca = None if args.dim is None and args.pca is None else args.output / PCA
    options = {"device": device, "pattern": args.pattern, "batch_size": args.batch_size, "pca": pca}
    return Predictor.of(trained, args.weights, **options)


def describe(args: argparse.Namespace, listed: TripleList, predictor: Predictor) -> dict[str, object]:
    """What embedding.json holds; a command that continues must have the same."""
    assert predictor.origin is not None
    return {
        **predictor.origin.as_dict(),
        "modalities": find_modalities(listed, predictor),
        "dim": predictor.dim,
        "triples": listed.length,
        "shard_size": args.shard_size,
        "format": args.format,
        "list": str(listed.path),
        "list_sha256": listed.sha256,
    }


def find_modalities(listed: TripleList, predictor: Predictor) -> str:
    """The modalities of all triples, such as `RGB`; empty if they have all that the model uses, or differ."""
    names = {name_modalities([m for m in Modality if present.of(m)]) for present in listed.kinds}
    return "".join(names - {name_modalities(predictor.modalities)}) if len(names) == 1 else ""


def embed_shards(
    predictor: Predictor,
    listed: TripleList,
    folder: ShardFolder,
    own: Sequence[int],
    shard_size: int,
    world: World,
) -> None:
    """Make the shards of this process, `own`, in ascending order."""
    rows, start, images = listed.rows(), time.perf_counter(), 0
    total = sum(min(shard_size, listed.length - shard * shard_size) for shard in own)
    hidden = None if world.is_main else True
    with tqdm(total=total, desc="embed", unit="triple", disable=hidden) as bar:
        for shard in range(own[-1] + 1 if own else 0):
            part = islice(rows, shard_size)
            if shard not in own:
                deque(part, maxlen=0)  # skip its rows
                continue
            images += embed_shard(predictor, list(part), folder, shard, shard * shard_size, bar)
            rate = images / (time.perf_counter() - start)
            bar.set_postfix_str(f"{rate:.0f} images/s")
            logger.info("wrote %s (%d images/s)", folder.file_of(shard).name, rate)


def embed_shard(
    predictor: Predictor, rows: Sequence[Listed], folder: ShardFolder, shard: int, start: int, bar: tqdm
) -> int:
    """Embed the rows of a shard, the first of which is row `start` of the list; returns the images read."""
    features = [np.zeros((0, predictor.dim), np.float32)]
    indices: list[int] = []
    skipped: dict[int, str] = {}
    for part in predictor.stream((row.triple for row in rows), on_error="skip", start=start):
        if part.indices:
            features.append(part.features.numpy())
        indices += part.indices
        skipped.update(part.unreadable)
        bar.update(len(part.indices) + len(part.unreadable))
    kept = [rows[index - start] for index in indices]
    arrays: dict[str, np.ndarray] = {
        "features": np.concatenate(features),
        "ids": np.array([row.person_id for row in kept], dtype=np.int64),
        "cameras": np.array([row.camera_id for row in kept], dtype=np.int64),
        "files": np.array([row.file for row in kept], dtype=np.str_),
        "index": np.array(indices, dtype=np.int64),
    }
    folder.save(shard, arrays, skipped)
    return sum(image is not None for row in kept for image in row.paths)


def finish(folder: ShardFolder, listed: TripleList, predictor: Predictor) -> None:
    """Say what is there."""
    skipped = folder.finish()
    if skipped:
        message = "%d of %d triples were skipped: see %s"
        logger.warning(message, skipped, listed.length, folder.path / UNREADABLE)
    done = listed.length - skipped
    logger.info("%d descriptors of %d numbers are in %s", done, predictor.dim, folder.path)


if __name__ == "__main__":
    run_command(main)
