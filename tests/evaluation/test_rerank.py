from __future__ import annotations

import numpy as np
import pytest

from evaluation.rerank import rerank


def plain_rerank(query: np.ndarray, gallery: np.ndarray, k1: int, k2: int, weight: float) -> np.ndarray:
    """The definition, item by item, on features whose distances are exact."""
    features = np.concatenate([query, gallery]).astype(np.float64)
    distances = np.square(features[:, None] - features[None]).sum(axis=2)
    distances /= np.maximum(distances.max(axis=1, keepdims=True), 1e-300)
    size = len(features)
    nearest = [sorted(range(size), key=lambda j, i=i: (distances[i, j], j)) for i in range(size)]  # type: ignore[misc]

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in nearest[i][: k + 1] if i in nearest[j][: k + 1]}

    weights = np.zeros((size, size), dtype=np.float16)
    for i in range(size):
        own = reciprocal(i, k1)
        members = set(own)
        for j in own:
            other = reciprocal(j, round(k1 / 2))
            if 3 * len(own & other) > 2 * len(other):
                members |= other
        if members:
            places = sorted(members)
            values = np.exp(-distances[i, places])
            weights[i, places] = values / values.sum()
    if k2 > 1:
        exact = weights.astype(np.float64)
        weights = np.array([exact[nearest[i][:k2]].mean(axis=0) for i in range(size)]).astype(np.float16)

    result = np.zeros((len(query), len(gallery)))
    for i in range(len(query)):
        for j in range(len(gallery)):
            shared = np.float16(0)
            for left, right in zip(weights[i], weights[len(query) + j], strict=True):
                shared += min(left, right)
            # A plain 1 or 2 would make it double precision in NumPy 1.
            jaccard = np.float16(1) - shared / (np.float16(2) - shared)
            result[i, j] = jaccard * np.float16(1 - weight) + weight * distances[i, len(query) + j]
    return result


@pytest.mark.parametrize(("k1", "k2"), [(1, 1), (4, 1), (5, 3), (7, 20), (10, 2), (100, 6), (3, 100)])
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_the_definition(seed: int, k1: int, k2: int) -> None:
    generator = np.random.default_rng(seed)
    num_queries, num_gallery = generator.integers(2, 9), generator.integers(5, 19)
    # Small whole numbers: exact distances, many ties, and features that occur more than once.
    query = generator.integers(-2, 3, (num_queries, 2)).astype(np.float32)
    gallery = generator.integers(-2, 3, (num_gallery, 2)).astype(np.float32)
    weight = float(generator.uniform())
    found = rerank(query, gallery, k1=k1, k2=k2, weight=weight)
    np.testing.assert_allclose(found, plain_rerank(query, gallery, k1, k2, weight), atol=1e-9)


def test_many_equal_features_may_leave_a_set_empty() -> None:
    """The last of eight equal features is not among its own two nearest, which are the first two."""
    query, gallery = np.zeros((3, 2)), np.array([[0.0, 0.0]] * 5 + [[1.0, 0.0]])
    found = rerank(query, gallery, k1=1, k2=1, weight=0.5)
    np.testing.assert_allclose(found, plain_rerank(query, gallery, 1, 1, 0.5), atol=1e-9)
    assert found[0, 0] == 0.5  # the sets of the first and the fourth share nothing
    assert np.isfinite(rerank(query, np.zeros((4, 2)), k1=3, k2=2)).all()


def test_weight_1_keeps_the_order_and_weight_0_lets_shared_neighbours_decide() -> None:
    # On a line: the query at 0 is nearer to the lone item at -1 than to the group around 1.5.
    query = np.array([[0.0]])
    gallery = np.array([[-1.0], [1.2], [1.4], [1.5], [1.6], [-9.0], [-9.1], [-9.2]])
    plain = rerank(query, gallery, k1=3, k2=1, weight=1.0)
    np.testing.assert_allclose(plain[0], np.square(gallery[:, 0]) / 9.2**2, atol=1e-12)
    found = rerank(query, gallery, k1=3, k2=1, weight=0.0)
    np.testing.assert_allclose(found, plain_rerank(query, gallery, 3, 1, 0.0), atol=1e-3)
    assert found[0, 5] == 1.0, "nothing is shared with the far group"
    assert found[0, 0] < 1.0


def test_order_of_the_gallery_does_not_matter() -> None:
    generator = np.random.default_rng(5)
    query, gallery = generator.standard_normal((6, 4)), generator.standard_normal((30, 4))
    order = generator.permutation(30)
    found = rerank(query, gallery, k1=8, k2=4)
    np.testing.assert_allclose(rerank(query, gallery[order], k1=8, k2=4), found[:, order], atol=2e-3)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(6)
    # Small whole numbers, so that the size of a matrix product does not change its rounding.
    query, gallery = generator.integers(-9, 10, (20, 5)), generator.integers(-9, 10, (90, 5))
    whole = rerank(query.astype(np.float32), gallery.astype(np.float32), k1=12, k2=4)
    for chunk_size in (1, 13, 20, 109):
        monkeypatch.setattr("evaluation.rerank.CHUNK_SIZE", chunk_size)
        found = rerank(query.astype(np.float32), gallery.astype(np.float32), k1=12, k2=4)
        np.testing.assert_array_equal(found, whole)


def test_what_cannot_be_re_ranked_is_refused() -> None:
    features = np.ones((2, 3))
    with pytest.raises(ValueError, match="1 of 1 query features contain NaN"):
        rerank(np.full((1, 3), np.nan), features)
    with pytest.raises(ValueError, match="the gallery is empty"):
        rerank(features, np.ones((0, 3)))
    with pytest.raises(ValueError, match="3 dimensions and gallery features 2"):
        rerank(features, np.ones((2, 2)))
    for settings in ({"k1": 0}, {"k2": 0}, {"weight": 1.5}, {"weight": float("nan")}):
        with pytest.raises(ValueError, match="re-ranking needs k1 and k2 of 1 or more"):
            rerank(features, features, **settings)
