from __future__ import annotations

import numpy as np
import pytest

from evaluation import distances as module
from evaluation.distances import GivenDistances, SquaredEuclidean, nearest_indices


@pytest.mark.parametrize("seed", range(30))
def test_nearest_indices_are_the_first_of_a_stable_sort(seed: int) -> None:
    generator = np.random.default_rng(seed)
    distances = generator.integers(0, generator.integers(1, 12), generator.integers(1, 60)).astype(np.float32)
    distances[generator.random(len(distances)) < 0.3] = np.inf  # as dropped items are
    order = np.argsort(distances, kind="stable")[: np.isfinite(distances).sum()]
    for top in (0, 1, 2, 7, 60, 100):
        assert nearest_indices(distances, top).tolist() == order[:top].tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
def test_distances_have_the_precision_of_the_features(dtype: str, tolerance: float) -> None:
    generator = np.random.default_rng(0)
    query, gallery = generator.standard_normal((9, 5)), generator.standard_normal((50, 5))
    distances = SquaredEuclidean(query.astype(dtype), gallery.astype(dtype))
    rows = distances.of(slice(2, 6))
    assert rows.dtype == dtype
    true = np.square(query[2:6, None] - gallery).sum(axis=2)
    np.testing.assert_allclose(rows + np.square(query[2:6]).sum(axis=1)[:, None], true, atol=tolerance)
    np.testing.assert_allclose(distances.between(3, np.array([7, 0])), np.sqrt(true[1, [7, 0]]), rtol=1e-6)


def test_equal_gallery_features_have_equal_distances() -> None:
    generator = np.random.default_rng(0)
    query = generator.standard_normal((9, 700)).astype(np.float32)
    gallery = generator.standard_normal((50, 700)).astype(np.float32)
    gallery[40:] = gallery[3]
    rows = SquaredEuclidean(query, gallery).of(slice(0, 9))
    assert (rows[:, 40:] == rows[:, [3]]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_counted(value: float) -> None:
    gallery = np.zeros((50, 5), dtype=np.float32)
    gallery[[4, 45], [0, 3]] = value
    with pytest.raises(ValueError, match="2 of 50 gallery features contain NaN"):
        SquaredEuclidean(gallery[:2], gallery)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_repeated_rows_are_found_and_no_others(dtype: str) -> None:
    rows = np.array([[1, 2], [2, 1], [1, 2], [0, 3], [2, 1], [1, 2], [3, 0]], dtype=dtype)
    repeated, first = module._repeated_rows(rows)
    assert (repeated.tolist(), first.tolist()) == ([2, 4, 5], [0, 1, 0])
    repeated, first = module._repeated_rows(rows[:2])
    assert (repeated.tolist(), first.tolist()) == ([], [])


def test_what_is_given_is_not_written_to() -> None:
    matrix = np.array([[1, 2], [3, 4]])
    distances = GivenDistances(matrix)
    rows = distances.of(slice(1, 2))
    rows[:] = np.inf
    assert matrix.tolist() == distances.of(slice(0, 2)).tolist() == [[1, 2], [3, 4]]
