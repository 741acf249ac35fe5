from __future__ import annotations

import numpy as np
import pytest

from evaluation import distances as module
from evaluation.distances import GivenDistances, SquaredEuclidean, nearest_indices, rows_at_once


@pytest.mark.parametrize("seed", range(30))
def test_nearest_indices_are_the_first_of_a_stable_sort(seed: int) -> None:
    generator = np.random.default_rng(seed)
    distances = generator.integers(0, generator.integers(1, 12), generator.integers(1, 60)).astype(np.float32)
    distances[generator.random(len(distances)) < 0.3] = np.inf  # as dropped items are
    order = np.argsort(distances, kind="stable")[: np.isfinite(distances).sum()]
    for top in (0, 1, 2, 7, 60, 100):
        assert nearest_indices(distances, top).tolist() == order[:top].tolist()


def test_a_large_gallery_stays_in_float32_and_is_converted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    query = generator.standard_normal((9, 5)).astype(np.float32)
    gallery = generator.standard_normal((50, 5)).astype(np.float32)
    gallery[40:] = gallery[3]  # the first of them is in another block
    whole = SquaredEuclidean(query, gallery).of(slice(0, 9))
    np.testing.assert_allclose(
        whole, np.square(query[:, None].astype(float) - gallery).sum(axis=2), atol=1e-13
    )

    monkeypatch.setattr(module, "COPY_BYTES", 0)
    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 5 * 7)
    in_blocks = SquaredEuclidean(query, gallery)
    assert in_blocks._gallery is gallery
    assert in_blocks._copy is None
    np.testing.assert_allclose(in_blocks.of(slice(2, 6)), whole[2:6], atol=1e-13)
    assert (in_blocks.of(slice(0, 9))[:, 40:] == in_blocks.of(slice(0, 9))[:, [3]]).all()
    gallery[45] = np.nan
    with pytest.raises(ValueError, match="1 of 50 gallery features contain NaN"):
        SquaredEuclidean(query, gallery)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_repeated_rows_are_found_and_no_others(dtype: str) -> None:
    rows = np.array([[1, 2], [2, 1], [1, 2], [0, 3], [2, 1], [1, 2], [3, 0]], dtype=dtype)
    repeated, first = module._repeated_rows(rows)
    assert (repeated.tolist(), first.tolist()) == ([2, 4, 5], [0, 1, 0])
    repeated, first = module._repeated_rows(rows[:2])
    assert (repeated.tolist(), first.tolist()) == ([], [])


def test_memory_bounds_the_rows_at_once() -> None:
    assert rows_at_once(15_000, 256) == 256
    assert rows_at_once(2**20, 256) == module.CHUNK_BYTES // 2**23 == 64
    assert rows_at_once(2**40, 256) == 1


def test_what_is_given_is_not_written_to() -> None:
    matrix = np.array([[1, 2], [3, 4]])
    distances = GivenDistances(matrix)
    rows = distances.of(slice(1, 2))
    rows[:] = np.inf
    assert matrix.tolist() == distances.of(slice(0, 2)).tolist() == [[1, 2], [3, 4]]
