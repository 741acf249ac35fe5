"""The bootstrap, by numbers worked by hand and by how often its intervals hold what they should."""

import numpy as np
import pytest

from studies import bootstrap
from studies.bootstrap import Difference, paired_bootstrap, seed_stretch


def test_one_seed_and_two_queries_by_hand() -> None:
    """Differences 0 and 1: a resample has the mean 0, 1/2 or 1 in 1/4, 1/2 and 1/4 of the draws."""
    found = paired_bootstrap(np.array([[3.0, 5.0]]), np.array([[3.0, 4.0]]))
    assert found == Difference(estimate=0.5, low=0.0, high=1.0, num_seeds=1, num_queries=2)


def test_many_queries_of_one_seed_give_the_normal_interval() -> None:
    """Half of 400 differences is 1, half -1: the mean has the standard error 1 / sqrt(400)."""
    differences = np.tile([1.0, -1.0], 200)[None]
    found = paired_bootstrap(differences, np.zeros((1, 400)))
    assert (found.low, found.high) == pytest.approx((-1.96 / 20, 1.96 / 20), abs=0.006)


def test_two_seeds_and_one_query_by_hand() -> None:
    """Differences 0 and 2, stretched around 1; both seeds are equal in half of the draws."""
    stretch = 2**0.5 * 12.7062 / 1.95996
    found = paired_bootstrap(np.array([[0.0], [2.0]]), np.zeros((2, 1)))
    assert found.estimate == 1.0
    assert (found.low, found.high) == pytest.approx((1 - stretch, 1 + stretch), abs=1e-3)


def test_the_stretch_of_few_seeds() -> None:
    assert seed_stretch(1) == 1.0
    assert seed_stretch(3) == pytest.approx(1.5**0.5 * 4.30265 / 1.95996, abs=1e-4)
    assert 1 < seed_stretch(1000) < 1.003


def test_pairs_are_kept() -> None:
    """What two variants share, of a seed or of a query, is no noise of their difference."""
    rng = np.random.default_rng(0)
    reference = 50 + 5 * rng.normal(size=(3, 1)) + 20 * rng.normal(size=(1, 40))
    found = paired_bootstrap(reference + 1, reference)
    assert (found.estimate, found.low, found.high) == pytest.approx((1, 1, 1))
    shuffled = paired_bootstrap(reference[:, ::-1] + 1, reference)
    assert shuffled.low < 0 < shuffled.high


def test_the_order_of_the_variants_only_turns_the_sign() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(3, 30)), rng.normal(size=(3, 30))
    there, back = paired_bootstrap(first, second), paired_bootstrap(second, first)
    assert (there.estimate, there.low, there.high) == pytest.approx((-back.estimate, -back.high, -back.low))


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.1, 2, "better"),
        (-2, -0.1, "worse"),
        (-1, 1, "not distinguishable"),
        (0.0, 1, "not distinguishable"),
        (0.0, 0.0, "not distinguishable"),
    ],
)
def test_words(low: float, high: float, word: str) -> None:
    assert Difference((low + high) / 2, low, high, 3, 10).word == word


def test_scores_that_do_not_belong_together() -> None:
    for scores in (np.zeros((2, 3)), np.zeros((3,)), np.zeros((0, 4))):
        with pytest.raises(ValueError, match="must be equal"):
            paired_bootstrap(scores, np.zeros((3, 4)) if scores.size else scores)


def coverage(seeds: int, of_seed: float, of_query: float, of_both: float) -> float:
    """How many of 300 intervals hold the true difference, 2, when it has noise of these sizes."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        noise = of_seed * rng.normal(size=(seeds, 1)) + of_query * rng.normal(size=(1, 60))
        scores = 2 + noise + of_both * rng.normal(size=(seeds, 60))
        found = paired_bootstrap(scores, np.zeros_like(scores), resamples=400)
        hits += found.low <= 2 <= found.high
    return hits / 300


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_hold_the_truth_when_seeds_are_noisy(seeds: int) -> None:
    assert 0.9 <= coverage(seeds, of_seed=2, of_query=0, of_both=1) <= 0.99


def test_intervals_hold_the_truth_when_queries_are_noisy() -> None:
    assert 0.9 <= coverage(1, of_seed=0, of_query=20, of_both=0) <= 0.99
    assert 0.93 <= coverage(3, of_seed=2, of_query=20, of_both=20) <= 1


def test_without_the_stretch_three_seeds_promise_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three seeds, resampling reaches from the lowest to the highest: in 1/4 of the cases that misses."""
    monkeypatch.setattr(bootstrap, "seed_stretch", lambda num_seeds: 1.0)
    assert coverage(3, of_seed=2, of_query=0, of_both=0) == pytest.approx(0.75, abs=0.08)
