from __future__ import annotations

import numpy as np
import pytest

from evaluation import ranking as module
from evaluation.distances import GivenDistances, SquaredEuclidean
from evaluation.rank_lists import nearest
from evaluation.ranking import Retrieval, rank, rank_positives, score_queries, score_retrieval
from structures import RankingMetrics


def rank_line(
    gallery_positions: list[float], gallery_ids: list[int], gallery_cameras: list[int]
) -> RankingMetrics:
    """Rank a gallery on a line for one query of person 7, camera 0, at position 0."""
    return rank(
        np.zeros((1, 1), dtype=np.float32),
        np.array(gallery_positions, dtype=np.float32)[:, None],
        np.array([7]),
        np.array(gallery_ids),
        np.array([0]),
        np.array(gallery_cameras),
    )


def rank_distances(distances: np.ndarray, *labels: np.ndarray) -> RankingMetrics:
    return score_retrieval(Retrieval(GivenDistances(distances), *labels))


def naive_scores(
    query: np.ndarray,
    gallery: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    query_groups: np.ndarray,
    gallery_groups: np.ndarray,
) -> tuple[list[float], list[float], list[int], list[float]]:
    """The definition, item by item: for each query AP, INP and the rank of the first hit; and CMC."""
    average_precisions: list[float] = []
    penalties: list[float] = []
    first_ranks: list[int] = []
    for feature, person, group in zip(query, query_ids, query_groups, strict=True):
        items = [
            (float(((feature - gallery[j]) ** 2).sum()), j)
            for j in range(len(gallery))
            if not (gallery_ids[j] == person and gallery_groups[j] == group)
        ]
        hit_ranks = [k for k, (_, j) in enumerate(sorted(items), start=1) if gallery_ids[j] == person]
        nan = float("nan")
        average_precisions.append(
            sum(n / k for n, k in enumerate(hit_ranks, 1)) / len(hit_ranks) if hit_ranks else nan
        )
        penalties.append(len(hit_ranks) / hit_ranks[-1] if hit_ranks else nan)
        first_ranks.append(hit_ranks[0] if hit_ranks else 0)
    length = min(50, len(gallery))
    scored = [first for first in first_ranks if first]
    cmc = [sum(first <= k for first in scored) / len(scored) for k in range(1, length + 1)]
    return average_precisions, penalties, first_ranks, cmc


def test_scores_worked_by_hand() -> None:
    """Query 0 has positives at ranks 2 and 3, query 1 has none, query 2 has one at rank 1."""
    distances = np.array([[0.2, 0.1, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    ids, groups = (np.array([7, 6, 5]), np.array([7, 9, 7, 5])), (np.zeros(3), np.ones(4))
    metrics = rank_distances(distances, *ids, *groups)
    assert metrics.average_precisions.tolist() == pytest.approx([(1 / 2 + 2 / 3) / 2, np.nan, 1], nan_ok=True)
    assert metrics.inverse_negative_penalties.tolist() == pytest.approx([2 / 3, np.nan, 1], nan_ok=True)
    assert metrics.first_hits.tolist() == [2, 0, 1]
    assert metrics.cmc.tolist() == [0.5, 1, 1, 1]
    assert (metrics.num_queries, metrics.num_skipped) == (2, 1)


def test_miss_hit_hit() -> None:
    metrics = rank_line([1.0, 2.0, 3.0], gallery_ids=[5, 7, 7], gallery_cameras=[1, 1, 1])
    assert metrics.mean_ap == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert metrics.cmc.tolist() == [0.0, 1.0, 1.0]
    assert (metrics.num_queries, metrics.num_skipped) == (1, 0)


def test_mean_inp_asks_how_deep_the_last_positive_lies() -> None:
    # Ranks 1 and 2, then 1 and 4: two positives each. The dropped twin at 1.5 does not count.
    near = rank_line([1.0, 1.5, 2.0, 3.0, 4.0], [7, 7, 7, 5, 5], gallery_cameras=[1, 0, 1, 1, 1])
    deep = rank_line([1.0, 1.5, 2.0, 3.0, 4.0], [7, 7, 5, 5, 7], gallery_cameras=[1, 0, 1, 1, 1])
    assert (near.mean_inp, deep.mean_inp) == (1.0, 0.5)
    assert near.first_hits.tolist() == deep.first_hits.tolist() == [1]
    assert deep.as_dict() == pytest.approx(
        {"mAP": 75, "mINP": 50, "rank_1": 100, "rank_5": 100, "rank_10": 100, "queries": 1, "skipped": 0}
    )


def test_same_person_and_camera_are_dropped_before_ranks_are_counted() -> None:
    # Nearest first: itself and a twin shot (both dropped), another person of the same camera (kept), a hit.
    metrics = rank_line([0.0, 1.0, 2.0, 3.0], gallery_ids=[7, 7, 5, 7], gallery_cameras=[0, 0, 0, 1])
    assert metrics.mean_ap == pytest.approx(1 / 2)
    assert metrics.cmc.tolist() == [0.0, 1.0, 1.0, 1.0]


def test_ties_keep_the_order_of_the_gallery() -> None:
    miss_first = rank_line([1.0, -1.0], gallery_ids=[5, 7], gallery_cameras=[1, 1])
    hit_first = rank_line([1.0, -1.0], gallery_ids=[7, 5], gallery_cameras=[1, 1])
    assert (miss_first.mean_ap, hit_first.mean_ap) == (0.5, 1.0)


def test_equal_features_tie_exactly() -> None:
    """All gallery features are equal, so that every query must see the gallery in its own order.

    Whether a matrix product rounds equal rows alike depends on the shapes and the machine: hence many shapes.
    """
    generator = np.random.default_rng(0)
    for _ in range(40):
        num_queries, num_gallery, dim = generator.integers((1, 2, 1), (70, 400, 700))
        query = generator.standard_normal((num_queries, dim)).astype(np.float32)
        gallery = np.tile(generator.standard_normal((1, dim)), (num_gallery, 1)).astype(np.float32)
        index = generator.integers(num_gallery)
        metrics = rank(
            query,
            gallery,
            query_ids=np.full(num_queries, 7),
            gallery_ids=np.where(np.arange(num_gallery) == index, 7, 5),
            query_groups=np.zeros(num_queries),
            gallery_groups=np.ones(num_gallery),
        )
        assert metrics.mean_ap == pytest.approx(1 / (index + 1), rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_the_definition_on_random_inputs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    num_queries, num_gallery = generator.integers(5, 40), generator.integers(3, 90)
    # Small whole numbers: exact distances and many ties.
    query = generator.integers(-2, 3, (num_queries, 3)).astype(np.float32)
    gallery = generator.integers(-2, 3, (num_gallery, 3)).astype(np.float32)
    query_ids, gallery_ids = generator.integers(0, 6, num_queries), generator.integers(0, 6, num_gallery)
    query_cameras, gallery_cameras = (
        generator.integers(0, 3, num_queries),
        generator.integers(0, 3, num_gallery),
    )
    labels = (query_ids, gallery_ids, query_cameras, gallery_cameras)

    metrics = rank(query, gallery, *labels)
    average_precisions, penalties, first_hits, cmc = naive_scores(query, gallery, *labels)
    np.testing.assert_allclose(metrics.average_precisions, average_precisions, atol=1e-12)
    np.testing.assert_allclose(metrics.inverse_negative_penalties, penalties, atol=1e-12)
    assert metrics.first_hits.tolist() == first_hits
    assert metrics.mean_ap == pytest.approx(np.nanmean(average_precisions), abs=1e-12)
    assert metrics.mean_inp == pytest.approx(np.nanmean(penalties), abs=1e-12)
    np.testing.assert_allclose(metrics.cmc, cmc, atol=1e-12)
    assert metrics.num_skipped == first_hits.count(0)
    assert metrics.num_queries == num_queries - metrics.num_skipped

    # Any distances in the same order give the same scores.
    distances = np.square(query[:, None] - gallery[None]).sum(axis=2) - 7
    by_distances = rank_distances(distances, *labels)
    np.testing.assert_array_equal(by_distances.average_precisions, metrics.average_precisions)
    np.testing.assert_array_equal(by_distances.cmc, metrics.cmc)


def retrieval_with_ties(seed: int) -> Retrieval:
    """Features with duplicates or given distances with ties; queries of which some have no positive."""
    generator = np.random.default_rng(seed)
    num_queries, num_gallery = generator.integers((1, 2), (40, 300))
    num_ids, num_groups = generator.integers((1, 1), (12, 4))
    distances: SquaredEuclidean | GivenDistances
    if seed % 3 == 0:
        distances = GivenDistances(
            generator.integers(0, generator.integers(2, 300), (num_queries, num_gallery)).astype(np.float32)
        )
    else:
        pool = generator.standard_normal((num_gallery if seed % 3 == 1 else 1 + num_gallery // 3, 17))
        rows = generator.integers(0, len(pool), num_gallery) if seed % 3 == 2 else slice(None)
        query = generator.standard_normal((num_queries, 17))
        distances = SquaredEuclidean(query.astype(np.float32), pool[rows].astype(np.float32))
    return Retrieval(
        distances,
        generator.integers(0, num_ids + 1, num_queries),
        generator.integers(0, num_ids, num_gallery),
        generator.integers(0, num_groups, num_queries),
        generator.integers(0, num_groups, num_gallery),
    )


def sorted_in_full(retrieval: Retrieval, query: int, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The plain way, a stable sort of all items: the kept ones, nearest first, and which are positives."""
    order = np.argsort(row, kind="stable")
    same_id = retrieval.gallery_ids[order] == retrieval.query_ids[query]
    same_group = retrieval.gallery_groups[order] == retrieval.query_groups[query]
    kept = ~(same_id & same_group)
    return order[kept], same_id[kept]


@pytest.mark.parametrize("seed", range(60))
def test_ranks_are_those_of_a_full_stable_sort(seed: int) -> None:
    retrieval = retrieval_with_ties(seed)
    matrix = retrieval.distances.of(slice(0, len(retrieval.query_ids)))
    lists = nearest(retrieval, 10)
    scores = score_queries(retrieval)
    (chunk,) = retrieval.ranked_chunks()
    for query, row in enumerate(matrix):
        order, positive = sorted_in_full(retrieval, query, row)
        ranks, own = 1 + np.flatnonzero(positive), slice(*chunk.bounds[query : query + 2])
        assert chunk.ranks[own].tolist() == ranks.tolist()
        assert chunk.positives[own].tolist() == order[positive].tolist()
        assert lists.items[query].tolist() == [*order[:10], *[-1] * (10 - len(order))]
        if len(ranks):
            average_precision = np.mean(np.arange(1, 1 + len(ranks)) / ranks)
            assert scores.average_precisions[query] == pytest.approx(average_precision, rel=1e-12)
            assert scores.inverse_negative_penalties[query] == len(ranks) / ranks[-1]
        assert scores.first_hits[query] == (ranks[0] if len(ranks) else 0)


def test_positives_worked_by_hand() -> None:
    """Query 0: item 2 is nearest, then 0 and 3 tie, and 1 is dropped. Query 1 has no positive."""
    distances = np.array([[5.0, np.inf, 1.0, 5.0], [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    chunk = rank_positives(distances, np.array([0, 0, 2, 2]), np.array([2, 3, 1, 3]))
    assert chunk.bounds.tolist() == [0, 2, 2, 4]
    assert chunk.positives.tolist() == [2, 3, 1, 3]
    assert chunk.ranks.tolist() == [1, 3, 2, 4]


@pytest.mark.parametrize("seed", range(3))
def test_float32_features_score_as_in_float64(seed: int) -> None:
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((20, 256))
    ids = generator.integers(0, 20, 400)
    features = centres[ids] + 4 * generator.standard_normal((400, 256))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = (ids[:100], ids, np.zeros(100), generator.integers(0, 3, 400))
    exact = rank(features[:100], features, *labels)
    single = rank(features[:100].astype(np.float32), features.astype(np.float32), *labels)
    assert 0.1 < exact.mean_ap < 0.9
    assert single.mean_ap == pytest.approx(exact.mean_ap, abs=1e-5)
    np.testing.assert_allclose(single.cmc, exact.cmc, atol=1e-5)


def test_a_large_gallery_is_ranked_for_few_queries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    retrieval = retrieval_with_ties(9)
    num_queries, num_gallery = retrieval.distances.shape
    whole = score_queries(retrieval)
    sizes = []
    make_rows = retrieval.distances.of

    def counted(queries: slice) -> np.ndarray:
        rows = make_rows(queries)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(retrieval.distances, "of", counted)
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * num_gallery * 4)
    for name, found in vars(score_queries(retrieval)).items():
        np.testing.assert_array_equal(found, getattr(whole, name))
    assert max(sizes) == 4 < num_queries == sum(sizes)


def test_queries_without_a_positive_are_skipped_and_counted() -> None:
    # The second query's person is in the gallery under its own camera only, the third's not at all.
    features = np.array([[0.0], [1.0], [2.0]])
    metrics = rank(
        features, features, np.array([1, 2, 3]), np.array([1, 2, 9]), np.array([0, 0, 0]), np.array([1, 0, 0])
    )
    assert (metrics.num_queries, metrics.num_skipped) == (1, 2)
    assert (metrics.mean_ap, metrics.mean_inp) == (1.0, 1.0)
    assert metrics.first_hits.tolist() == [1, 0, 0]
    assert np.isnan(metrics.average_precisions).tolist() == [False, True, True]
    assert np.isnan(metrics.inverse_negative_penalties).tolist() == [False, True, True]


def test_cmc_length() -> None:
    positions, ids = [float(position) for position in range(60)], [7] * 60
    assert len(rank_line(positions, ids, [1] * 60).cmc) == 50
    assert len(rank_line(positions[:8], ids[:8], [1] * 8).cmc) == 8


def test_impossible_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the 1 queries can be scored"):
        rank_line([0.0, 1.0], gallery_ids=[7, 5], gallery_cameras=[0, 1])
    with pytest.raises(ValueError, match="the gallery is empty"):
        rank_line([], [], [])
    with pytest.raises(ValueError, match="1 of 2 gallery features contain NaN"):
        rank_line([0.0, float("nan")], gallery_ids=[7, 7], gallery_cameras=[1, 1])
    with pytest.raises(ValueError, match="the gallery has 2 features, 1 identities"):
        rank_line([0.0, 1.0], gallery_ids=[7], gallery_cameras=[1, 1])
    one = np.ones(1)
    with pytest.raises(ValueError, match="the query is empty"):
        rank(np.ones((0, 1)), np.ones((1, 1)), np.ones(0), one, np.ones(0), one)
    with pytest.raises(ValueError, match="2 dimensions and gallery features 3"):
        rank(np.ones((1, 2)), np.ones((1, 3)), one, one, one, 2 * one)
    with pytest.raises(ValueError, match="1 of 2 distances are NaN"):
        rank_distances(np.array([[0.0, float("nan")]]), one, np.ones(2), one, np.ones(2))
    with pytest.raises(ValueError, match="the query has 2 distances, 1 identities"):
        rank_distances(np.ones((2, 1)), one, one, one, one)
    with pytest.raises(ValueError, match="the gallery is empty"):
        rank_distances(np.ones((1, 0)), one, np.ones(0), one, np.ones(0))
