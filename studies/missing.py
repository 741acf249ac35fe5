"""`python -m studies missing`: how the variants of a study do without some modalities, or across them.

Every finished run is evaluated once, by test_net.py with --missing all, --any_to_any or --any_to_any
--shared_space; the numbers stay in its folder.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import test_net
from evaluation.result import main_scores
from evaluation.tables import condition_name
from studies.pages import markdown_table, show_change, show_mean
from studies.run_folder import finished_runs

logger = logging.getLogger(__name__)

Scores = dict[str, float]
"""The mAP of one run in percent, by column of the table."""


def main(args: argparse.Namespace) -> None:
    """Evaluate what has not been evaluated yet, and log a table: mean ± standard deviation over the runs."""
    read, option = (read_matrix, "any_to_any") if args.any_to_any else (read_conditions, "missing")
    if args.shared_space:
        read, option = read_matrix, "shared_space"
    found = {
        variant: {run.name: read(evaluate_run(run, option)) for run in runs}
        for variant, runs in finished_runs(args.study, args.variants).items()
    }
    logger.info("mAP, and its change in the runs with the same seed\n\n%s", table(found))


def evaluate_run(run: Path, option: str) -> dict[str, Any]:
    """What test_net.py finds with the run's last weights, from its file or anew."""
    path = run / f"{option}.json"
    if not path.is_file():
        asked = {
            "missing": ["--missing", "all"],
            "any_to_any": ["--any_to_any"],
            "shared_space": ["--any_to_any", "--shared_space"],
        }[option]
        test_net.main(
            [*asked, "--metrics", str(path), "TEST.WEIGHT", str(run / "last.pth"), "OUTPUT_DIR", str(run)]
        )
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def read_conditions(content: Mapping[str, Any]) -> Scores:
    """The last return pattern, by what is missing, and the mean of the conditions but the first."""
    scores = {condition_name(name): main_scores(found)["mAP"] for name, found in content["missing"].items()}
    return {**scores, f"mean of {len(scores) - 1}": float(np.mean(list(scores.values())[1:]))}


def read_matrix(content: Mapping[str, Any]) -> Scores:
    """The cells with one modality on both sides, and the means."""
    matrix = content["any_to_any"]
    scores = {
        f"{cell['query'][0]} → {cell['gallery'][0]}": cell["mAP"]
        for cell in matrix["cells"]
        if len(cell["query"]) == len(cell["gallery"]) == 1 and "mAP" in cell
    }
    for name, key in (("all", "mean"), ("without a common modality", "cross_modality_mean")):
        mean = matrix[key]
        if mean["cells"]:
            scores[f"mean of {mean['cells']} {name}"] = mean["mAP"]
    return scores


def table(found: Mapping[str, Mapping[str, Scores]]) -> str:
    """A row per variant; the last two columns are the changes of the first and the last score.

    Args:
        found: by variant, then by name of the run (its seed); `base` or the first is the reference.
    """
    reference = "base" if "base" in found else next(iter(found))
    runs = found[reference]
    columns = list(next(iter(runs.values())))
    changing = (columns[0], columns[-1])
    rows = []
    for variant, by_seed in found.items():
        means = [show_mean([scores[column] for scores in by_seed.values()]) for column in columns]
        paired = [seed for seed in by_seed if seed in runs and variant != reference]
        changes = [
            show_change([runs[seed][c] for seed in paired], [by_seed[seed][c] for seed in paired])
            if paired
            else "–"
            for c in changing
        ]
        rows.append([variant, *means, *changes])
    return markdown_table(["variant", *columns, *(f"Δ {c} to {reference}" for c in changing)], rows)
