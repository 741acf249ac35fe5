"""A gallery with FAISS, in memory or in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.files import check_destination
from errors import UserError
from inference.gallery import CameraFilter, Entries, check_model, lock_gallery
from inference.gallery_file import Record, append, read_file, write_file
from inference.gallery_index import (
    INDEX_KINDS,
    POINTS_PER_CELL,
    RECALL_AT,
    CellIndex,
    HeldOut,
    IndexAbout,
    build_cell_index,
    import_faiss,
)

NUM_HELD_OUT = 500  # queries that measure the recall of an index
_BLOCK = 2**16


class Growing:
    """An array to which rows are added at the end; its first part may be a mapped file."""

    def __init__(self, first: np.ndarray) -> None:
        self._first = first
        self._later, self._count = np.empty((0, *first.shape[1:]), dtype=first.dtype), 0

    def __len__(self) -> int:
        return len(self._first) + self._count

    def append(self, rows: np.ndarray) -> None:
        """Add rows; room is doubled when it runs out."""
        needed = self._count + len(rows)
        if needed > len(self._later):
            room = np.empty((max(needed, 2 * len(self._later)), *rows.shape[1:]), dtype=self._later.dtype)
            room[: self._count] = self._later[: self._count]
            self._later = room
        self._later[self._count : needed] = rows
        self._count = needed

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """What there is, in two arrays."""
        return self._first, self._later[: self._count]

    def whole(self) -> np.ndarray:
        """What there is, in one array; a copy if both parts have rows."""
        first, later = self.parts()
        return np.concatenate((first, later)) if len(first) and len(later) else later if len(later) else first

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Some of the rows."""
        first, later = self.parts()
        taken = np.empty((len(positions), *first.shape[1:]), dtype=first.dtype)
        early = positions < len(first)
        taken[early] = first[positions[early]]
        taken[~early] = later[positions[~early] - len(first)]
        return taken

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Pieces of limited size, each with the position of its first row."""
        offset = 0
        for part in self.parts():
            for start in range(0, len(part), _BLOCK):
                yield offset + start, part[start : start + _BLOCK]
            offset += len(part)


class FaissEngine:
    """Vectors in memory, or mapped from the file that they were read from."""

    def __init__(self, *, exact_below: int, target_recall: float, model: str = "") -> None:
        """Make an empty engine without a file; for the arguments see `Gallery`."""
        import_faiss()
        if not 0 < target_recall <= 1:
            raise UserError(f"target_recall is {target_recall}; it must be above 0, and 1 at most")
        self._exact_below, self._target_recall = exact_below, target_recall
        self._model = model
        self._path: Path | None = None  # of the file that every change is written to
        self._file: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self._end = 0  # of the records in the file
        self._index: CellIndex | None = None
        self._clear()

    @classmethod
    def load(cls, path: Path, model: str, *, exact_below: int, target_recall: float) -> FaissEngine:
        """Read a file; nothing is written to it until `save`."""
        engine = cls(exact_below=exact_below, target_recall=target_recall, model=model)
        engine._read(path)
        check_model(model, engine._model, path)
        return engine

    @classmethod
    def open(cls, path: Path, model: str, *, exact_below: int, target_recall: float) -> FaissEngine:
        """Open a file, or make it, and write every change to it."""
        engine = cls(exact_below=exact_below, target_recall=target_recall, model=model)
        if not path.exists():
            check_destination(path)
        engine._lock = lock_gallery(path)
        try:
            if not path.exists():
                write_file(path, engine._records())
            engine._attach(path)
            check_model(model, engine._model, path)
        except BaseException:
            engine.close()
            raise
        return engine

    def __len__(self) -> int:
        return self._num_alive

    @property
    def dim(self) -> int | None:
        """Numbers in a vector; None until the first is added."""
        return self._vectors.parts()[0].shape[1] or None

    @property
    def next_row(self) -> int:
        """The row of the next entry."""
        return self._next_row

    @property
    def exact(self) -> bool:
        """Whether there is no index that may miss entries."""
        return self._index is None

    @property
    def index(self) -> IndexAbout | None:
        """What the index is; None if search is exact."""
        return None if self._index is None else self._index.about

    @property
    def model(self) -> str:
        """The model that made the features; empty if nobody said."""
        return self._model

    def add(self, entries: Entries) -> None:
        """Take entries; with a file, they are on the disk afterwards."""
        self._write("add", _arrays_of(entries), int(entries.rows[-1]) + 1)
        self._take_in(entries)
        if self._index is not None:
            self._index.add(entries.features, entries.rows)

    def remove(self, rows: np.ndarray) -> int:
        """Forget rows; their space is free again after `save`."""
        there = np.intersect1d(rows, self._rows.whole()[self._alive.whole()])
        if len(there):
            self._write("gone", {"rows": there}, self._next_row)
            self._forget(there)
        return len(there)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The rows of the entries with one of these identities."""
        found: np.ndarray = self._rows.whole()[self._alive.whole() & np.isin(self._ids.whole(), ids)]
        return found

    def fetch(self, rows: np.ndarray) -> Entries:
        """The entries of these rows."""
        return self._entries(np.searchsorted(self._rows.whole(), rows))

    def candidates(
        self, queries: np.ndarray, count: int, cameras: CameraFilter
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest entries, by the index if there is one and the filter leaves many."""
        allowed = cameras.mask(self._cameras.whole())
        if self._num_alive < len(self._alive):
            alive = self._alive.whole()
            allowed = alive if allowed is None else allowed & alive
        few = allowed is not None and np.count_nonzero(allowed) < self._exact_below
        if self._index is None or few:
            return self._compare_all(queries, count, allowed)
        by_row = None
        if allowed is not None:
            by_row = np.zeros(self._next_row, dtype=bool)
            by_row[self._rows.whole()[allowed]] = True
        similarities, rows = self._index.search(queries, count, by_row)
        # The cells that were searched may hold too few that are allowed.
        short = np.flatnonzero(rows[:, -1] < 0)
        if len(short):
            similarities[short], rows[short] = self._compare_all(queries[short], count, allowed)
        return similarities, rows

    def build_index(self, kinds: Sequence[str] = INDEX_KINDS, queries: np.ndarray | None = None) -> None:
        """Build the first index of these kinds that reaches the target recall; search is exact if none does.

        Args:
            kinds: of `INDEX_KINDS`, in the order in which they are tried.
            queries: normalised features (Q, D) to measure the recall by; without them, entries that the cells
                are not learned from, none of which may find itself.
        """
        self._index = None
        shuffled = np.random.default_rng(0).permutation(np.flatnonzero(self._alive.whole()))
        chosen, rest = shuffled[:NUM_HELD_OUT], shuffled[NUM_HELD_OUT:]
        if not len(rest):
            return
        # The exact result.
        if queries is None:
            queries, own_rows = self._vectors.take(chosen), self._rows.take(chosen)
        else:
            own_rows = np.full(len(queries), -1)
        exact = self._compare_all(queries, RECALL_AT + 1, self._alive.whole())
        held_out = HeldOut.make(queries, own_rows, *exact)
        # About as many cells as entries in a cell.
        num_cells = max(1, min(2 ** round(np.log2(len(rest)) / 2), len(rest) // POINTS_PER_CELL))
        self._index = build_cell_index(
            kinds,
            self._vectors.take(np.sort(rest[: num_cells * POINTS_PER_CELL])),
            self._living_blocks,
            lambda rows: self._vectors.take(np.searchsorted(self._rows.whole(), rows)),
            len(shuffled),
            held_out,
            self._target_recall,
        )

    def save(self, path: Path | None) -> None:
        """Write the living entries, with an index if there are many; None for the file that was opened."""
        target = self._path if path is None else path
        if target is None:
            raise UserError("this gallery has no file; give save a path")
        grown = self._index is None or len(self) > 2 * self._index.about.size
        if len(self) >= self._exact_below and grown:
            self.build_index()
        elif self._index is not None:
            self._index.drop(self._rows.whole()[~self._alive.whole()])
        write_file(target, self._records())
        # From here on the vectors are mapped from the new file.
        if target == self._path:
            self._attach(target)

    def close(self) -> None:
        """Close the file and let other processes open it."""
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
        self._file = self._lock = None

    def _compare_all(
        self, queries: np.ndarray, count: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest of all entries that are allowed, block by block."""
        faiss = import_faiss()
        similarities = np.full((len(queries), count), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), count), -1, dtype=np.int64)
        all_rows = self._rows.whole()
        for start, block in self._vectors.blocks():
            # The nearest of this block, ...
            block_rows = all_rows[start : start + len(block)]
            if allowed is not None:
                chosen = allowed[start : start + len(block)]
                block_rows, block = block_rows[chosen], np.ascontiguousarray(block[chosen])
            if not len(block):
                continue
            nearest, at = faiss.knn(queries, block, min(count, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
            # ... and of it and those before.
            joined = np.concatenate((similarities, nearest), axis=1)
            joined_rows = np.concatenate((rows, block_rows[at]), axis=1)
            order = np.argsort(-joined, axis=1, kind="stable")[:, :count]
            similarities = np.take_along_axis(joined, order, axis=1)
            rows = np.take_along_axis(joined_rows, order, axis=1)
        return similarities, rows

    def _living_blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rows, alive = self._rows.whole(), self._alive.whole()
        for start, block in self._vectors.blocks():
            chosen = alive[start : start + len(block)]
            yield np.ascontiguousarray(block[chosen]), rows[start : start + len(block)][chosen]

    def _entries(self, positions: np.ndarray) -> Entries:
        return Entries(
            self._vectors.take(positions),
            self._ids.take(positions),
            self._cameras.take(positions),
            [self._files[position] for position in positions],
            self._rows.take(positions),
        )

    def _clear(self, dim: int = 0) -> None:
        """Forget everything but the number of the next row."""
        self._vectors = Growing(np.empty((0, dim), dtype=np.float32))
        # All that is no vector is copied from a file, so that its first part is empty.
        self._rows, self._ids, self._cameras = (Growing(np.empty(0, dtype=np.int64)) for _ in range(3))
        self._alive = Growing(np.empty(0, dtype=bool))
        self._files: list[str] = []
        self._num_alive, self._next_row = 0, 0
        self._index = None

    def _take_in(self, entries: Entries) -> None:
        if self.dim is None:  # the first vectors, which may be a mapped file
            self._vectors = Growing(entries.features)
        else:
            self._vectors.append(entries.features)
        self._rows.append(entries.rows)
        self._ids.append(entries.ids)
        self._cameras.append(entries.cameras)
        self._alive.append(np.ones(len(entries), dtype=bool))
        self._files.extend(entries.files)
        self._num_alive += len(entries)
        self._next_row = int(entries.rows[-1]) + 1

    def _forget(self, rows: np.ndarray) -> None:
        alive = self._alive.whole()
        alive[np.searchsorted(self._rows.whole(), rows)] = False
        self._num_alive -= len(rows)

    def _write(self, kind: str, arrays: dict[str, np.ndarray], next_row: int) -> None:
        """Append to the file, if there is one."""
        if self._path is not None:
            if self._file is None:
                raise UserError(f"the gallery {self._path} is closed; open it again")
            self._end = append(self._file, self._end, Record(kind, next_row, {}, arrays))

    def _records(self) -> Iterator[Record]:
        """What a new file holds."""
        yield Record("made", self._next_row, {"model": self._model}, {})
        if self._num_alive:
            living = np.flatnonzero(self._alive.whole())
            untouched = len(living) == len(self._alive)
            entries = self._everything() if untouched else self._entries(living)
            yield Record("add", self._next_row, {}, _arrays_of(entries))
        if self._index is not None:
            content, about = self._index.store()
            yield Record("indx", self._next_row, about, {"content": content})

    def _everything(self) -> Entries:
        ids, cameras, rows = (part.whole() for part in (self._ids, self._cameras, self._rows))
        return Entries(self._vectors.whole(), ids, cameras, self._files, rows)

    def _attach(self, path: Path) -> None:
        """Read a file, cut off what was never acknowledged, and keep it open for writing."""
        self._path, self._end = path, self._read(path)
        if self._file is not None:
            self._file.close()
        self._file = open(path, "r+b")  # noqa: SIM115 - close() closes it
        self._file.truncate(self._end)

    def _read(self, path: Path) -> int:
        """Take over the records of a file; their end."""
        records, end = read_file(path)
        self._clear()
        for record in records:
            if record.kind == "made":
                self._model = str(record.about["model"])
            elif record.kind == "add":
                entries = _entries_of(record.arrays)
                self._take_in(entries)
                if self._index is not None:
                    self._index.add(entries.features, entries.rows)
            elif record.kind == "gone":
                self._forget(record.arrays["rows"])
            elif record.kind == "indx":
                self._index = CellIndex.restore(np.array(record.arrays["content"]), record.about)
            self._next_row = record.next_row
        return end


def _arrays_of(entries: Entries) -> dict[str, np.ndarray]:
    files = np.frombuffer(json.dumps(list(entries.files)).encode(), dtype=np.uint8)
    return {
        "features": entries.features,
        "ids": entries.ids,
        "cameras": entries.cameras,
        "rows": entries.rows,
        "files": files,
    }


def _entries_of(arrays: dict[str, Any]) -> Entries:
    labels = {name: arrays[name] for name in ("features", "ids", "cameras", "rows")}
    return Entries(**labels, files=json.loads(arrays["files"].tobytes()))
