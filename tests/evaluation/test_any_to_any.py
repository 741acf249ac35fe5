"""Any-to-any retrieval, worked by hand on tiny features."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import make_triples
from errors import UserError
from evaluation.any_to_any import AnyToAny, compared_parts, expected_ap, score_any_to_any
from evaluation.distances import GivenDistances
from evaluation.ranking import score_retrieval
from evaluation.result import EncodedSamples, EvaluationResult, ScoringOptions
from evaluation.tables import any_to_any_table
from structures import Modality, PerModality

RGB, NI, TI = Modality
X, Y = [1.0, 0.0], [0.0, 1.0]


def make_result(
    parts: dict[Modality, list[list[float]]], present: PerModality[list[bool]] | None = None
) -> EvaluationResult:
    """People 0 0 1 1, each seen by two cameras; (4, 2) features of each modality."""
    modalities = tuple(parts)
    there = PerModality.build(
        lambda m: np.full(4, m in modalities) if present is None else np.array(present.of(m))
    )
    samples = EncodedSamples(
        features={1: torch.cat([torch.tensor(rows) for rows in parts.values()], dim=1)},
        person_ids=np.array([0, 0, 1, 1]),
        camera_ids=np.array([0, 1, 0, 1]),
        scene_ids=np.zeros(4, dtype=np.int64),
        names=(),
        triples=replace(make_triples([], query=range(4), gallery=range(4)), modalities=modalities),
        scoring=ScoringOptions(),
        present=there,
        parts=modalities,
    )
    return EvaluationResult({1: score_retrieval(samples.retrieval(1))}, samples, seconds=0.0)


GOOD = [X, X, Y, Y]
SWAPPED = [X, Y, X, Y]  # tells cameras apart, not people


def score(result: EvaluationResult) -> AnyToAny:
    return score_any_to_any({"complete": result})


def test_features_that_are_compared_by_hand() -> None:
    parts: dict[Modality, Tensor] = {
        RGB: torch.tensor([[3.0, 0.0]]),
        NI: torch.tensor([[0.0, 4.0]]),
        TI: torch.tensor([[0.0, 2.0]]),
    }
    both = compared_parts(parts, (RGB, NI), common=(RGB, NI))
    torch.testing.assert_close(both, torch.tensor([[0.6, 0.0, 0.0, 0.8]]))  # as return pattern 1 without TI
    assert compared_parts(parts, (RGB, TI), common=(RGB,)).tolist() == [X]
    # No common part: the mean of (1, 0) and (0, 1), at length 1.
    mean = compared_parts(parts, (RGB, TI), common=())
    torch.testing.assert_close(mean, torch.tensor([[0.5**0.5, 0.5**0.5]]))
    raw = compared_parts(parts, (RGB, TI), common=(), normalise=False)
    assert raw.tolist() == [[1.5, 1.0]]


def test_matrix_of_two_modalities_by_hand() -> None:
    """RGB tells people apart, TI tells cameras apart, and X of one means X of the other.

    A query of camera 0 has three items that are not dropped: its positive of camera 1 and the other person.
    RGB: the positive is first, AP 1. TI: the other person of the same camera is first; the positive and the
    other person's second image tie, and the order of the gallery decides. For queries 0 and 1 the positive
    comes before it (rank 2), for 2 and 3 after it (rank 3): AP 1/2, 1/2, 1/3, 1/3.
    """
    matrix = score(make_result({RGB: GOOD, TI: SWAPPED}))
    assert matrix.sides == ((RGB,), (TI,), (RGB, TI))
    cells = {sides: metrics and metrics.mean_ap for sides, metrics in matrix.cells.items()}
    assert cells[(RGB,), (RGB,)] == cells[(RGB,), (RGB, TI)] == cells[(RGB, TI), (RGB,)] == 1.0
    assert (
        cells[(TI,), (TI,)] == cells[(TI,), (RGB, TI)] == pytest.approx(np.mean([1 / 2, 1 / 2, 1 / 3, 1 / 3]))
    )
    # RGB → TI: X is found in rows 0 and 2, Y in 1 and 3. Query 0 (X) does not see itself: 2 first, then 1
    # and 3 tie, and 1 is the positive: rank 2. Query 1 (X): its positive 0 and 2 tie: rank 1. Query 2 (Y):
    # 1 and 3 tie, 1 comes first: rank 2. Query 3 (Y): 1 first, then 0 and 2 tie: rank 3.
    assert cells[(RGB,), (TI,)] == pytest.approx(np.mean([1 / 2, 1, 1 / 2, 1 / 3]))
    mean_ap, _, count = matrix.mean(cross_modality=True)
    assert count == 2
    assert mean_ap == pytest.approx((cells[(RGB,), (TI,)] + cells[(TI,), (RGB,)]) / 2)  # type: ignore[operator]
    assert matrix.mean(cross_modality=False)[2] == 9


def test_three_modalities_have_49_cells_and_12_without_a_common_one() -> None:
    rng = np.random.default_rng(0)
    result = make_result({m: rng.normal(size=(4, 2)).tolist() for m in Modality})
    matrix = score(result)
    assert len(matrix.cells) == 49
    assert [matrix.mean(cross_modality=cross)[2] for cross in (False, True)] == [49, 12]
    complete = matrix.cells[tuple(Modality), tuple(Modality)]
    assert complete is not None
    assert complete.mean_ap == result.main.mean_ap, "the last cell is return pattern 1"
    content = matrix.as_dict()
    assert content["cross_modality_mean"]["cells"] == 12
    assert content["cells"][1]["query"] == ["RGB"]
    assert content["cells"][1]["gallery"] == ["NI"]
    lines = any_to_any_table(matrix).splitlines()
    assert len(lines) == 2 + 7 + 3
    assert lines[2].startswith("RGB ")
    assert lines[2].count("*") == 3  # against NI, TI and NI + TI
    assert lines[-2].startswith("mean of 12 cells (the marked, which share no modality): mAP")
    assert lines[-1] == "chance (the whole gallery in random order): mAP 61.1"  # 11/18, one of three items
    assert content["chance"] == {"mAP": pytest.approx(100 * 11 / 18)}


def test_expected_ap_by_hand() -> None:
    """One item; one of three: (1 + 1/2 + 1/3) / 3; two of three: at ranks 12, 13, 23; all of four."""
    found = expected_ap(np.array([1, 3, 3, 4]), np.array([1, 1, 2, 4]))
    two_of_three = np.mean([(1 + 1) / 2, (1 + 2 / 3) / 2, (1 / 2 + 2 / 3) / 2])
    assert found == pytest.approx([1, 11 / 18, two_of_three, 1])


@pytest.mark.parametrize("protocol", ["camera", "none"])
def test_chance_is_the_mean_of_random_features(protocol: str) -> None:
    """People and cameras in unequal numbers, one without a positive; queries are some of the triples."""
    rng = np.random.default_rng(0)
    person_ids = np.array([0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3])
    camera_ids = np.array([0, 0, 1, 0, 1, 1, 2, 2, 0, 0, 1])
    triples = make_triples([], query=[0, 2, 3, 4, 7, 8, 9], gallery=range(1, 11), protocol=protocol)
    samples = EncodedSamples(
        features={1: torch.zeros(11, 2)},
        person_ids=person_ids,
        camera_ids=camera_ids,
        scene_ids=np.zeros(11, dtype=np.int64),
        names=(),
        triples=triples,
        scoring=ScoringOptions(normalise=False),
        present=PerModality.build(lambda _: np.ones(11, dtype=bool)),
    )
    result = EvaluationResult({1: score_retrieval(samples.retrieval(1))}, samples, seconds=0.0)
    drawn = []
    for _ in range(4000):
        distances = GivenDistances(rng.random((7, 10), dtype=np.float32))
        drawn.append(score_retrieval(replace(samples.retrieval(1), distances=distances)).mean_ap)
    error = np.std(drawn) / len(drawn) ** 0.5
    chance = AnyToAny((), {}, {"complete": result}).chance
    assert chance == pytest.approx(np.mean(drawn), abs=4 * error)
    assert error < 0.003


def test_cells_use_the_triples_that_have_their_images() -> None:
    """The second image of person 0 has no TI: nobody finds it there, and its positive has none to find."""
    present = PerModality([True] * 4, [False] * 4, [True, False, True, True])
    result = make_result({RGB: GOOD, TI: GOOD}, present)
    matrix = score(result)
    thermal, colour = matrix.cells[(TI,), (TI,)], matrix.cells[(RGB,), (RGB,)]
    assert thermal is not None
    assert colour is not None
    assert (thermal.num_queries, thermal.num_skipped) == (2, 2)
    assert colour.num_queries == 4
    lists = matrix.rank_lists((RGB,), (TI,), top=4)
    assert 1 not in lists.items
    assert lists.positives.tolist() == [-1, 0, 3, 2]


def test_a_gallery_that_lacks_a_modality_of_the_queries() -> None:
    """A daylight query against a thermal gallery: one cell has a score, and nothing is empty but said."""
    present = PerModality([True, False, True, False], [False] * 4, [False, True, False, True])
    result = make_result({RGB: GOOD, TI: GOOD}, present)
    triples = make_triples([], query=[0, 2], gallery=[1, 3])
    samples = replace(result.samples, triples=replace(triples, modalities=(RGB, TI)))
    matrix = score(replace(result, samples=samples))
    found = {sides: metrics.mean_ap for sides, metrics in matrix.cells.items() if metrics is not None}
    assert found == {((RGB,), (TI,)): 1.0}


def test_parts_of_each_condition_where_modalities_guide_each_other() -> None:
    complete = make_result({RGB: GOOD, TI: GOOD})
    alone = make_result({RGB: SWAPPED, TI: GOOD})  # what a model might make of RGB without TI
    matrix = score_any_to_any({"complete": complete, "r": complete, "t": alone})
    expected = score(make_result({RGB: SWAPPED, TI: SWAPPED}))
    for cells, sides in ((matrix, ((RGB,), (RGB,))), (expected, ((RGB,), (RGB,)))):
        found = cells.cells[sides]
        assert found is not None
        assert found.mean_ap == pytest.approx(np.mean([1 / 2, 1 / 2, 1 / 3, 1 / 3]))
    both = matrix.cells[(RGB, TI), (RGB, TI)]
    assert both is not None
    assert both.mean_ap == 1.0


def test_a_model_without_parts_is_refused() -> None:
    result = make_result({RGB: GOOD, TI: GOOD})
    fused = replace(result, samples=replace(result.samples, parts=()))
    with pytest.raises(UserError, match="compares the original features of each modality"):
        score(fused)


def test_equal_cells_are_ranked_once() -> None:
    matrix = score(make_result(dict.fromkeys(Modality, GOOD)))
    assert len({id(metrics) for metrics in matrix.cells.values()}) == 7 + 12
    for query, gallery in product(matrix.sides, matrix.sides):
        if common := tuple(m for m in query if m in gallery):
            assert matrix.cells[query, gallery] is matrix.cells[common, common]
