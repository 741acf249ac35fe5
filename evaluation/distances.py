"""The distances between queries and gallery items, made for a few queries at a time."""

from __future__ import annotations

import numpy as np

from structures import UserError


class SquaredEuclidean:
    """Squared Euclidean distances between features, in float64.

    The whole matrix is never held: `of` makes the rows that are asked for.
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
        self._query, self._gallery = checked_features(query_features, gallery_features)
        self._query_norms = np.square(self._query).sum(axis=1)  # (Q,)
        self._gallery_norms = np.square(self._gallery).sum(axis=1)  # (G,)
        self._twins = _first_equal_row(self._gallery)  # (G,)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of queries and of gallery items."""
        return len(self._query), len(self._gallery)

    def of(self, queries: slice) -> np.ndarray:
        """The squared distances of some queries to all gallery items, (Q', G)."""
        products = self._query[queries] @ self._gallery.T
        distances = self._query_norms[queries, None] + (self._gallery_norms - 2 * products)
        return np.take(distances, self._twins, axis=1)

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
        num_broken = int((~np.isfinite(matrix)).sum())
        if num_broken:
            raise UserError(
                f"{num_broken} of {matrix.size} distances are NaN or infinite; they cannot be ranked"
            )
        self._matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        """The number of queries and of gallery items."""
        num_queries, num_gallery = self._matrix.shape
        return num_queries, num_gallery

    def of(self, queries: slice) -> np.ndarray:
        """The distances of some queries to all gallery items, (Q', G)."""
        return self._matrix[queries]

    def in_gallery(self, places: np.ndarray) -> GivenDistances:
        """The distances to some of the gallery items, given by their places."""
        return GivenDistances(self._matrix[:, places])

    @staticmethod
    def to_report(distances: np.ndarray) -> np.ndarray:
        """What a reader wants to see: the distances as they were given."""
        return distances


def checked_features(
    query_features: np.ndarray, gallery_features: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Features of two sides, (Q, D) and (G, D), in float64, or a UserError if they cannot be compared."""
    query, gallery = _checked_side("query", query_features), _checked_side("gallery", gallery_features)
    if query.shape[1] != gallery.shape[1]:
        raise UserError(
            f"query features have {query.shape[1]} dimensions and gallery features {gallery.shape[1]}; "
            "they must come from the same model and return pattern"
        )
    return query, gallery


def _checked_side(side: str, features: np.ndarray) -> np.ndarray:
    """The features in float64, or a UserError that names the side."""
    if len(features) == 0:
        raise UserError(f"the {side} is empty; there is nothing to rank")
    num_broken = int((~np.isfinite(features).all(axis=1)).sum())
    if num_broken:
        raise UserError(
            f"{num_broken} of {len(features)} {side} features contain NaN or infinity; the model has "
            "diverged or its weights are damaged"
        )
    return features.astype(np.float64, copy=False)


def _first_equal_row(features: np.ndarray) -> np.ndarray:
    """For each row (G, D) the index of the first row equal to it, shape (G,).

    A matrix product may round equal rows differently, by their place in memory. Reading the distance of the
    first of them makes equal features tie exactly, on every machine.
    """
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(row.tobytes(), index) for index, row in enumerate(features)])
