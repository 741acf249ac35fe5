"""How the difference between two variants changes from one study to another: `python -m tools.study_gap`.

Both studies have the same variants, seeds and query names, but other data: SyntheticHard, say, beside
Synthetic. Then the difference of the differences can be compared query by query.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import study_gap_arguments

if __name__ == "__main__":
    answer_early(study_gap_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from engine.command import run_command
from engine.files import check_destination
from engine.runtime import setup_log
from structures import UserError
from tools.ablation.bootstrap import Difference, paired_bootstrap
from tools.ablation.pages import COLOURS, save_figure
from tools.ablation.scores import read_scores

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Compare two studies, log the gap in each and its growth, and draw them."""
    args = study_gap_arguments(argv)
    setup_log()
    if args.output is not None:
        check_destination(args.output, replaces=".png")
    variants = tuple(args.variants)
    first, second = (
        [read_variant(study / name, args.pattern) for name in variants] for study in args.studies
    )
    seeds = sorted(set.intersection(*(set(side) for side in (*first, *second))))
    if not seeds:
        raise UserError(
            f"{args.studies[0]} and {args.studies[1]} have no seed in common that both "
            f"{variants[0]} and {variants[1]} were trained with"
        )
    first, second = ([{seed: side[seed] for seed in seeds} for side in study] for study in (first, second))
    logger.info("seeds that all have: %s", ", ".join(seeds))
    names = {tuple(scores_names) for side in (*first, *second) for scores_names, _ in side.values()}
    if len(names) > 1:
        raise UserError(
            "the studies have different queries; only studies of the same queries can be compared"
        )
    arrays = [[_stack(side) for side in study] for study in (first, second)]
    gaps = [paired_bootstrap(*pair) for pair in arrays]
    growth = paired_bootstrap(*(pair[0] - pair[1] for pair in reversed(arrays)))
    labels = [study.name for study in args.studies]
    what = f"{variants[0]} − {variants[1]}"
    for label, gap in zip(labels, gaps, strict=True):
        logger.info("%s, mAP: %s in %s", what, show(gap), label)
    word = {"better": "grows", "worse": "shrinks"}.get(growth.word, growth.word)
    logger.info("from %s to %s by %s: %s", *labels, show(growth), word)
    if args.output is not None:
        save_figure(draw([*labels, "growth"], [*gaps, growth], f"{what} in mAP, 95 % interval"), args.output)
        logger.info("wrote %s", args.output)


def read_variant(folder: Path, pattern: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By seed, the names and the average precisions of the queries, in percent."""
    runs = sorted(folder.glob("seed_*"))
    if not runs:
        raise UserError(f"{folder} holds no runs; is it the variant of a finished study?")
    found = {}
    for run in runs:
        scores = read_scores(run, pattern)
        found[run.name] = scores.names, 100 * scores.average_precisions
    return found


def _stack(side: dict[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(S, Q), seeds in the order of their names."""
    return np.stack([precisions for _, precisions in side.values()])


def show(difference: Difference) -> str:
    """The estimate with its interval."""
    return f"{difference.estimate:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}]"


def draw(labels: Sequence[str], differences: Sequence[Difference], title: str) -> Figure:
    """One row for each difference, with its interval."""
    figure = Figure(figsize=(6.0, 1.0 + 0.4 * len(labels)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for row, difference in enumerate(differences):
        colour = COLOURS[difference.word]
        axes.plot([difference.low, difference.high], [row, row], color=colour, linewidth=2)
        axes.plot(difference.estimate, row, "o", color=colour, markersize=6)
        axes.annotate(
            show(difference), (difference.estimate, row), ha="center", fontsize=8, color=colour,
            textcoords="offset points", xytext=(0, 6),
        )  # fmt: skip
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.7)
    axes.set_xlabel(title)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    run_command(main)
