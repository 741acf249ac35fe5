"""The command line of tools.ablate. Nothing slow is imported here: --help is answered at once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from engine.arguments import output_path


def ablate_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.ablate."""
    parser = argparse.ArgumentParser(description="Train variants with several seeds and compare them.")
    parser.add_argument("spec", metavar="SPEC", nargs="?", type=Path, help="the study, see docs/ablation.md")
    parser.add_argument("--dry_run", action="store_true", help="check the study and list what would run")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once, in place of jobs in the study")
    parser.add_argument("--summary", action="store_true", help="only sum up the runs that are finished")
    parser.add_argument(
        "--pattern",
        type=int,
        choices=(1, 2, 3),
        help="the return pattern to compare, in place of pattern in the study; without both, the last",
    )
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("RUN_A", "RUN_B"), help="compare finished run B with A"
    )
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", help="with --compare: also write the files there"
    )
    return parser.parse_args(argv)
