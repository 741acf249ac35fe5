"""`python -m studies power`: how large a difference must be for a study to find it.

From the scores of the finished runs the command estimates how much the difference between two variants varies
between seeds and between queries. It then simulates studies without a true difference, computes the interval
of `paired_bootstrap` for each, and counts. A constant added to all scores moves the interval by just that
constant, so that one simulation answers for every true difference.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import stats
from tqdm import tqdm

from engine.files import check_destination, save_json, save_text
from errors import UserError
from studies.bootstrap import CONFIDENCE, paired_bootstrap
from studies.compare import read_results
from studies.pages import markdown_table, show_mean
from studies.run_folder import check_runs
from studies.spec import read_spec
from studies.summary import stack_precisions

logger = logging.getLogger(__name__)

FILES = ("power.md", "power.json")
SEEDS = (3, 5, 10)
"""Sizes of the studies that are simulated."""
WANTED = 0.8
"""How often a difference should be found."""
GOAL = 2.0
"""The difference in mAP that five seeds should find."""
STUDIES = 300
"""Simulated studies: 0.8 is then known to ± 0.05."""
RESAMPLES = 400

EXPLANATION = f"""\
*σ*: standard deviation over seeds; *σ at most*: its upper bound with 95 % confidence (chi-square), as few
seeds tell little about it. *finds*: if the variant were truly better or worse by this much mAP, 80 of 100
studies with so many seeds would say so (the 95 % interval of the difference excludes 0); smaller differences
are found less often. From {STUDIES} simulated studies for each number of seeds: the effects of seeds are
normal with the measured variance, queries and the rest are drawn from the real scores."""


@dataclass(frozen=True)
class Power:
    """What a study can tell about one variant; in mAP, percent."""

    name: str
    values: list[float]  # mAP by seed
    sigma_bound: float | None  # upper bound of their standard deviation; None with one seed
    finds: dict[int, float]  # by number of seeds, the difference that is found in 80 of 100 studies
    chance: float | None  # how often five seeds find a difference of `GOAL`


def main(args: argparse.Namespace) -> None:
    """Simulate studies like this one, log a table and write it."""
    # Read the finished runs.
    spec = read_spec(args.spec)
    check_runs(spec.runs, None)
    for name in FILES:
        check_destination(spec.output / name, replaces=Path(name).suffix, makes_folder=True)
    results = read_results(spec, args.pattern or spec.pattern)
    reference = results[spec.reference]
    shared = {
        name: sorted(runs.keys() & reference.keys()) if name != spec.reference else []
        for name, runs in results.items()
    }
    if max(map(len, shared.values())) < 2:
        raise UserError(
            f"{spec.output} has no variant that shares two finished seeds with {spec.reference}; run the "
            "study first, with two seeds or more"
        )
    # Simulate.
    found = []
    for name, runs in tqdm(results.items(), "simulating", disable=None, unit="variant"):
        values = [result.measures["mAP"] or 0.0 for result in runs.values()]
        lows = {}
        if len(shared[name]) > 1:
            pairs = [[side[seed].scores for seed in shared[name]] for side in (runs, reference)]
            scores, other = stack_precisions(pairs)
            lows = {count: simulate_lows(scores - other, count) for count in SEEDS}
        finds = {count: float(np.quantile(-low, WANTED)) for count, low in lows.items()}
        chance = float(np.mean(lows[5] > -GOAL)) if lows else None
        found.append(Power(name, values, sigma_bound(values), finds, chance))
    # Show and write.
    text = markdown(found, spec.reference, args.spec.stem)
    logger.info("power\n\n%s", text)
    save_text(spec.output / FILES[0], text)
    save_json(spec.output / FILES[1], [asdict(power) for power in found])
    logger.info("wrote %s and %s to %s", *FILES, spec.output)


def sigma_bound(values: Sequence[float]) -> float | None:
    """The standard deviation that the true one is below, with 95 % confidence, for normal noise."""
    free = len(values) - 1
    if free < 1:
        return None
    return float(np.std(values, ddof=1) * math.sqrt(free / stats.chi2.ppf(1 - CONFIDENCE, free)))


def simulate_lows(differences: np.ndarray, num_seeds: int, *, studies: int = STUDIES) -> np.ndarray:
    """The lower ends of the intervals of simulated studies in which the true difference is 0.

    A study finds a true difference of d if its lower end is above -d. The differences are a sum of an effect
    of the seed, one of the query, and a rest. Estimated effects hold a part of the rest, which is taken out.

    Args:
        differences: of S seeds, 2 or more, and Q queries, (S, Q).
        num_seeds: of each simulated study.
        studies: how many.
    """
    # The parts of the differences and their variances.
    count, queries = differences.shape
    mean = differences.mean()
    of_seed = differences.mean(axis=1) - mean  # (S,)
    of_query = differences.mean(axis=0) - mean  # (Q,)
    rest = (differences - mean - of_seed[:, None] - of_query) * math.sqrt(count / (count - 1))
    rest_variance = float(np.mean(rest**2))
    seed_variance = max(float(of_seed.var(ddof=1)) - rest_variance / queries, 0.0)
    query_variance = float(of_query.var())
    if query_variance:
        of_query = of_query * math.sqrt(max(1 - rest_variance / count / query_variance, 0.0))
    # Draw studies: new seeds, and queries and rests from the real ones.
    rng = np.random.default_rng(0)
    lows = []
    for _ in range(studies):
        columns = rng.integers(queries, size=queries)
        rows = rng.integers(count, size=(num_seeds, queries))
        seeds = math.sqrt(seed_variance) * rng.normal(size=(num_seeds, 1))
        drawn = seeds + of_query[columns] + rest[rows, columns]
        lows.append(paired_bootstrap(drawn, np.zeros_like(drawn), resamples=RESAMPLES).low)
    return np.array(lows)


def markdown(found: Sequence[Power], reference: str, study: str) -> str:
    """The table, and what it says in words."""
    rows = []
    for power in found:
        spread = "–" if power.sigma_bound is None else f"{power.sigma_bound:.1f}"
        finds = [f"{power.finds[count]:.1f}" if power.finds else "–" for count in SEEDS]
        chance = "–" if power.chance is None else f"{power.chance:.0%}"
        rows.append([power.name, show_mean(power.values), spread, *finds, chance])
    header = ["variant", "mAP ± σ", "σ at most", *(f"{count} seeds find" for count in SEEDS)]
    table = markdown_table([*header, f"5 seeds find {GOAL:g} mAP"], rows)
    # The worst case in words.
    worst = max((power for power in found if power.finds), key=lambda power: power.finds[5])
    sentence = (
        f"If {worst.name}, the noisiest variant, were truly {GOAL:g} mAP better than {reference}, a study "
        f"with five seeds would say so in {100 * (worst.chance or 0):.0f} of 100 cases. To be found in "
        f"{100 * WANTED:.0f} of 100, the difference must be {worst.finds[5]:.1f} mAP with five seeds and "
        f"{worst.finds[10]:.1f} mAP with ten."
    )
    return f"# What study {study} can tell apart\n\n{sentence}\n\n{table}\n\n{EXPLANATION}\n"
