"""The distances between queries and gallery items, made for a few queries at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from structures import UserError

CHUNK_SIZE = 64  # queries at once, unless CHUNK_BYTES asks for fewer
CHUNK_BYTES = 2**29  # of the distances that a thread holds at once
BLOCK_BYTES = 2**25  # of the features that are converted at once
COPY_BYTES = 2**28  # up to this size a float64 copy of the gallery is held


class SquaredEuclidean:
    """Squared Euclidean distances between features, in float64.

    The whole matrix is never held: `of` makes the rows that are asked for. A large gallery in float32 stays
    as it is, and is converted block by block.
    """

    unit = "features"

    def __init__(self, query_features: np.ndarray, gallery_features: np.ndarray) -> None:
        """Prepare the distances.

        Args:
            query_features: (Q, D).
            gallery_features: (G, D).

        Raises:
            UserError: if a side is empty, a feature is not finite or the dimensions differ.
        """
        check_features(query_features, gallery_features)
        self._query, self._gallery = query_features, gallery_features
        self._gallery_norms = _squared_norms(gallery_features)  # (G,)
        self._repeated, self._first = _repeated_rows(gallery_features)
        is_small = 8 * gallery_features.size <= COPY_BYTES
        self._copy = self._widened(slice(None)) if is_small else None

    @property
    def shape(self) -> tuple[int, int]:
        """The number of queries and of gallery items."""
        return len(self._query), len(self._gallery)

    def of(self, queries: slice) -> np.ndarray:
        """The squared distances of some queries to all gallery items, (Q', G), a new array."""
        query = self._query[queries].astype(np.float64, copy=False)
        # |q - g|^2 as one product, (-2q, 1, |q|^2) with (g, |g|^2, 1): the norms cost no pass of their own.
        query = np.column_stack([-2 * query, np.ones(len(query)), _squared_norms(query)])
        if self._copy is not None:
            distances = query @ self._copy.T
        else:
            distances = np.empty((len(query), len(self._gallery)))
            for block in _blocks(self._gallery):
                np.matmul(query, self._widened(block).T, out=distances[:, block])
        if len(self._repeated):
            for row in distances:
                row[self._repeated] = row[self._first]
        return distances

    def _widened(self, rows: slice) -> np.ndarray:
        """Some gallery features in float64, with their squared norm and a 1 behind: (G', D + 2)."""
        features = self._gallery[rows]
        return np.column_stack([features, self._gallery_norms[rows], np.ones(len(features))])

    def in_gallery(self, places: np.ndarray) -> SquaredEuclidean:
        """The distances to some of the gallery items, given by their places."""
        return SquaredEuclidean(self._query, self._gallery[places])

    @staticmethod
    def to_report(distances: np.ndarray) -> np.ndarray:
        """What a reader wants to see: the Euclidean distances."""
        return np.sqrt(np.maximum(distances, 0))  # rounding may leave a little less than 0


class GivenDistances:
    """Distances that were computed before, such as those of re-ranking."""

    unit = "distances"

    def __init__(self, matrix: np.ndarray) -> None:
        """Take the distances.

        Args:
            matrix: (Q, G).

        Raises:
            UserError: if it is empty or holds a value that is not finite.
        """
        for side, count in zip(("query", "gallery"), matrix.shape, strict=True):
            if count == 0:
                raise UserError(f"the {side} is empty; there is nothing to rank")
        num_broken = matrix.size - np.count_nonzero(np.isfinite(matrix))
        if num_broken:
            raise UserError(
                f"{num_broken} of {matrix.size} distances are NaN or infinite; they cannot be ranked"
            )
        self._matrix = matrix.astype(np.result_type(matrix, np.float32), copy=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of queries and of gallery items."""
        num_queries, num_gallery = self._matrix.shape
        return num_queries, num_gallery

    def of(self, queries: slice) -> np.ndarray:
        """The distances of some queries to all gallery items, (Q', G), a new array."""
        return self._matrix[queries].copy()

    def in_gallery(self, places: np.ndarray) -> GivenDistances:
        """The distances to some of the gallery items, given by their places."""
        return GivenDistances(self._matrix[:, places])

    @staticmethod
    def to_report(distances: np.ndarray) -> np.ndarray:
        """What a reader wants to see: the distances as they were given."""
        return distances


def rows_at_once(row_length: int, most: int) -> int:
    """How many float64 rows of this length may be held at once: at most `most`, and within CHUNK_BYTES."""
    return max(1, min(most, CHUNK_BYTES // (8 * row_length)))


def nearest_places(distances: np.ndarray, top: int) -> np.ndarray:
    """The `top` smallest of the finite distances (G,), or all of them, by distance and then by place."""
    top = min(top, len(distances))
    limit = min(np.partition(distances, top - 1)[top - 1], np.finfo(distances.dtype).max)
    candidates = np.flatnonzero(distances <= limit)  # more than `top` if some tie with the last
    return candidates[np.argsort(distances[candidates], kind="stable")[:top]]


def check_features(query_features: np.ndarray, gallery_features: np.ndarray) -> None:
    """Raise a UserError if the features of two sides, (Q, D) and (G, D), cannot be compared."""
    _check_side("query", query_features)
    _check_side("gallery", gallery_features)
    if query_features.shape[1] != gallery_features.shape[1]:
        raise UserError(
            f"query features have {query_features.shape[1]} dimensions and gallery features "
            f"{gallery_features.shape[1]}; they must come from the same model and return pattern"
        )


def _check_side(side: str, features: np.ndarray) -> None:
    """Raise a UserError that names the side if there are no features, or some are not finite."""
    if len(features) == 0:
        raise UserError(f"the {side} is empty; there is nothing to rank")
    num_broken = sum(int((~np.isfinite(features[block]).all(axis=1)).sum()) for block in _blocks(features))
    if num_broken:
        raise UserError(
            f"{num_broken} of {len(features)} {side} features contain NaN or infinity; the model has "
            "diverged or its weights are damaged"
        )


def _blocks(features: np.ndarray) -> Iterator[slice]:
    """Parts of the rows (G, D) that need little memory in float64."""
    size = max(1, BLOCK_BYTES // (8 * max(1, features.shape[1])))
    return (slice(start, start + size) for start in range(0, len(features), size))


def _squared_norms(features: np.ndarray) -> np.ndarray:
    """The squared norm of each row, (G, D) to (G,), in float64."""
    parts = [
        np.square(features[block].astype(np.float64, copy=False)).sum(axis=1) for block in _blocks(features)
    ]
    return np.concatenate(parts)


def _repeated_rows(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows (G, D) that are equal to an earlier one, and for each of them the first row equal to it.

    A matrix product may round equal rows differently, by their place in memory. Reading the distance of the
    first of them makes equal features tie exactly, on every machine.
    """
    hashes = np.concatenate([_hashes(features[block]) for block in _blocks(features)])
    _, groups, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    first: dict[bytes, int] = {}
    pairs = [
        (row, first.setdefault(features[row].tobytes(), row))
        for row in np.flatnonzero(sizes[groups] > 1).tolist()  # only these can be equal to another
    ]
    repeated = np.array([pair for pair in pairs if pair[0] != pair[1]], dtype=np.int64).reshape(-1, 2)
    return repeated[:, 0], repeated[:, 1]


def _hashes(features: np.ndarray) -> np.ndarray:
    """A number for each row, (G, D) to (G,); equal rows have equal numbers, others hardly ever."""
    words = np.ascontiguousarray(features, dtype=np.float64).view(np.uint64)
    factors = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64)
    return words @ factors
