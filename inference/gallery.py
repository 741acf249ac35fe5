"""Search among descriptors: vectors with their identities, cameras and files, nearest first."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from engine.files import take_lock
from errors import UserError

UNKNOWN = -1
"""The identity or camera of an entry that has none."""

NO_PCA = "no-pca"
"""A part of the name of a model whose descriptors are not shortened."""

QUERIES_AT_ONCE = 256
SPARE = 16  # candidates beyond k, among which ties are settled
MOST_CANDIDATES = 16_384  # of a query, as Milvus allows
ROUNDING = 1e-5  # two engines' similarities of the same pair differ by less


@dataclass(frozen=True)
class Entries:
    """n vectors and what stands beside them."""

    features: np.ndarray  # (n, D) float32, each row of length 1
    ids: np.ndarray  # (n,) int64
    cameras: np.ndarray  # (n,) int64
    files: Sequence[str]  # n of them
    rows: np.ndarray  # (n,) int64: the numbers that `Gallery.add` gave them, ascending

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class CameraFilter:
    """Which cameras may be found; None for all."""

    only: frozenset[int] | None = None
    without: frozenset[int] = frozenset()

    def mask(self, cameras: np.ndarray) -> np.ndarray | None:
        """For each entry whether it may be found, (n,) booleans; None if all may."""
        if self.only is None and not self.without:
            return None
        allowed = np.ones(len(cameras), dtype=bool)
        if self.only is not None:
            allowed &= np.isin(cameras, list(self.only))
        return allowed & ~np.isin(cameras, list(self.without))


class Engine(Protocol):
    """What holds the vectors of a gallery."""

    @property
    def dim(self) -> int | None:
        """Numbers in a vector; None until the first is added."""

    @property
    def exact(self) -> bool:
        """Whether `candidates` finds all that are nearest."""

    @property
    def next_row(self) -> int:
        """The row of the next entry."""

    @property
    def unfinished(self) -> bool:
        """Whether filling was interrupted."""

    def mark_unfinished(self, unfinished: bool) -> None:
        """Set or remove the mark of a gallery that is being filled."""

    def __len__(self) -> int: ...

    def add(self, entries: Entries) -> None:
        """Take entries with rows from `next_row` on; afterwards they are durable, if there is a file."""

    def remove(self, rows: np.ndarray) -> int:
        """Forget these rows, as far as they are there; how many were."""

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The rows of the entries with one of these identities."""

    def candidates(
        self, queries: np.ndarray, count: int, cameras: CameraFilter
    ) -> tuple[np.ndarray, np.ndarray]:
        """For Q queries, up to `count` near entries.

        Returns:
            Similarities (Q, count), descending, and rows (Q, count), -1 where there are no more.
        """

    def fetch(self, rows: np.ndarray) -> Entries:
        """The entries of those rows, which are ascending, that are there."""

    def save(self, path: Path | None) -> None:
        """Make search quick, if there are many entries; with a path, write a copy there."""

    def close(self) -> None:
        """Let go of files and connections."""


@dataclass(frozen=True)
class Matches:
    """The k nearest entries of Q queries, nearest first; of equal ones the earlier row is first.

    Where fewer than k may be found, rows, ids and cameras end with -1, similarities with -inf, files with "".
    """

    similarities: np.ndarray  # (Q, k) float32: cosine
    rows: np.ndarray  # (Q, k) int64
    ids: np.ndarray  # (Q, k) int64
    cameras: np.ndarray  # (Q, k) int64
    files: np.ndarray  # (Q, k) str objects


class Gallery:
    """Vectors to search, in a file (FAISS), or in Milvus; the calls and the results are the same.

    Several threads may search at once; whoever adds, removes or saves must be alone.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        """Take what holds the vectors; without it, make a temporary gallery, which `save` copies."""
        if engine is None:
            from inference.gallery_faiss import FaissEngine

            engine = FaissEngine()
        self._engine = engine

    @classmethod
    def open(
        cls,
        address: str | os.PathLike[str] | None,
        *,
        model: str = "",
        exact_below: int = 100_000,
        target_recall: float = 0.99,
    ) -> Gallery:
        """Open a gallery, or make it; what `add` and `remove` have done when they return survives a crash.

        Args:
            address: a file for FAISS, such as `people.gallery`; a name that ends in `.db` for Milvus Lite;
                `http://host:19530` for a Milvus cluster; None for a temporary file of FAISS.
            model: names the model that made the features, for instance by its hash; a gallery of another
                model is refused.
            exact_below: FAISS only: with fewer entries, every search compares all of them; from here on
                `save` builds an index that looks at a part.
            target_recall: FAISS only: the share of the 10 nearest that the index has to find, measured when
                it is built; if none does, search stays exact, and the log says so.
        """
        if address is not None and is_milvus(address):
            from inference.gallery_milvus import MilvusEngine

            return cls(MilvusEngine(str(address), model))._checked(address)
        from inference.gallery_faiss import FaissEngine

        path = None if address is None else Path(address)
        engine = FaissEngine(path, model=model, exact_below=exact_below, target_recall=target_recall)
        return cls(engine)._checked(address)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: str = "") -> Gallery:
        """Open a file of FAISS to search it only; several processes may. `model` is as for `open`."""
        if is_milvus(path):
            raise UserError(f"{path} is a Milvus gallery, which is not loaded; use Gallery.open")
        from inference.gallery_faiss import FaissEngine

        return cls(FaissEngine(Path(path), model=model, read_only=True))._checked(path)

    def _checked(self, address: object) -> Gallery:
        """This gallery; one whose filling was interrupted is refused."""
        if self._engine.unfinished:
            self.close()
            raise UserError(
                f"the gallery {address} is not complete, because filling it was interrupted; remove it and "
                "build it again"
            )
        return self

    def __len__(self) -> int:
        return len(self._engine)

    def __enter__(self) -> Gallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """What holds the vectors."""
        return self._engine

    def add(
        self,
        features: Any,
        *,
        ids: Sequence[int | None] | np.ndarray | None = None,
        cameras: Sequence[int | None] | np.ndarray | None = None,
        files: Sequence[str | os.PathLike[str]] | None = None,
    ) -> np.ndarray:
        """Add n vectors.

        Args:
            features: (n, D), an array, or a tensor on any device; they are normalised.
            ids: n identities, each -1 or None if it is unknown; None if all are.
            cameras: n cameras, likewise.
            files: n names.

        Returns:
            Their rows, (n,): numbers that stay theirs, for `remove` and in `Matches.rows`.
        """
        vectors = _normalised(features, self._engine.dim)
        names = [""] * len(vectors) if files is None else [os.fspath(file) for file in files]
        labels = {
            "ids": _labels("ids", ids, len(vectors)),
            "cameras": _labels("cameras", cameras, len(vectors)),
        }
        if len(names) != len(vectors):
            raise UserError(f"there are {len(vectors)} features and {len(names)} files; give one for each")
        start = self._engine.next_row
        rows = np.arange(start, start + len(vectors), dtype=np.int64)
        if len(rows):
            self._engine.add(Entries(vectors, **labels, files=names, rows=rows))
        return rows

    def remove(
        self, *, rows: Sequence[int] | np.ndarray | None = None, ids: Sequence[int] | np.ndarray | None = None
    ) -> int:
        """Remove entries by row, or all those of some identities; how many there were."""
        if (rows is None) == (ids is None):
            raise UserError("name what to remove, either by rows or by ids")
        if rows is None:
            rows = self._engine.find(np.unique(np.asarray(ids, dtype=np.int64)))
        chosen = np.unique(np.asarray(rows, dtype=np.int64))
        return self._engine.remove(chosen) if len(chosen) else 0

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Refuse to open this gallery again until the block has ended without an error."""
        self._engine.mark_unfinished(True)
        yield
        self._engine.mark_unfinished(False)

    def search(
        self,
        features: Any,
        k: int = 10,
        *,
        camera: int | Collection[int] | None = None,
        without: int | Collection[int] | None = None,
        query_cameras: Sequence[int | None] | np.ndarray | None = None,
        query_ids: Sequence[int | None] | np.ndarray | None = None,
    ) -> Matches:
        """Find the k entries with the largest cosine similarity to each of Q queries.

        Args:
            features: (Q, D), or (D,) for one query; they are normalised.
            k: how many.
            camera: find entries of this camera, or of these, only.
            without: find none of this camera, or of these.
            query_cameras: Q cameras; a query finds no entry of its own camera. Unknown cameras (-1 or
                None) exclude nothing.
            query_ids: with `query_cameras`, Q identities: a query finds no entry of its own identity *and*
                camera, which is the usual protocol of evaluation.
        """
        if not 1 <= k <= MOST_CANDIDATES - SPARE:
            raise UserError(f"k is {k}; it must be 1 to {MOST_CANDIDATES - SPARE}")
        if query_ids is not None and query_cameras is None:
            raise UserError("query_ids exclude entries together with query_cameras; give both")
        queries = _normalised(np.atleast_2d(_to_array(features)), self._engine.dim)
        own_cameras = _labels("query_cameras", query_cameras, len(queries))
        own_ids = _labels("query_ids", query_ids, len(queries))
        only = None if camera is None else _camera_set(camera)
        never = frozenset() if without is None else _camera_set(without)

        # Without identities, queries of one camera have one filter.
        matches = _no_matches(len(queries), k)
        whole_camera = query_ids is None
        for own in np.unique(own_cameras) if whole_camera else [UNKNOWN]:
            left_out = never if own == UNKNOWN else never | {int(own)}
            members = np.flatnonzero(own_cameras == own) if whole_camera else np.arange(len(queries))
            for start in range(0, len(members), QUERIES_AT_ONCE):
                part = members[start : start + QUERIES_AT_ONCE]
                cameras = CameraFilter(only, left_out)
                for query, entries, similarities in self._nearest(
                    queries, part, k, cameras, own_ids, own_cameras
                ):
                    _fill(matches, query, entries, similarities)
        return matches

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Build an index if the gallery is large, and store it.

        Args:
            path: write a copy of everything there, whole or not at all; None for the gallery that was opened.
                Milvus has its own place and takes none.
        """
        self._engine.save(None if path is None else Path(path))

    def close(self) -> None:
        """Let go of files and connections; an opened gallery is durable without `save`."""
        self._engine.close()

    def _nearest(
        self,
        queries: np.ndarray,
        members: np.ndarray,
        k: int,
        cameras: CameraFilter,
        own_ids: np.ndarray,
        own_cameras: np.ndarray,
    ) -> Iterator[tuple[int, Entries, np.ndarray]]:
        """For each of the queries `members`, the nearest entries with their similarities, nearest first.

        The engine gives candidates with similarities that are rounded its own way. They are computed again in
        double precision, and more candidates are asked for as long as the next ones could be as near.
        """
        count = k + SPARE
        while len(members) and self._engine.dim is not None:
            count = min(count, MOST_CANDIDATES)
            rough, rows = self._engine.candidates(queries[members], count, cameras)
            found = self._engine.fetch(np.unique(rows[rows >= 0]))
            unsettled = []
            for query, scores, own_rows in zip(members, rough, rows, strict=True):
                there = np.isin(own_rows, found.rows)  # another process may have removed some
                at = np.searchsorted(found.rows, own_rows[there])
                same = (found.cameras[at] == own_cameras[query]) & (found.ids[at] == own_ids[query])
                keep = ~(same & (own_ids[query] != UNKNOWN) & (own_cameras[query] != UNKNOWN))
                at, kept = at[keep], scores[there][keep]
                settled = len(kept) >= k and (not self._engine.exact or kept[k - 1] - scores[-1] > ROUNDING)
                if not settled and (own_rows >= 0).all() and count < MOST_CANDIDATES:
                    unsettled.append(query)
                    continue
                similarities = (found.features[at] @ queries[query].astype(np.float64)).astype(np.float32)
                order = np.lexsort((found.rows[at], -similarities))[:k]
                yield int(query), _take(found, at[order]), similarities[order]
            members = np.array(unsettled, dtype=np.int64)
            count *= 4


def is_milvus(address: str | os.PathLike[str]) -> bool:
    """Whether an address is that of a Milvus database."""
    return re.match(r"[a-z]+://", str(address)) is not None or str(address).endswith(".db")


def lock_gallery(path: Path) -> IO[bytes]:
    """Keep others from opening a local gallery, as long as the result is open."""
    lock = take_lock(path.with_name(f".{path.name}.lock"))
    if lock is None:
        raise UserError(f"the gallery {path} is open already, here or in another process; close it there")
    return lock


def check_model(wanted: str, found: str, address: object) -> None:
    """Refuse a gallery of another model; an empty name is that of any. Names are those of `name_model`."""
    if wanted and found and wanted != found:
        remedy = "take that model, or another gallery"
        if NO_PCA in wanted and NO_PCA not in found:
            remedy = "give the PCA that shortened them, with --pca or pca=…"
        raise UserError(f"the gallery {address} has features of the model {found}, not of {wanted}; {remedy}")


def _take(entries: Entries, at: np.ndarray) -> Entries:
    files = [entries.files[index] for index in at]
    return Entries(
        entries.features[at], entries.ids[at], entries.cameras[at], files=files, rows=entries.rows[at]
    )


def _no_matches(num_queries: int, k: int) -> Matches:
    shape = (num_queries, k)
    rows, ids, cameras = (np.full(shape, UNKNOWN, dtype=np.int64) for _ in range(3))
    similarities = np.full(shape, -np.inf, dtype=np.float32)
    return Matches(similarities, rows, ids, cameras, np.full(shape, "", dtype=object))


def _fill(matches: Matches, query: int, entries: Entries, similarities: np.ndarray) -> None:
    count = len(entries)
    matches.similarities[query, :count] = similarities
    matches.rows[query, :count] = entries.rows
    matches.ids[query, :count] = entries.ids
    matches.cameras[query, :count] = entries.cameras
    matches.files[query, :count] = entries.files


def _to_array(features: Any) -> np.ndarray:
    """The features as float32; a tensor may be of any type, on any device, and part of a graph."""
    if hasattr(features, "detach"):
        features = features.detach().cpu().float()
    return np.asarray(features, dtype=np.float32)


def _normalised(features: Any, dim: int | None) -> np.ndarray:
    """The features as rows of length 1, (n, D) float32; what cannot be compared is refused."""
    vectors = _to_array(features)
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise UserError(f"features have the shape {vectors.shape}; give (n, D)")
    if dim is not None and vectors.shape[1] != dim:
        raise UserError(f"features have {vectors.shape[1]} numbers, and those of this gallery have {dim}")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        raise UserError(
            f"row {wrong[0]} of the features is zero or not finite, as of an image that could not be read "
            f"({len(wrong)} such rows); leave it out"
        )
    return np.ascontiguousarray(vectors / lengths)


def _labels(name: str, values: Sequence[int | None] | np.ndarray | None, count: int) -> np.ndarray:
    """The labels, (count,) int64, with UNKNOWN for None; what is no integer is refused."""
    labels = np.full(count, UNKNOWN, dtype=np.int64) if values is None else np.asarray(values)
    if labels.dtype == object:
        labels = np.asarray([UNKNOWN if label is None else label for label in labels.tolist()])
    if labels.shape != (count,) or not (np.issubdtype(labels.dtype, np.integer) or count == 0):
        raise UserError(
            f"{name} have the shape {labels.shape} and type {labels.dtype}; give {count} integers"
        )
    return labels.astype(np.int64)


def _camera_set(cameras: int | Collection[int]) -> frozenset[int]:
    return frozenset(map(int, [cameras] if isinstance(cameras, (int, np.integer)) else cameras))
