"""Measure the project against the plain way of the same work: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import rows_data, rows_model, rows_ranking
from benchmarks.report import HEADINGS, Row, describe_machine, machine_line, markdown_table, text_table
from benchmarks.scaling import FULL_CURVE, QUICK_CURVE, TINY_CURVE, measure_curves
from benchmarks.scaling import HEADINGS as CURVE_HEADINGS
from benchmarks.sizes import FULL, QUICK, TINY, Sizes
from engine.command import run_command
from engine.files import check_destination, save_json
from engine.runtime import setup_log
from structures import UserError

logger = logging.getLogger(__name__)

RANKING_ROWS: dict[str, Callable[[Sizes], Row]] = {
    "ranking": rows_ranking.ranking,
    "scene": rows_ranking.scene,
    "reranking": rows_ranking.reranking,
    "million": rows_ranking.million,
}
ROWS = RANKING_ROWS | {
    "evaluation": rows_model.evaluation,
    "hdm": rows_model.hdm,
    "optimizer": rows_model.optimizer,
    "training": rows_model.training,
    "slimming": rows_model.slimming,
    "data": rows_data.data,
}
"""The rows in the order of the table. Those on ranking come first, with the C library as it is."""

SIZES = {"full": (FULL, FULL_CURVE), "quick": (QUICK, QUICK_CURVE), "tiny": (TINY, TINY_CURVE)}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time the project against the plain way of the same work, by turns in one process.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="size", help="below two minutes")
    size.add_argument(
        "--tiny", action="store_const", const="tiny", dest="size", help="only to see that everything runs"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", nargs="+", metavar="ROW", help="these rows alone")
    what.add_argument("--list", action="store_true", help="list the rows and stop")
    what.add_argument("--scaling", action="store_true", help="how cost grows, in place of the rows")
    what.add_argument("--markdown", action="store_true", help="print the tables of an earlier run and stop")
    parser.add_argument(
        "--output", type=Path, default=Path("bench.json"), help="where the figures go (%(default)s)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks."""
    args = parse_arguments(argv)
    if args.list:
        _write("\n".join(f"{name:<12}{run.__doc__}" for name, run in ROWS.items()))
        return
    if args.markdown:
        _write(markdown_of(_read(args.output)))
        return
    unknown = sorted(set(args.only or []) - set(ROWS))
    if unknown:
        raise UserError(f"--only names no such rows: {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    check_destination(args.output, replaces=".json")
    setup_log()
    logging.getLogger("modeling").setLevel(logging.WARNING)
    sizes, curve = SIZES[args.size or "full"]
    about = describe_machine()
    content: dict[str, Any] = {**about, "size": args.size or "full"}
    logger.info("%s", machine_line(about))
    if args.scaling:
        points = []
        for point in measure_curves(sizes, curve):
            logger.info("%s %s", *point.cells()[:2])
            points.append({**asdict(point), "cells": point.cells()})
        content["scaling"] = points
    else:
        content["rows"] = [row.as_dict() for row in _measure(sizes, args.only)]
    save_json(args.output, content)
    _write(tables_of(content, text_table))


def _measure(sizes: Sizes, only: Sequence[str] | None) -> list[Row]:
    names = [name for name in ROWS if only is None or name in only]
    if sizes.million is None:
        if only and "million" in only:
            raise UserError("--quick leaves out the row million; leave out --quick")
        names = [name for name in names if name != "million"]
    found = []
    for name in names:
        logger.info("measuring %s", name)
        found.append(ROWS[name](sizes))
    return found


def tables_of(content: dict[str, Any], draw: Callable[[Sequence[str], list[list[str]]], str]) -> str:
    """The tables that a file of figures holds."""
    if "scaling" in content:
        return draw(CURVE_HEADINGS, [point["cells"] for point in content["scaling"]])
    return draw(HEADINGS, [Row.from_dict(row).cells() for row in content["rows"]])


def markdown_of(content: dict[str, Any]) -> str:
    """The tables for docs/performance.md, with the machine below."""
    return f"{tables_of(content, markdown_table)}\n\n*Measured* on {machine_line(content)}."


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no figures ({error}); run python -m benchmarks first") from None
    return content


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    run_command(main)
