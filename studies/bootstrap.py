"""How certain a difference is: a paired bootstrap over seeds and queries, pure NumPy."""

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
    """How much larger the scores of one variant are than those of another."""

    estimate: float  # mean over seeds and queries
    low: float  # ends of the confidence interval
    high: float
    num_seeds: int  # pairs of runs; with 1, the noise between seeds is not in the interval
    num_queries: int

    @property
    def word(self) -> str:
        """`better` if the interval is above 0, `worse` if below, else `not distinguishable`."""
        better, worse, neither = WORDS
        return better if self.low > 0 else worse if self.high < 0 else neither

    def __str__(self) -> str:
        return f"{self.estimate:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


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
    estimate = float(differences.mean())
    # Stretch the means of the seeds around the estimate.
    seed_means = differences.mean(axis=1, keepdims=True)  # (S, 1)
    stretched = differences + (seed_stretch(len(differences)) - 1) * (seed_means - estimate)
    # Draw rows and columns, as often as each is drawn; the mean of each resample.
    rng = np.random.default_rng(seed)
    means = []
    for done in range(0, resamples, CHUNK):
        rows, columns = (
            rng.multinomial(size, np.full(size, 1 / size), size=min(CHUNK, resamples - done))
            for size in stretched.shape
        )
        means.append(((rows @ stretched) * columns).sum(axis=1) / stretched.size)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Difference(estimate, float(low), float(high), *differences.shape)


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
