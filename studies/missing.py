"""`python -m studies missing`: how the variants of a study do without some modalities.

Every finished run is evaluated once, by test_net.py with --missing all; the numbers stay in its folder.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import test_net
from evaluation.result import main_scores
from evaluation.tables import condition_name
from structures import MISSING_CONDITIONS
from studies.pages import markdown_table, show_mean
from studies.run_folder import finished_runs

logger = logging.getLogger(__name__)

FILE = "missing.json"


def main(args: argparse.Namespace) -> None:
    """Evaluate what has not been evaluated yet, and log a table: mean ± standard deviation over the runs."""
    rows = []
    for variant, runs in finished_runs(args.study, args.variants).items():
        scores = [missing_scores(run) for run in runs]
        rows.append([variant, *(show_mean([run[name] for run in scores]) for name in MISSING_CONDITIONS)])
    header = ["missing", *map(condition_name, MISSING_CONDITIONS)]
    logger.info("missing modalities\n\n%s", markdown_table(header, rows))


def missing_scores(run: Path) -> dict[str, float]:
    """By condition, the mAP of the run's last weights with its last return pattern, in percent."""
    path = run / FILE
    if not path.is_file():
        options = ["--missing", "all", "--metrics", str(path)]
        test_net.main([*options, "TEST.WEIGHT", str(run / "last.pth"), "OUTPUT_DIR", str(run)])
    found = json.loads(path.read_text())["missing"]
    return {condition: main_scores(found[condition])["mAP"] for condition in MISSING_CONDITIONS}
