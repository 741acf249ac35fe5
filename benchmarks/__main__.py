"""Measure the project against the plain way of the same work: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import rows_data, rows_export, rows_model, rows_ranking, seps
from benchmarks.bench import FULL, QUICK, TINY, Row, Sizes, describe_machine, table_of
from engine.command import run_command
from engine.files import check_destination, save_json
from engine.runtime import setup_log
from errors import UserError

logger = logging.getLogger(__name__)

ROWS: dict[str, Callable[[Sizes], Row]] = {
    "ranking_rgbnt201": rows_ranking.ranking_rgbnt201,
    "ranking_msvr310": rows_ranking.ranking_msvr310,
    "ranking_rgbnt100": rows_ranking.ranking_rgbnt100,
    "ranking_large": rows_ranking.ranking_large,
    "reranking": rows_ranking.reranking,
    "million": rows_ranking.million,
    "evaluation": rows_model.evaluation,
    "missing": rows_model.missing,
    "any_to_any": rows_model.any_to_any,
    "training": rows_model.training,
    "tuning": rows_model.tuning,
    "slimming": rows_model.slimming,
    "slimmed_latency": rows_model.slimmed_latency,
    "slimmed_throughput": rows_model.slimmed_throughput,
    "step_memory": rows_model.step_memory,
    "data": rows_data.data,
    "seps": seps.seps,
    "onnx_latency": rows_export.latency,
    "onnx_throughput": rows_export.throughput,
    "onnx_slimmed_latency": rows_export.slimmed_latency,
    "onnx_slimmed_throughput": rows_export.slimmed_throughput,
}
"""A row is a function that takes the sizes and gives a `Row`. The order is that of the table."""

SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time the project against the plain way of the same work, by turns in one process.",
    )
    size = parser.add_mutually_exclusive_group()
    for name, help_ in (("quick", "few repeats"), ("tiny", "only to see that everything runs")):
        size.add_argument(f"--{name}", action="store_const", const=name, dest="size", help=help_)
    parser.add_argument("--only", nargs="+", metavar="ROW", help="these rows alone")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    parser.add_argument(
        "--output", type=Path, default=Path("bench.json"), help="where the figures go (%(default)s)"
    )
    parser.set_defaults(size="full")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks, write the figures as JSON and print them as a Markdown table."""
    args = parse_arguments(argv)
    if args.list:
        sys.stdout.writelines(f"{name:<25}{run.__doc__}\n" for name, run in ROWS.items())
        return

    # Which rows?
    sizes = SIZES[args.size]
    left_out = {"million"} if sizes.million is None else set()
    left_out |= set() if sizes.exported else {name for name in ROWS if name.startswith("onnx_")}
    names = [name for name in ROWS if name not in left_out]
    unknown = sorted(set(args.only or []) - set(names))
    if unknown:
        raise UserError(f"--only names no such rows: {', '.join(unknown)}; choose from {', '.join(names)}")
    check_destination(args.output, replaces=".json")
    setup_log()
    logging.getLogger("modeling").setLevel(logging.WARNING)

    # Measure.
    machine = describe_machine()
    rows = {}
    for name in names:
        if not args.only or name in args.only:
            logger.info("measuring %s", name)
            rows[name] = ROWS[name](sizes)
            # After every row, so that an interruption loses one.
            found = {name: row.as_dict() for name, row in rows.items()}
            save_json(args.output, {"machine": machine, "size": args.size, "rows": found})
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    sys.stdout.write(f"{table_of(rows.values())}\n\n*Measured* with {about}.\n")


if __name__ == "__main__":
    run_command(main)
