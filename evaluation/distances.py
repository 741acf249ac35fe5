"""The distances between queries and gallery items, made for some queries at a time."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from errors import UserError


class SquaredEuclidean:
    """Squared Euclidean distances between features, in the features' own precision.

    The whole matrix is never held: `of` makes the rows that are asked for.
    """

    unit = "features"

    def __init__(self, query_features: np.ndarray, gallery_features: np.ndarray) -> None:
        """Prepare the distances of (Q, D) to (G, D); a UserError if they cannot be compared."""
        check_features(query_features, gallery_features)
        precision = np.result_type(query_features, gallery_features, np.float32)
        self._query = query_features.astype(precision, copy=False)
        self._gallery = gallery_features.astype(precision, copy=False)
        self.shape = len(query_features), len(gallery_features)
        self._norms = np.einsum("gd,gd->g", self._gallery, self._gallery)
        self._repeated, self._first = _repeated_rows(self._gallery)

    def of(self, queries: slice) -> np.ndarray:
        """|g|^2 - 2 qg for some queries and all gallery items, (Q', G), a new array.

        The squared distance less |q|^2: the order is the same, and the small differences near 0 keep their
        digits.
        """
        distances = self._query[queries] @ self._gallery.T
        distances *= -2
        distances += self._norms
        distances[:, self._repeated] = distances[:, self._first]
        return distances

    def between(self, query: int, items: np.ndarray) -> np.ndarray:
        """The Euclidean distances between a query and some gallery items, to be shown."""
        return np.linalg.norm(self._gallery[items] - self._query[query], axis=1)

    def in_gallery(self, items: np.ndarray) -> SquaredEuclidean:
        """The distances to some of the gallery items, given by their indices."""
        return SquaredEuclidean(self._query, self._gallery[items])


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

    def between(self, query: int, items: np.ndarray) -> np.ndarray:
        """The distances between a query and some gallery items, to be shown."""
        return self._matrix[query, items]

    def in_gallery(self, items: np.ndarray) -> GivenDistances:
        """The distances to some of the gallery items, given by their indices."""
        return GivenDistances(self._matrix[:, items])


def nearest_indices(distances: np.ndarray, top: int) -> np.ndarray:
    """The indices of the `top` smallest finite distances of (G,), or of all; equal ones by index."""
    top = min(top, len(distances))
    limit = min(np.partition(distances, top - 1)[top - 1], np.finfo(distances.dtype).max)
    candidates = np.flatnonzero(distances <= limit)  # more than `top` if some tie with the last
    return candidates[np.argsort(distances[candidates], kind="stable")[:top]]


def check_features(query_features: np.ndarray, gallery_features: np.ndarray) -> None:
    """Raise a UserError if the features of two sides, (Q, D) and (G, D), cannot be compared."""
    for side, features in (("query", query_features), ("gallery", gallery_features)):
        if len(features) == 0:
            raise UserError(f"the {side} is empty; there is nothing to rank")
        finite = np.isfinite(features.min(axis=1)) & np.isfinite(features.max(axis=1))
        if not finite.all():
            raise UserError(
                f"{(~finite).sum()} of {len(features)} {side} features contain NaN or infinity; the model "
                "has diverged or its weights are damaged"
            )
    if query_features.shape[1] != gallery_features.shape[1]:
        raise UserError(
            f"query features have {query_features.shape[1]} dimensions and gallery features "
            f"{gallery_features.shape[1]}; they must come from the same model and return pattern"
        )


def _repeated_rows(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows (G, D) that are equal to an earlier one, and for each of them the first row equal to it.

    A matrix product may round equal rows differently, depending on where they lie in memory. Reading the
    distance of the first of them makes equal features tie exactly, on every machine.
    """
    _, groups, sizes = np.unique(features[:, 0], return_inverse=True, return_counts=True)
    candidates = np.flatnonzero(sizes[groups] > 1)  # only these can be equal to another
    seen: dict[bytes, int] = {}
    first = np.empty_like(candidates)
    for number, row in enumerate(candidates.tolist()):
        first[number] = seen.setdefault(blake2b(features[row].tobytes(), digest_size=16).digest(), row)
    repeated = first < candidates
    return candidates[repeated], first[repeated]
