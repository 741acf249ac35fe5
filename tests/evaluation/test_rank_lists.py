from __future__ import annotations

import numpy as np
import pytest

from evaluation.distances import GivenDistances, SquaredEuclidean
from evaluation.rank_lists import nearest
from evaluation.ranking import Retrieval, score_retrieval


def test_a_list_worked_by_hand() -> None:
    """Query 0 is person 7 of camera 0, query 1 person 8, who has no positive."""
    query = np.array([[0.0, 0.0], [0.0, 4.0]])
    gallery = np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0], [6.0, 8.0]])
    labels = (np.array([7, 8]), np.array([7, 7, 5, 7]), np.array([0, 0]), np.array([1, 0, 0, 1]))
    lists = nearest(Retrieval(SquaredEuclidean(query, gallery), *labels), top=2)
    assert lists.items.tolist() == [[2, 0], [2, 0]]
    assert lists.distances == pytest.approx(np.array([[2.0, 5.0], [2.0, 3.0]]))
    assert lists.positive_ranks.tolist() == [2, 0]
    assert lists.positives.tolist() == [0, -1]
    assert lists.positive_distances == pytest.approx(np.array([5.0, np.nan]), nan_ok=True)

    longer = nearest(Retrieval(SquaredEuclidean(query, gallery), *labels), top=5)
    assert longer.items.tolist() == [[2, 0, 3, -1, -1], [2, 0, 1, 3, -1]]  # 0 and 1 are both 3 away
    assert np.isnan(longer.distances).tolist() == (longer.items < 0).tolist()
    renamed = longer.with_rows(np.array([40, 41, 42, 43]))
    assert renamed.items.tolist() == [[42, 40, 43, -1, -1], [42, 40, 41, 43, -1]]
    assert renamed.positives.tolist() == [40, -1]


def test_given_distances_are_listed_as_they_are() -> None:
    labels = (np.array([7]), np.array([5, 7, 5]), np.array([0]), np.array([1, 1, 1]))
    lists = nearest(Retrieval(GivenDistances(np.array([[0.5, 0.75, 0.25]])), *labels), top=1)
    assert (lists.items.tolist(), lists.distances.tolist()) == ([[2]], [[0.25]])
    assert (lists.positive_ranks.item(), lists.positives.item(), lists.positive_distances.item()) == (
        3,
        1,
        0.75,
    )


@pytest.mark.parametrize("seed", range(10))
def test_lists_hold_what_the_rule_keeps_nearest_first(seed: int) -> None:
    generator = np.random.default_rng(seed)
    num_queries, num_gallery, top = 11, int(generator.integers(2, 30)), int(generator.integers(1, 40))
    query, gallery = generator.standard_normal((num_queries, 3)), generator.standard_normal((num_gallery, 3))
    query_ids, gallery_ids = generator.integers(0, 4, num_queries), generator.integers(0, 4, num_gallery)
    query_groups, gallery_groups = (
        generator.integers(0, 2, num_queries),
        generator.integers(0, 2, num_gallery),
    )
    distances = SquaredEuclidean(query, gallery)
    retrieval = Retrieval(distances, query_ids, gallery_ids, query_groups, gallery_groups)
    lists = nearest(retrieval, top)
    assert lists.positive_ranks.tolist() == score_retrieval(retrieval).first_hits.tolist()
    for i in range(num_queries):
        dropped = (gallery_ids == query_ids[i]) & (gallery_groups == query_groups[i])
        true = np.linalg.norm(gallery - query[i], axis=1)
        wanted = [j for j in np.argsort(true).tolist() if not dropped[j]]
        kept = min(top, len(wanted))
        assert lists.items[i].tolist() == wanted[:kept] + [-1] * (top - kept)
        np.testing.assert_allclose(lists.distances[i, :kept], true[wanted[:kept]], atol=1e-9)
        positives = [j for j in wanted if gallery_ids[j] == query_ids[i]]
        assert lists.positives[i] == (positives[0] if positives else -1)
        if positives:
            assert lists.positive_distances[i] == pytest.approx(true[positives[0]])
            assert wanted[lists.positive_ranks[i] - 1] == positives[0]
