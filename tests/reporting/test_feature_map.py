import numpy as np
import pytest

from reporting.feature_map import embed_in_plane


def test_neighbours_stay_neighbours() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 100))
    labels = np.repeat(np.arange(4), 12)
    points = embed_in_plane(centres[labels] + 0.05 * rng.normal(size=(48, 100)))
    assert points.shape == (48, 2)
    assert points.min() == 0
    assert points.max() == 1
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(axis=1)] == labels).all()


def test_the_same_seed_gives_the_same_map() -> None:
    features = np.random.default_rng(1).normal(size=(20, 8))
    np.testing.assert_array_equal(embed_in_plane(features), embed_in_plane(features))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_few_samples(count: int) -> None:
    points = embed_in_plane(np.eye(count, 6))
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()


def test_equal_features() -> None:
    points = embed_in_plane(np.ones((10, 6)))
    assert np.isfinite(points).all()
