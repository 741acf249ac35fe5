"""Indexes of FAISS that compare a query with a part of the gallery, and how large that part has to be."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from inference.gallery import ROUNDING, SPARE
from reporting.extra import import_extra

logger = logging.getLogger(__name__)

INDEX_KINDS = ("quantised", "inverted")
"""In the order in which they are tried: with 8 bits for each number of a vector, then with all 32."""

RECALL_AT = 10
POINTS_PER_CELL = 64  # vectors that the cells are learned from
LEAST_SAVING = 4  # an index that has to search more than 1 / 4 of its cells is hardly faster than no index
_QUERIES_AT_ONCE = 64


@dataclass(frozen=True)
class IndexAbout:
    """What an index is and does."""

    kind: str
    cells: int
    searched: int  # cells that a search looks into
    recall: float  # measured with so many
    size: int  # entries when it was built


class CellIndex:
    """Vectors in cells around centres; a search looks into the cells whose centres are nearest."""

    def __init__(self, index: Any, about: IndexAbout) -> None:
        """Take an index of FAISS whose entries are numbered by their rows."""
        self._index = index
        self.about = about

    @classmethod
    def restore(cls, file: IO[bytes], about: dict[str, Any]) -> CellIndex:
        """What `store` wrote; from a file, as an array in memory would be copied twice."""
        faiss = import_faiss()
        return cls(faiss.read_index(faiss.PyCallbackIOReader(file.read)), IndexAbout(**about))

    def store(self, file: IO[bytes]) -> None:
        """Write the index."""
        faiss = import_faiss()
        faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write))

    def add(self, features: np.ndarray, rows: np.ndarray) -> None:
        """Put vectors into their cells."""
        self._index.add_with_ids(features, rows)

    def drop(self, rows: np.ndarray) -> None:
        """Take vectors out of their cells."""
        drop(self._index, rows)

    def search(
        self, queries: np.ndarray, count: int, allowed: np.ndarray | None = None, *, everywhere: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Similarities and rows, both (Q, count), of near entries; rows are -1 where there are no more.

        If half of the entries may be found, they are looked for in twice as many cells: the nearest of them
        are further away.

        Args:
            queries: (Q, D).
            count: how many for each.
            allowed: for each row up to the last whether it may be found.
            everywhere: look into all cells.
        """
        searched = self.about.searched
        if allowed is not None:
            searched = math.ceil(searched * self._index.ntotal / max(1, np.count_nonzero(allowed)))
        cells = self.about.cells if everywhere else min(searched, self.about.cells)
        parameters = import_faiss().SearchParametersIVF(nprobe=cells, sel=select_rows(allowed))
        found: tuple[np.ndarray, np.ndarray] = self._index.search(queries, count, params=parameters)
        return found


def select_rows(allowed: np.ndarray | None) -> Any:
    """What tells FAISS which rows may be found, from booleans by row; None if all may."""
    if allowed is None:
        return None
    bits = np.packbits(allowed, bitorder="little")
    selector = import_faiss().IDSelectorBitmap(bits)
    selector.bits_kept = bits  # FAISS does not copy them
    return selector


def drop(index: Any, rows: np.ndarray) -> None:
    """Take rows out of an index of FAISS."""
    index.remove_ids(import_faiss().IDSelectorBatch(rows))


def import_faiss() -> Any:
    """FAISS, or the sentence that says how to install it."""
    logging.getLogger("faiss").setLevel(logging.WARNING)  # lists the builds that it looks for
    return import_extra("faiss", "search")


@dataclass(frozen=True)
class HeldOut:
    """Queries with their exact result, to measure recall by."""

    queries: np.ndarray  # (Q, D)
    own_rows: np.ndarray  # (Q,) a row that the query must not find, as it is the query; -1 for none
    bounds: np.ndarray  # (Q,) the exact similarity of the last entry that has to be found

    @classmethod
    def make(
        cls, queries: np.ndarray, own_rows: np.ndarray, similarities: np.ndarray, rows: np.ndarray
    ) -> HeldOut:
        """From the exact similarities and rows of the nearest entries, (Q, RECALL_AT + 1) at least."""
        others = np.where(rows == own_rows[:, None], -np.inf, similarities)
        return cls(queries, own_rows, -np.sort(-others, axis=1)[:, RECALL_AT - 1])

    def recall(self, index: CellIndex, take: Callable[[np.ndarray], np.ndarray]) -> float:
        """The share of the nearest that are found; those found are compared by `take`, their exact vectors.

        An entry that is as near as the last of the exact result counts as well as that one.
        """
        hits = 0
        for start in range(0, len(self.queries), _QUERIES_AT_ONCE):
            part = slice(start, start + _QUERIES_AT_ONCE)
            queries, bounds = self.queries[part], self.bounds[part]
            _, rows = index.search(queries, RECALL_AT + 1 + SPARE)
            vectors = take(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
            exact = np.einsum("qd,qnd->qn", queries, vectors)
            exact[(rows < 0) | (rows == self.own_rows[part, None])] = -np.inf
            nearest = -np.sort(-exact, axis=1)[:, :RECALL_AT]
            hits += int(np.count_nonzero(nearest >= bounds[:, None] - ROUNDING))
        return hits / (RECALL_AT * len(self.queries))


def build_cell_index(
    kinds: Sequence[str],
    sample: np.ndarray,
    blocks: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]],
    take: Callable[[np.ndarray], np.ndarray],
    size: int,
    held_out: HeldOut,
    target_recall: float,
) -> CellIndex | None:
    """The first index of these kinds that reaches the target recall, with as few cells searched as it needs.

    Args:
        kinds: of `INDEX_KINDS`.
        sample: vectors that the cells are learned from.
        blocks: all vectors with their rows, piece by piece.
        take: the vectors of rows.
        size: how many vectors there are.
        held_out: measures the recall.
        target_recall: in [0, 1].

    Returns:
        None, with a line in the log, if no kind reaches the target.
    """
    faiss = import_faiss()
    num_cells = max(1, len(sample) // POINTS_PER_CELL)
    centres = faiss.IndexFlatIP(sample.shape[1])
    for kind in kinds:
        # Learn the cells, which later kinds use again, and fill them.
        start = time.perf_counter()
        index = _empty_index(kind, centres, num_cells)
        index.cp.spherical, index.cp.niter, index.cp.max_points_per_centroid = True, 10, POINTS_PER_CELL
        index.train(sample)
        bar = tqdm(total=size, desc=f"{kind} index", unit="entry", leave=False, disable=None)
        for vectors, rows in blocks():
            index.add_with_ids(vectors, rows)
            bar.update(len(rows))
        bar.close()
        # Search more and more cells.
        searched, recall = 0, 0.0
        while recall < target_recall and 2 * searched <= num_cells // LEAST_SAVING:
            searched = max(1, 2 * searched)
            recall = held_out.recall(CellIndex(index, IndexAbout(kind, num_cells, searched, 0, size)), take)
        found = f"{kind} index of {size:,} entries: recall@{RECALL_AT} {recall:.4f}"
        cells = f"with {searched} of {num_cells} cells searched"
        if recall >= target_recall:
            logger.info("%s %s, built in %.0f s", found, cells, time.perf_counter() - start)
            return CellIndex(index, IndexAbout(kind, num_cells, searched, round(recall, 4), size))
        logger.warning("%s %s, below %g", found, cells, target_recall)
    logger.warning("no index reaches the target recall, and search stays exact")
    return None


def _empty_index(kind: str, centres: Any, num_cells: int) -> Any:
    faiss = import_faiss()
    place = (centres, centres.d, num_cells)
    if kind == "inverted":
        return faiss.IndexIVFFlat(*place, faiss.METRIC_INNER_PRODUCT)
    if kind == "quantised":
        eight_bits = faiss.ScalarQuantizer.QT_8bit
        return faiss.IndexIVFScalarQuantizer(*place, eight_bits, faiss.METRIC_INNER_PRODUCT)
    raise ValueError(f"unknown kind of index {kind!r}; choose from {', '.join(INDEX_KINDS)}")
