"""How sure a difference is: a paired bootstrap over seeds and queries, pure NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 10_000
CHUNK = 500  # resamples at once, to bound the memory
WORDS = ("better", "worse", "not distinguishable")


@dataclass(frozen=True)
class Difference:
    """How much larger the scores of one variant are than those of another.

    Attributes:
        estimate: mean difference over seeds and queries.
        low: lower end of the confidence interval.
        high: upper end.
        num_seeds: pairs of runs that were compared; with 1, the noise between seeds is not in the interval.
        num_queries: queries that were compared.
    """

    estimate: float
    low: float
    high: float
    num_seeds: int
    num_queries: int

    @property
    def word(self) -> str:
        """`better` if the interval is above 0, `worse` if below, else `not distinguishable`."""
        better, worse, neither = WORDS
        return better if self.low > 0 else worse if self.high < 0 else neither


def paired_bootstrap(
    scores: np.ndarray, reference: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Compare two variants, larger scores being better.

    One resample draws S of the S seeds with replacement, then Q of the Q queries with replacement. A seed
    stands for the pair of runs with that seed, and a query for its scores in all runs, so that the draws are
    the same in both variants. The mean difference of 10,000 resamples gives the percentile interval.

    With few seeds that alone is too short: of three seeds it cannot reach beyond the lowest and the highest.
    So the differences between seeds are stretched by `seed_stretch` before. One seed is not resampled.

    Args:
        scores: of the variant, (S, Q): row s belongs to seed s, column q to query q.
        reference: of the other variant, (S, Q), rows and columns in the same order.
        seed: of the draws; the same input gives the same interval.
        resamples: how many.
    """
    if scores.shape != reference.shape or scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores {scores.shape} and reference {reference.shape} must be equal, (S, Q)")
    differences = scores.astype(np.float64) - reference
    num_seeds, num_queries = differences.shape
    estimate = float(differences.mean())
    seed_means = differences.mean(axis=1, keepdims=True)  # (S, 1)
    stretched = differences + (seed_stretch(num_seeds) - 1) * (seed_means - estimate)
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [
            _resampled_means(stretched, min(CHUNK, resamples - done), rng)
            for done in range(0, resamples, CHUNK)
        ]
    )
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Difference(estimate, float(low), float(high), num_seeds, num_queries)


def _resampled_means(values: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Means (count,) of `values` (S, Q) with rows and columns drawn with replacement."""
    num_rows, num_columns = values.shape
    rows = rng.multinomial(num_rows, np.full(num_rows, 1 / num_rows), size=count)  # (count, S)
    columns = rng.multinomial(num_columns, np.full(num_columns, 1 / num_columns), size=count)
    return ((rows @ values) * columns).sum(axis=1) / (num_rows * num_columns)


def seed_stretch(num_seeds: int) -> float:
    """The factor by which resampling S seeds makes too short an interval, for normal noise.

    sqrt(S / (S - 1)), since resampling divides by S where S - 1 is right, times the quantile of Student's t
    over that of the normal distribution, since the spread itself is known from S values alone.
    """
    if num_seeds < 2:
        return 1.0
    upper = (1 + CONFIDENCE) / 2
    quantiles = stats.t.ppf(upper, num_seeds - 1) / stats.norm.ppf(upper)
    return float(math.sqrt(num_seeds / (num_seeds - 1)) * quantiles)
