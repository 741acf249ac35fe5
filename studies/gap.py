"""`python -m studies gap`: how the difference between two variants changes from one study to another.

Both studies have the same variants, seeds and query names, but other data: SyntheticHard, say, beside
Synthetic. Then the difference of the differences can be compared query by query.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from errors import UserError
from studies.bootstrap import paired_bootstrap
from studies.run_folder import QueryScores, read_scores
from studies.summary import stack_precisions

logger = logging.getLogger(__name__)


def main(args: argparse.Namespace) -> None:
    """Log the gap in each study and its growth."""
    # The scores of two variants in two studies, of the seeds that all four have.
    sides = [read_variant(study / name, args.pattern) for study in args.studies for name in args.variants]
    seeds = sorted(set.intersection(*map(set, sides)))
    names = [study.name for study in args.studies]
    if not seeds:
        raise UserError(
            f"{args.studies[0]} and {args.studies[1]} have no seed in common that both "
            f"{args.variants[0]} and {args.variants[1]} were trained with"
        )
    logger.info("seeds that all have: %s", ", ".join(seeds))
    # The gaps, each from arrays (S, Q), and their difference.
    arrays = stack_precisions([[side[seed] for seed in seeds] for side in sides])
    for name, pair in zip(names, (arrays[:2], arrays[2:]), strict=True):
        logger.info("%s − %s, mAP: %s in %s", *args.variants, paired_bootstrap(*pair), name)
    growth = paired_bootstrap(arrays[2] - arrays[3], arrays[0] - arrays[1])
    word = {"better": "grows", "worse": "shrinks"}.get(growth.word, growth.word)
    logger.info("from %s to %s by %s: %s", *names, growth, word)


def read_variant(folder: Path, pattern: int) -> dict[str, QueryScores]:
    """By seed, the scores of the queries."""
    runs = sorted(folder.glob("seed_*"))
    if not runs:
        raise UserError(f"{folder} holds no runs; name a variant of a finished study")
    return {run.name: read_scores(run, pattern) for run in runs}
