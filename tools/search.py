"""Build a gallery and search it with images: `python -m tools.search build|query …`."""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import search_arguments

if __name__ == "__main__":
    answer_early(search_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from tqdm import tqdm

from engine.command import run_command
from engine.runtime import setup_log
from errors import UserError
from inference import Gallery, Matches, Predictor, Triple
from inference.calibration import name_modalities
from inference.gallery import is_milvus
from inference.origin import name_model
from inference.shards import find_shards, read_description, read_shard

logger = logging.getLogger(__name__)

ARRAYS = ("features", "ids", "cameras", "files")


def build(args: argparse.Namespace) -> None:
    """Add every shard of the embeddings to a new gallery."""
    model, shards = name_model(read_description(args.embeddings)), find_shards(args.embeddings)
    with Gallery.open(args.gallery, model=model, target_recall=args.recall) as gallery:
        if len(gallery):
            raise UserError(
                f"the gallery {args.gallery} holds {len(gallery)} entries; name another, or remove it"
            )
        with gallery.filling():
            for shard in tqdm(shards, "adding", unit="shard", disable=None, leave=False):
                arrays = read_shard(shard, ARRAYS)
                if len(arrays["features"]):  # otherwise none of its images could be read
                    files = arrays["files"].tolist()
                    gallery.add(arrays["features"], ids=arrays["ids"], cameras=arrays["cameras"], files=files)
            gallery.save()
        logger.info("%s: %d entries, from %s", args.gallery, len(gallery), args.embeddings)


def query(args: argparse.Namespace) -> None:
    """Embed a triple and print its nearest entries."""
    if "://" not in args.gallery and not Path(args.gallery).exists():
        raise UserError(f"there is no gallery {args.gallery}; make it with tools.search build")
    triple = Triple(args.rgb, args.ni, args.ti)
    logging.getLogger("modeling").setLevel(logging.WARNING)
    predictor = Predictor.load(
        args.weights, args.overrides, config_file=args.config_file, pattern=args.pattern, pca=args.pca
    )
    features = predictor.embed([triple])
    with find_gallery(args.gallery, predictor, triple) as gallery:
        matches = gallery.search(features, args.k, camera=args.camera, without=args.without)
    if matches.rows[0, 0] < 0:
        logger.warning("%s has no entry, or none that --camera and --without allow", args.gallery)
    sys.stdout.writelines(f"{line}\n" for line in table_of(matches))


def find_gallery(address: str, predictor: Predictor, triple: Triple) -> Gallery:
    """A gallery of triples with the images of the query, or, with a warning, of complete ones."""
    assert predictor.origin is not None
    origin = predictor.origin.as_dict()
    find = Gallery.open if is_milvus(address) else Gallery.load
    asked = name_modalities([m for m in predictor.modalities if triple.images.of(m) is not None])
    if asked == name_modalities(predictor.modalities):
        return find(address, model=name_model(origin))
    with suppress(UserError):  # it is not of these modalities, or the second attempt says what it is
        return find(address, model=name_model({**origin, "modalities": asked}))
    gallery = find(address, model=name_model(origin))
    logger.warning(
        f"the query has {asked} alone, and finds little among triples that have more; search a gallery that "
        f"was made with tools.embed --modalities {asked}"
    )
    return gallery


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
