"""Measure the engines of a gallery side by side: `python -m benchmarks.gallery --help`.

Every engine builds the same gallery and answers the same queries, each in a process of its own. Exact search
with FAISS is the truth for recall@10.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import ChildRun, describe_machine, in_child, show_seconds
from engine.command import run_command
from engine.files import check_destination, save_json
from engine.runtime import setup_log
from errors import UserError
from inference.gallery import Gallery
from inference.gallery_faiss import FaissEngine

logger = logging.getLogger(__name__)

ENGINES = ("exact", "inverted", "quantised", "milvus")
VIEWS, CAMERAS, NUM_QUERIES, K = 10, 6, 1000, 10
LATENT, NOISE = 16, 0.35  # dimensions in which people differ, and how much views of one do: rank-1 is 98 %
ONE_BY_ONE = 50  # queries that are also asked alone
SHARD = 50_000  # entries added at once
HEADINGS = (
    "engine",
    "build, CPU time",
    "build, wall time",
    "memory, build",
    "memory, search",
    "recall@10",
    "queries per CPU second",
    "one query, CPU time",
    "equal",
)


def draw(folder: Path, size: int, dim: int) -> None:
    """Write gallery.npy (size, dim) and queries.npy: views of identities by cameras, and one more of some.

    A view is its identity, a shift that its camera adds, and noise, in a space of few dimensions; what is
    added to all numbers of the descriptor is small.
    """
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((LATENT, dim), dtype=np.float32) / np.float32(np.sqrt(LATENT))
    people = rng.standard_normal((max(1, size // VIEWS), LATENT), dtype=np.float32)
    shifts = NOISE / 2 * rng.standard_normal((CAMERAS, LATENT), dtype=np.float32)

    def views(ids: np.ndarray) -> np.ndarray:
        latent = people[ids] + shifts[rng.integers(0, CAMERAS, len(ids))]
        latent += NOISE * rng.standard_normal(latent.shape, dtype=np.float32)
        features = latent @ spread + 0.1 * rng.standard_normal((len(ids), dim), dtype=np.float32)
        return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True))

    gallery = np.lib.format.open_memmap(folder / "gallery.npy", "w+", np.float32, (size, dim))
    for start in range(0, size, SHARD):
        gallery[start : start + SHARD] = views(ids_of(start, min(start + SHARD, size), len(people)))
    gallery.flush()
    np.save(folder / "queries.npy", views(rng.integers(0, len(people), NUM_QUERIES)))


def ids_of(start: int, stop: int, num_people: int) -> np.ndarray:
    """The identities of a range of entries; the views of one are far apart."""
    return np.arange(start, stop) % num_people


def address_of(folder: Path, engine: str) -> Path:
    """Where the gallery of an engine is."""
    return folder / (f"{engine}.db" if engine == "milvus" else f"{engine}.gallery")


def build(engine: str, target_recall: float, folder: Path) -> None:
    """Build the gallery of an engine."""
    size, _ = np.load(folder / "gallery.npy", mmap_mode="r").shape
    num_people = max(1, size // VIEWS)
    with Gallery.open(
        address_of(folder, engine), exact_below=size + 1, target_recall=target_recall
    ) as gallery:
        for start in range(0, size, SHARD):
            # Mapped anew each time, so that what was read does not count as memory.
            part = np.array(np.load(folder / "gallery.npy", mmap_mode="r")[start : start + SHARD])
            rows = np.arange(start, start + len(part))
            ids = ids_of(start, start + len(part), num_people)
            gallery.add(part, ids=ids, cameras=rows % CAMERAS, files=[f"{row:08d}.jpg" for row in rows])
        about: dict[str, Any] = {}
        if engine in ("inverted", "quantised") and isinstance(gallery.engine, FaissEngine):
            gallery.engine.build_index([engine])
            index = gallery.engine.index
            about = {"cells": index.cells, "searched": index.searched} if index else {"missed": True}
        gallery.save()
    (folder / f"{engine}.json").write_text(json.dumps(about))


def search(engine: str, folder: Path) -> None:
    """Answer the queries at once, and some of them one by one."""
    queries = np.load(folder / "queries.npy")
    address = address_of(folder, engine)
    opened = Gallery.open(address) if engine == "milvus" else Gallery.load(address)
    with opened as gallery:
        gallery.search(queries[:1], K)
        start = time.process_time()
        found = gallery.search(queries, K)
        together = time.process_time() - start
        start = time.process_time()
        for query in queries[:ONE_BY_ONE]:
            gallery.search(query, K)
        alone = (time.process_time() - start) / min(ONE_BY_ONE, len(queries))
    np.savez(folder / f"{engine}.npz", rows=found.rows, similarities=found.similarities)
    about = json.loads((folder / f"{engine}.json").read_text())
    times = {"queries_per_second": len(queries) / together, "seconds_alone": alone}
    (folder / f"{engine}.json").write_text(json.dumps({**about, **times}))


def measure(engine: str, folder: Path, target_recall: float) -> dict[str, Any]:
    """What an engine needs, and how its result compares with that of exact search."""
    logger.info("%s: building", engine)
    built: ChildRun = in_child(partial(Path, folder), partial(build, engine, target_recall))
    logger.info("%s: built in %s, searching", engine, show_seconds(built.seconds))
    served = in_child(partial(Path, folder), partial(search, engine))
    truth, found = (np.load(folder / f"{name}.npz") for name in ("exact", engine))
    shared = [len(np.intersect1d(*rows)) / K for rows in zip(truth["rows"], found["rows"], strict=True)]
    return {
        "engine": engine,
        "build_seconds": built.seconds,
        "build_cpu_seconds": built.cpu_seconds,
        "build_bytes": built.growth,
        "search_bytes": served.growth,
        "recall": float(np.mean(shared)),
        "equal": all(np.array_equal(truth[name], found[name]) for name in ("rows", "similarities")),
        **json.loads((folder / f"{engine}.json").read_text()),
    }


def cells_of(row: dict[str, Any]) -> list[str]:
    """A row of the table, in the order of `HEADINGS`."""
    searched = f" ({row['searched']} of {row['cells']} cells)" if "cells" in row else ""
    missed = " (no index reaches the target)" if row.get("missed") else ""
    return [
        f"{row['engine']}{searched}{missed}",
        show_seconds(row["build_cpu_seconds"]),
        show_seconds(row["build_seconds"]),
        f"{row['build_bytes'] / 1e9:.2f} GB",
        f"{row['search_bytes'] / 1e9:.2f} GB",
        f"{row['recall']:.4f}",
        f"{row['queries_per_second']:.0f}",
        show_seconds(row["seconds_alone"]),
        "yes" if row["equal"] else "no",
    ]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gallery", description="Measure the engines of a gallery side by side."
    )
    parser.add_argument("--size", type=int, default=1_000_000, help="entries of the gallery (%(default)s)")
    parser.add_argument("--dim", type=int, default=512, help="numbers of a descriptor (%(default)s)")
    parser.add_argument("--recall", type=float, default=0.99, help="target of the indexes (%(default)s)")
    parser.add_argument("--engines", nargs="+", default=ENGINES, metavar="NAME", help=", ".join(ENGINES))
    parser.add_argument("--folder", type=Path, help="for the galleries, 9 GB for a million (a temporary one)")
    parser.add_argument("--output", type=Path, default=Path("bench_gallery.json"), help="(%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write the figures as JSON and print them as a Markdown table."""
    args = parse_arguments(argv)
    unknown = sorted(set(args.engines) - set(ENGINES))
    if unknown or args.size < VIEWS * K:
        what = f"no engine is called {unknown[0]!r}" if unknown else f"--size {args.size} is too small"
        raise UserError(f"{what}; give --engines of {', '.join(ENGINES)}, and {VIEWS * K} entries or more")
    check_destination(args.output, replaces=".json")
    setup_log()
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        logger.info("drawing %d x %d", args.size, args.dim)
        draw(Path(name), args.size, args.dim)
        for engine in ("exact", *(engine for engine in ENGINES[1:] if engine in args.engines)):
            rows.append(measure(engine, Path(name), args.recall))
            about = {"machine": describe_machine(), "size": args.size, "dim": args.dim, "target": args.recall}
            save_json(args.output, {**about, "rows": rows})
    sys.stdout.write(f"{args.size:,} x {args.dim}, {NUM_QUERIES} queries\n\n")
    for cells in (HEADINGS, ["---"] * len(HEADINGS), *map(cells_of, rows)):
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    run_command(main)
