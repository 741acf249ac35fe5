"""The distances between queries and gallery items, made for a few queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

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
        """Prepare the distances of (Q, D) to (G, D); a UserError if they cannot be compared."""
        check_features(query_features, gallery_features)
        self._query, self._gallery = query_features, gallery_features
        self.shape = len(query_features), len(gallery_features)
        self._gallery_norms = _squared_norms(gallery_features)  # (G,)
        self._repeated, self._first = _repeated_rows(gallery_features)
        is_small = 8 * gallery_features.size <= COPY_BYTES
        self._copy = self._widened(slice(None)) if is_small else None

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
            distances[:, self._repeated] = distances[:, self._first]
        return distances

    def _widened(self, rows: slice) -> np.ndarray:
        """Some gallery features in float64, then their squared norm and a 1: (G', D + 2)."""
        features = self._gallery[rows]
        return np.column_stack([features, self._gallery_norms[rows], np.ones(len(features))])

    def in_gallery(self, items: np.ndarray) -> SquaredEuclidean:
        """The distances to some of the gallery items, given by their indices."""
        return SquaredEuclidean(self._query, self._gallery[items])

    @staticmethod
    def to_report(distances: np.ndarray) -> np.ndarray:
        """What a reader wants to see: the Euclidean distances."""
        return np.sqrt(np.maximum(distances, 0))  # rounding may leave a little less than 0


class GivenDistances:
    """Distances that were computed before, such as those of re-ranking."""

    unit = "distances"

    def __init__(self, matrix: np.ndarray) -> None:
        """Take the distances, (Q, G); a UserError if they cannot be ranked."""
        for side, count in zip(("query", "gallery"), matrix.shape, strict=True):
            if count == 0:
                raise UserError(f"the {side} is empty; there is nothing to rank")
        num_broken = matrix.size - np.count_nonzero(np.isfinite(matrix))
        if num_broken:
            raise UserError(
                f"{num_broken} of {matrix.size} distances are NaN or infinite; they cannot be ranked"
            )
        self._matrix = matrix.astype(np.result_type(matrix, np.float32), copy=False)
        self.shape = len(matrix), matrix.shape[1]

    def of(self, queries: slice) -> np.ndarray:
        """The distances of some queries to all gallery items, (Q', G), a new array."""
        return self._matrix[queries].copy()

    def in_gallery(self, items: np.ndarray) -> GivenDistances:
        """The distances to some of the gallery items, given by their indices."""
        return GivenDistances(self._matrix[:, items])

    @staticmethod
    def to_report(distances: np.ndarray) -> np.ndarray:
        """What a reader wants to see: the distances as they were given."""
        return distances


def rows_at_once(row_length: int, most: int) -> int:
    """How many float64 rows of this length may be held at once: at most `most`, and within CHUNK_BYTES."""
    return max(1, min(most, CHUNK_BYTES // (8 * row_length)))


def nearest_indices(distances: np.ndarray, top: int) -> np.ndarray:
    """The indices of the `top` smallest finite distances of (G,), or of all; equal ones by index."""
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

    A matrix product may round equal rows differently, depending on where they lie in memory. Reading the
    distance of the first of them makes equal features tie exactly, on every machine.
    """
    seen: dict[bytes, int] = {}
    digests = (blake2b(row.tobytes(), digest_size=16).digest() for row in features)
    first = np.array([seen.setdefault(digest, row) for row, digest in enumerate(digests)])
    repeated = np.flatnonzero(first < np.arange(len(features)))
    return repeated, first[repeated]
