"""Build a gallery and search it with images: `python -m tools.search build|query …`."""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import search_arguments

if __name__ == "__main__":
    answer_early(search_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import json
import logging
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from engine.command import run_command
from engine.runtime import setup_log
from errors import UserError
from inference import Gallery, Matches, Predictor, Triple
from inference.gallery import is_milvus
from inference.origin import name_model
from reporting.extra import import_extra

logger = logging.getLogger(__name__)

ARRAYS = ("features", "ids", "cameras", "files")


def build(args: argparse.Namespace) -> None:
    """Add every shard of the embeddings to a new gallery."""
    about = read_about(args.embeddings)
    shards = sorted([*args.embeddings.glob("part-*.npz"), *args.embeddings.glob("part-*.parquet")])
    if not shards:
        raise UserError(f"{args.embeddings} holds no part-*.npz or part-*.parquet; run tools.embed first")
    with Gallery.open(args.gallery, model=name_model(about), target_recall=args.recall) as gallery:
        if len(gallery):
            raise UserError(
                f"the gallery {args.gallery} holds {len(gallery)} entries; name another, or remove it"
            )
        for shard in tqdm(shards, "adding", unit="shard", disable=None, leave=False):
            arrays = read_shard(shard)
            if not len(arrays["features"]):  # none of its images could be read
                continue
            gallery.add(
                arrays["features"],
                ids=arrays["ids"],
                cameras=arrays["cameras"],
                files=arrays["files"].tolist(),
            )
        gallery.save()
        logger.info("%s: %d entries from %d shards", args.gallery, len(gallery), len(shards))


def read_about(folder: Path) -> dict[str, Any]:
    """The file embedding.json of finished embeddings."""
    path = folder / "embedding.json"
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        finished, _ = about["finished"], name_model(about)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} cannot be read; name a folder that tools.embed has written") from None
    if not finished:
        raise UserError(f"the embeddings in {folder} are not finished; run the same tools.embed again")
    return about


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a shard, by name."""
    try:
        if path.suffix == ".npz":
            with np.load(path) as stored:
                return {name: stored[name] for name in ARRAYS}
        table = import_extra("pyarrow.parquet", "search").read_table(path)
        arrays = {name: table[name].to_numpy() for name in ARRAYS}
        return arrays | {"features": np.array(arrays["features"].tolist(), dtype=np.float32)}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # pyarrow's errors are ValueErrors
        raise UserError(f"{path} cannot be read; remove it and run the same tools.embed again") from None


def query(args: argparse.Namespace) -> None:
    """Embed a triple and print its nearest entries."""
    if "://" not in args.gallery and not Path(args.gallery).exists():
        raise UserError(f"there is no gallery {args.gallery}; make it with tools.search build")
    triple = Triple(args.rgb, args.ni, args.ti)
    logging.getLogger("modeling").setLevel(logging.WARNING)
    predictor = Predictor.load(args.weights, pattern=args.pattern, pca=args.pca)
    features = predictor.embed([triple])
    assert predictor.origin is not None
    model = name_model(predictor.origin.as_dict())
    find = Gallery.open if is_milvus(args.gallery) else Gallery.load
    with find(args.gallery, model=model) as gallery:
        matches = gallery.search(features, args.k, camera=args.camera, without=args.without)
    sys.stdout.writelines(f"{line}\n" for line in table_of(matches))


def table_of(matches: Matches) -> Iterator[str]:
    """The lines of a table with the nearest entries of the first query."""
    yield f"{'rank':>4}  {'cosine':>7}  {'id':>8}  {'camera':>6}  file"
    entries = zip(matches.similarities[0], matches.ids[0], matches.cameras[0], matches.files[0], strict=True)
    for rank, (cosine, person, camera, file) in enumerate(entries, start=1):
        if np.isfinite(cosine):
            shown = ["–" if label < 0 else str(label) for label in (person, camera)]
            yield f"{rank:>4}  {cosine:>7.4f}  {shown[0]:>8}  {shown[1]:>6}  {file}"


def main(argv: Sequence[str] | None = None) -> None:
    """Build a gallery, or search one."""
    args = search_arguments(argv)
    setup_log()
    {"build": build, "query": query}[args.command](args)


if __name__ == "__main__":
    run_command(main)
