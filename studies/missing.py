"""`python -m studies missing`: how the variants of a study do without some modalities.

Every finished run is evaluated once, by test_net.py with --missing all; the numbers stay in its folder.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import numpy as np

import test_net
from evaluation.result import main_scores
from evaluation.tables import condition_name
from studies.pages import markdown_table, show_mean
from studies.run_folder import finished_runs

logger = logging.getLogger(__name__)

FILE = "missing.json"


def main(args: argparse.Namespace) -> None:
    """Evaluate what has not been evaluated yet, and log a table: mean ± standard deviation over the runs."""
    rows, conditions = [], ["complete"]
    for variant, runs in finished_runs(args.study, args.variants).items():
        scores = [missing_scores(run) for run in runs]
        conditions = list(scores[0])
        means = [float(np.mean(list(run.values())[1:])) for run in scores]
        rows.append(
            [variant, *(show_mean([run[name] for run in scores]) for name in conditions), show_mean(means)]
        )
    header = ["missing", *map(condition_name, conditions), f"mean of {len(conditions) - 1}"]
    logger.info("missing modalities\n\n%s", markdown_table(header, rows))


def missing_scores(run: Path) -> dict[str, float]:
    """By condition, the mAP of the run's last weights with its last return pattern, in percent."""
    path = run / FILE
    if not path.is_file():
        options = ["--missing", "all", "--metrics", str(path)]
        test_net.main([*options, "TEST.WEIGHT", str(run / "last.pth"), "OUTPUT_DIR", str(run)])
    found = json.loads(path.read_text())["missing"]
    return {condition: main_scores(scores)["mAP"] for condition, scores in found.items()}
