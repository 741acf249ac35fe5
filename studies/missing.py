"""How the variants of a study do without some modalities: `python -m tools.study_missing STUDY`.

Every finished run is evaluated once, by test_net.py with --missing all; the numbers stay in its folder.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import study_missing_arguments

if __name__ == "__main__":
    answer_early(study_missing_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import test_net
from engine.command import run_command
from engine.results import setting_name
from engine.runtime import setup_log
from structures import MISSING_SETTINGS
from tools.ablation.finished import finished_runs, markdown_table, show_mean

logger = logging.getLogger(__name__)

FILE = "missing.json"


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate what has not been evaluated yet, and log a table."""
    args = study_missing_arguments(argv)
    setup_log()
    scores = {
        variant: [missing_scores(run) for run in runs]
        for variant, runs in finished_runs(args.study, args.variants).items()
    }
    logger.info("missing modalities\n\n%s", table(scores))


def missing_scores(run: Path) -> dict[str, float]:
    """By setting, the mAP of the run's last weights with its last return pattern, in percent."""
    path = run / FILE
    if not path.is_file():
        options = ["--missing", "all", "--metrics", str(path)]
        test_net.main([*options, "TEST.WEIGHT", str(run / "last.pth"), "OUTPUT_DIR", str(run)])
    found = json.loads(path.read_text())["missing"]
    return {setting: found[setting][_last_pattern(found[setting])]["mAP"] for setting in MISSING_SETTINGS}


def _last_pattern(result: dict[str, object]) -> str:
    return max(name for name in result if name.startswith("pattern_"))


def table(scores: dict[str, list[dict[str, float]]]) -> str:
    """One row per variant, in Markdown: mean ± standard deviation over the runs."""
    return markdown_table(
        ["missing", *(setting_name(setting) for setting in MISSING_SETTINGS)],
        [
            [variant, *(show_mean([run[setting] for run in runs]) for setting in MISSING_SETTINGS)]
            for variant, runs in scores.items()
        ],
    )


if __name__ == "__main__":
    run_command(main)
