from __future__ import annotations

import numpy as np
import pytest

from evaluation.breakdown import break_down
from evaluation.distances import GivenDistances, SquaredEuclidean
from evaluation.ranking import Retrieval, score_retrieval

QUERY_IDS, QUERY_CAMERAS = np.array([7, 7, 5, 9]), np.array([0, 1, 0, 0])
GALLERY_IDS, GALLERY_CAMERAS = np.array([5, 7, 7, 5, 7]), np.array([1, 1, 0, 2, 2])
POSITIONS = np.array([1.0, 2.0, 3.0, 4.0, 5.0])[:, None]


def test_a_breakdown_worked_by_hand() -> None:
    """Every query lies at 0, so that the gallery is ranked in its own order.

    Person 7, camera 0: drops item 2; left 5 7 5 7, AP (1/2 + 2/4) / 2. Person 7, camera 1: drops item 1; left
    5 7 5 7, the same. Person 5, camera 0: right at 1 and 4, AP (1 + 2/4) / 2. Person 9: nothing.
    """
    distances = SquaredEuclidean(np.zeros((4, 1)), POSITIONS)
    retrieval = Retrieval(distances, QUERY_IDS, GALLERY_IDS, QUERY_CAMERAS, GALLERY_CAMERAS)
    found = break_down(retrieval, score_retrieval(retrieval), QUERY_CAMERAS, GALLERY_CAMERAS)
    assert found == {
        "identities": [
            {"person": 5, "queries": 1, "mAP": 75.0, "rank_1": 100.0},
            {"person": 7, "queries": 2, "mAP": 50.0, "rank_1": 0.0},
        ],
        # In camera 0 is only item 2, in camera 1 stand 5 7, in camera 2 stand 5 7.
        "camera_pairs": [
            {"query": 0, "gallery": 1, "queries": 2, "mAP": 75.0, "rank_1": 50.0},
            {"query": 0, "gallery": 2, "queries": 2, "mAP": 75.0, "rank_1": 50.0},
            {"query": 1, "gallery": 0, "queries": 1, "mAP": 100.0, "rank_1": 100.0},
            {"query": 1, "gallery": 2, "queries": 1, "mAP": 50.0, "rank_1": 0.0},
        ],
    }


def test_groups_of_the_protocol_and_cameras_are_two_things() -> None:
    """With another group for every item nothing is dropped, and a camera can be searched by itself."""
    distances = GivenDistances(np.tile(POSITIONS.T, (4, 1)))
    retrieval = Retrieval(distances, QUERY_IDS, GALLERY_IDS, np.arange(4), 10 + np.arange(5))
    pairs = break_down(retrieval, score_retrieval(retrieval), QUERY_CAMERAS, GALLERY_CAMERAS)
    scores = {(pair["query"], pair["gallery"]): pair["mAP"] for pair in pairs["camera_pairs"]}
    assert scores == {(0, 0): 100, (0, 1): 75, (0, 2): 75, (1, 0): 100, (1, 1): 50, (1, 2): 50}


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_make_up_the_whole(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ids, cameras = generator.integers(0, 5, 40), generator.integers(0, 3, 40)
    features = generator.standard_normal((40, 3))
    retrieval = Retrieval(SquaredEuclidean(features, features), ids, ids, cameras, cameras)
    metrics = score_retrieval(retrieval)
    found = break_down(retrieval, metrics, cameras, cameras)
    columns = {name: np.array([row[name] for row in found["identities"]]) for name in found["identities"][0]}
    queries = columns["queries"]
    assert queries.sum() == metrics.num_queries
    assert queries @ columns["mAP"] / queries.sum() == pytest.approx(100 * metrics.mean_ap)
    assert queries @ columns["rank_1"] / queries.sum() == pytest.approx(100 * metrics.rank(1))
    assert all(pair["query"] != pair["gallery"] for pair in found["camera_pairs"])
