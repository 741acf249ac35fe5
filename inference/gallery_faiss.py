"""A gallery with FAISS: the entries are in an SQLite database, an index of their vectors is in memory."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np

from engine.files import check_destination, check_regular
from errors import UserError
from inference.gallery import CameraFilter, Entries, check_model, lock_gallery
from inference.gallery_index import (
    INDEX_KINDS,
    POINTS_PER_CELL,
    RECALL_AT,
    CellIndex,
    HeldOut,
    IndexAbout,
    build_cell_index,
    drop,
    import_faiss,
    select_rows,
)

NUM_HELD_OUT = 500  # queries that measure the recall of an index
GONE = -(2**63)  # stands for the camera of an entry that was removed
APPLICATION = 0x47414C32  # tells our databases from others
# Vectors have a table of their own, so that the rest can be read without them. AUTOINCREMENT remembers the
# largest row, so that the rows of removed entries are not given again. `parts` are those of the stored index.
TABLES = """
CREATE TABLE entries (row INTEGER PRIMARY KEY AUTOINCREMENT, person INTEGER, camera INTEGER, file BLOB);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, features BLOB);
CREATE TABLE parts (part INTEGER PRIMARY KEY, content BLOB);
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT);
"""
_BLOCK = 2**14  # vectors that are read at once
_PART = 2**26  # bytes of an index in one row; SQLite takes 10^9 at most
_ROWS = 10_000  # rows that one statement names


class FaissEngine:
    """Vectors compared one by one, or by an index that is built when there are many."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        model: str = "",
        exact_below: int = 100_000,
        target_recall: float = 0.99,
        read_only: bool = False,
    ) -> None:
        """Open a file, or make it; None for a temporary one. See `Gallery.open`.

        With `read_only`, other processes may open the file, and changes are refused.
        """
        import_faiss()
        if not 0 < target_recall <= 1:
            raise UserError(f"target_recall is {target_recall}; it must be above 0, and 1 at most")
        self._path, self._read_only = path, read_only
        self._exact_below, self._target_recall = exact_below, target_recall
        self._lock: IO[bytes] | None = None
        self._db: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        self._flat: Any = None  # compares all vectors; None with `_cells`, or until the first is added
        self._cells: CellIndex | None = None
        if path is not None and not read_only:
            if not path.exists():
                check_destination(path)
            self._lock = lock_gallery(path)
        try:
            with self._errors():
                self._db = _connect(path, read_only)
                self._about = dict(self._db.execute("SELECT name, value FROM about"))
                if not self._about:
                    with self._db:
                        self._set_about(self._db, model=model, unfinished="", dim="0", index="")
                self._read()
            check_model(model, self._about["model"], path)
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        """Take over what stands in the database."""
        last = self.db.execute("SELECT seq FROM sqlite_sequence").fetchone()
        self._cameras = np.full(0 if last is None else last[0] + 1, GONE)  # by row
        found = self.db.execute("SELECT row, camera FROM entries").fetchall()
        if found:
            rows, cameras = np.array(found, dtype=np.int64).T
            self._cameras[rows] = cameras
        self._num_alive = len(found)
        if not self._about["index"]:
            self._fill_flat()
            return
        # The index as it was stored, and what has changed since.
        stored = json.loads(self._about["index"])
        next_row = stored.pop("next_row")
        with tempfile.TemporaryFile() as file:
            for (content,) in self.db.execute("SELECT content FROM parts ORDER BY part"):
                file.write(content)
            file.seek(0)
            self._cells = CellIndex.restore(file, stored)
        self._cells.drop(np.flatnonzero(self._cameras[:next_row] == GONE))
        for vectors, rows in self._blocks(next_row):
            self._cells.add(vectors, rows)

    def __len__(self) -> int:
        return self._num_alive

    @property
    def db(self) -> sqlite3.Connection:
        """The database; a UserError after `close`."""
        if self._db is None:
            raise UserError(f"the gallery {self._path} is closed; open it again")
        return self._db

    @property
    def dim(self) -> int | None:
        """Numbers in a vector; None until the first is added."""
        return int(self._about["dim"]) or None

    @property
    def next_row(self) -> int:
        """The row of the next entry."""
        return len(self._cameras)

    @property
    def exact(self) -> bool:
        """Whether there is no index that may miss entries."""
        return self._cells is None

    @property
    def index(self) -> IndexAbout | None:
        """What the index is; None if search is exact."""
        return None if self._cells is None else self._cells.about

    @property
    def unfinished(self) -> bool:
        """Whether filling was interrupted."""
        return bool(self._about["unfinished"])

    def mark_unfinished(self, unfinished: bool) -> None:
        """Set or remove the mark of a gallery that is being filled."""
        with self._errors(changes=True), self.db:
            self._set_about(self.db, unfinished="yes" if unfinished else "")

    def add(self, entries: Entries) -> None:
        """Take entries; with a file, they are on the disk afterwards."""
        rows = entries.rows.tolist()
        labels = zip(rows, entries.ids.tolist(), entries.cameras.tolist(), entries.files, strict=True)
        with self._errors(changes=True), self.db:
            # Names may hold bytes that are no text.
            encoded = ((*front, os.fsencode(file)) for *front, file in labels)
            self.db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", encoded)
            self.db.executemany("INSERT INTO vectors VALUES (?, ?)", zip(rows, entries.features, strict=True))
            if self.dim is None:
                self._set_about(self.db, dim=str(entries.features.shape[1]))
        self._cameras = np.concatenate((self._cameras, entries.cameras))
        self._num_alive += len(entries)
        if self._cells is None:
            if self._flat is None:
                self._flat = _make_flat(entries.features.shape[1])
            self._flat.add_with_ids(entries.features, entries.rows)
        else:
            self._cells.add(entries.features, entries.rows)

    def remove(self, rows: np.ndarray) -> int:
        """Forget rows; their space is used for the next entries."""
        rows = rows[(rows >= 0) & (rows < self.next_row)]
        there = rows[self._cameras[rows] != GONE]
        with self._errors(changes=True), self.db:
            for part in _statement_parts(there):
                for table in ("entries", "vectors"):
                    self.db.execute(f"DELETE FROM {table} WHERE row IN {part}")
        self._cameras[there] = GONE
        self._num_alive -= len(there)
        if len(there):
            drop(self._flat, there) if self._cells is None else self._cells.drop(there)
        return len(there)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The rows of the entries with one of these identities."""
        wanted = "SELECT row FROM entries WHERE person IN"
        with self._errors(), self._reading:
            found = [row for part in _statement_parts(ids) for (row,) in self.db.execute(f"{wanted} {part}")]
        return np.array(sorted(found), dtype=np.int64)

    def fetch(self, rows: np.ndarray) -> Entries:
        """The entries of those rows that are there."""
        wanted = "SELECT * FROM entries JOIN vectors USING (row) WHERE row IN"
        with self._errors(), self._reading:
            found = [
                entry
                for part in _statement_parts(rows)
                for entry in self.db.execute(f"{wanted} {part} ORDER BY row")
            ]
        labels = np.array([entry[:3] for entry in found], dtype=np.int64).reshape(-1, 3)
        vectors = np.frombuffer(b"".join(entry[4] for entry in found), dtype=np.float32)
        files = [os.fsdecode(entry[3]) for entry in found]
        return Entries(
            vectors.reshape(-1, self.dim or 1), labels[:, 1], labels[:, 2], files=files, rows=labels[:, 0]
        )

    def candidates(
        self, queries: np.ndarray, count: int, cameras: CameraFilter
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest entries, by the index if there is one and the filter leaves many."""
        allowed = cameras.mask(self._cameras)
        if self._cells is None:
            return self._compare_all(queries, count, allowed)
        alive = self._cameras != GONE
        few = allowed is not None and int((allowed & alive).sum()) < self._exact_below
        similarities, rows = self._cells.search(queries, count, allowed, everywhere=few)
        # The cells that were searched may hold too few that are allowed.
        short = np.flatnonzero(rows[:, -1] < 0)
        if len(short) and not few:
            found = self._cells.search(queries[short], count, allowed, everywhere=True)
            similarities[short], rows[short] = found
        return similarities, rows

    def build_index(self, kinds: Sequence[str] = INDEX_KINDS, queries: np.ndarray | None = None) -> None:
        """Build the first index of these kinds that reaches the target recall; search is exact if none does.

        Args:
            kinds: of `INDEX_KINDS`, in the order in which they are tried.
            queries: normalised features (Q, D) to measure the recall by; without them, entries that the cells
                are not learned from, none of which may find itself.
        """
        if self._cells is not None:
            self._cells = None
            self._fill_flat()
        shuffled = np.random.default_rng(0).permutation(np.flatnonzero(self._cameras != GONE))
        own_rows, rest = np.sort(shuffled[:NUM_HELD_OUT]), shuffled[NUM_HELD_OUT:]
        if not len(rest):
            return
        # The exact result.
        if queries is None:
            queries = self.fetch(own_rows).features
        else:
            own_rows = np.full(len(queries), -1)
        exact = self._compare_all(queries, RECALL_AT + 1, None)
        held_out = HeldOut.make(queries, own_rows, *exact)
        # About as many cells as entries in a cell.
        num_cells = max(1, min(2 ** round(np.log2(len(rest)) / 2), len(rest) // POINTS_PER_CELL))
        self._cells = build_cell_index(
            kinds,
            self.fetch(np.sort(rest[: num_cells * POINTS_PER_CELL])).features,
            self._blocks,
            self._take,
            len(shuffled),
            held_out,
            self._target_recall,
        )
        if self._cells is not None:
            self._flat = None

    def save(self, path: Path | None) -> None:
        """Build an index if there are many entries, and store it; with a path, write a copy of all there."""
        if path is None and (self._path is None or self._read_only):
            raise UserError("this gallery has no file of its own; give save a path")
        grown = self._cells is None or len(self) > 2 * self._cells.about.size
        if len(self) >= self._exact_below and grown:
            self.build_index()
        if path is None or path == self._path:
            with self._errors(changes=True):
                self._store_index(self.db)
            return
        if check_regular(path) and not _is_gallery(path):
            raise UserError(f"{path} exists and is not a gallery; name another file or remove it")
        if not path.absolute().parent.is_dir():
            raise UserError(f"{path} cannot be written: there is no folder {path.parent}")
        scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with self._errors():
                self.db.execute("VACUUM INTO ?", [str(scratch)])
                with closing(_connect(scratch)) as copy:
                    self._store_index(copy)
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and let other processes open it."""
        for opened in (self._db, self._lock):
            if opened is not None:
                opened.close()
        self._db = self._lock = None

    def _compare_all(
        self, queries: np.ndarray, count: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        faiss = import_faiss()
        parameters = faiss.SearchParameters(sel=select_rows(allowed))
        found: tuple[np.ndarray, np.ndarray] = self._flat.search(queries, count, params=parameters)
        return found

    def _take(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of rows, in their order."""
        unique, positions = np.unique(rows, return_inverse=True)
        vectors: np.ndarray = self.fetch(unique).features[positions]
        return vectors

    def _blocks(self, first: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The vectors from a row on, with their rows, piece by piece."""
        found = self.db.execute("SELECT row, features FROM vectors WHERE row >= ? ORDER BY row", [first])
        while part := found.fetchmany(_BLOCK):
            vectors = np.frombuffer(b"".join(vector for _, vector in part), dtype=np.float32)
            yield vectors.reshape(len(part), -1), np.array([row for row, _ in part], dtype=np.int64)

    def _fill_flat(self) -> None:
        self._flat = None if self.dim is None else _make_flat(self.dim)  # a gallery may have been emptied
        for vectors, rows in self._blocks():
            self._flat.add_with_ids(vectors, rows)

    def _store_index(self, db: sqlite3.Connection) -> None:
        about = ""
        with db:
            db.execute("DELETE FROM parts")
            if self._cells is not None:
                with tempfile.TemporaryFile() as file:
                    self._cells.store(file)
                    file.seek(0)
                    parts = iter(partial(file.read, _PART), b"")
                    db.executemany("INSERT INTO parts VALUES (?, ?)", enumerate(parts))
                about = json.dumps({**asdict(self._cells.about), "next_row": self.next_row})
            self._set_about(db, index=about)

    def _set_about(self, db: sqlite3.Connection, **values: str) -> None:
        db.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", values.items())
        self._about.update(values)

    @contextmanager
    def _errors(self, *, changes: bool = False) -> Iterator[None]:
        """Turn an error of SQLite into a sentence; with `changes`, refuse a gallery that was loaded."""
        if changes and self._read_only:
            raise UserError(
                f"the gallery {self._path} was loaded to be searched; use Gallery.open to change it"
            )
        try:
            yield
        except sqlite3.Error as error:
            raise UserError(f"the gallery {self._path} cannot be read or written: {error}") from None


def _make_flat(dim: int) -> Any:
    faiss = import_faiss()
    return faiss.IndexIDMap2(faiss.IndexFlatIP(dim))


def _connect(path: Path | None, read_only: bool = False) -> sqlite3.Connection:
    """A database with our tables, which are made if it is new."""
    name = ""  # a temporary file of SQLite
    if path is not None:
        if read_only and not path.is_file():
            raise UserError(f"the gallery {path} cannot be read: there is no such file")
        # Also who only reads must be able to undo what a killed process left half written.
        name = f"file:{quote(str(path.absolute()))}?mode={'rw' if read_only else 'rwc'}"
    db = sqlite3.connect(name, timeout=60, uri=True, check_same_thread=False)
    # A change is on the disk when it is committed. Pages of 4 kB would hold one vector of 512 numbers each.
    try:
        db.executescript("PRAGMA synchronous = EXTRA; PRAGMA page_size = 65536;")
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (num_tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if "not a database" not in str(error):
            raise
        application, num_tables = -1, 0
    if not (application or num_tables or read_only):
        db.executescript(f"BEGIN; {TABLES} PRAGMA application_id = {APPLICATION}; COMMIT;")
    elif application != APPLICATION:
        raise UserError(f"{path} is not a gallery; name a file that Gallery.save or Gallery.open has written")
    return db


def _is_gallery(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(72)[68:] == APPLICATION.to_bytes(4, "big")


def _statement_parts(rows: np.ndarray) -> Iterator[str]:
    """Lists of numbers for statements, each of limited length."""
    for start in range(0, len(rows), _ROWS):
        yield f"({','.join(map(str, rows[start : start + _ROWS].tolist()))})"
