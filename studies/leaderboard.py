"""`python -m studies leaderboard`: what was measured here and what others have published, in two tables.

The first table comes from finished studies, which are recorded in measured/leaderboard.json, so that the page
can be made again without their runs; the second from published.yml. A number of one never stands in the
other: data, trunk and choice of the epoch differ.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from config import load_config
from engine.files import check_destination, save_json, save_text
from errors import UserError
from studies.pages import markdown_table, show_mean
from studies.run_folder import is_trained

logger = logging.getLogger(__name__)

PUBLISHED = Path(__file__).with_name("published.yml")
NOTHING = "–"
HEAD = """\
# Leaderboard

Made by `python -m studies leaderboard`; do not edit. Scores are mAP / Rank-1 in percent. **The two tables
cannot be compared**: data sets, trunks and the choice of the epoch differ. What the methods do:
[selectors.md](selectors.md).

## Measured here
"""
MIDDLE = """\

Mean ± standard deviation over seeds. No epoch was chosen on the test split.

## Published by others

Not measured here, and not repeated here. *Seen*: we have run or read their `code`, or found the number on
their own `page`, or `quoted` by others.
"""


class Measured(NamedTuple):
    """One variant of a study."""

    method: str
    data: str  # the data set
    scores: str  # mAP / Rank-1
    study: str  # the name of its folder
    conditions: str  # trunk, seeds, epochs, which of them, return pattern, commit


def main(args: argparse.Namespace) -> None:
    """Write the page."""
    check_destination(args.page, replaces=".md")
    check_destination(args.records, replaces=".json")
    rows = [row for study in args.studies for row in read_study(study)]
    seen: dict[tuple[str, str], Measured] = {}
    for row in rows:
        if (other := seen.setdefault((row.method, row.data), row)) is not row:
            raise UserError(
                f"{row.method} on {row.data} is in two of the studies ({other.study} and {row.study}); name "
                "one of them"
            )
    # A row takes the place of an earlier one of the same method and data.
    rows = [row for row in read_records(args.records) if (row.method, row.data) not in seen] + rows
    save_json(args.records, [row._asdict() for row in rows])
    save_text(args.page, page_of(rows))
    logger.info("wrote %d measured and the published rows to %s", len(rows), args.page)


def page_of(rows: Sequence[Measured]) -> str:
    """The whole page, with these measured rows."""
    return f"{HEAD}\n{measured_table(rows)}\n{MIDDLE}\n{published_table(read_published())}\n"


def read_records(path: Path) -> list[Measured]:
    """The rows that earlier calls have recorded; none if there is no file."""
    if not path.exists():
        return []
    try:
        return [Measured(**row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path} cannot be read as the rows of a leaderboard; remove it") from None


def read_study(folder: Path) -> list[Measured]:
    """The variants of a study that `studies run` or `compare` has summed up."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        raise UserError(
            f"{folder} has no summary.json; make it with `python -m studies compare SPEC`"
        ) from None
    rows = []
    for variant in summary["variants"]:
        if not variant["runs"]:
            continue
        scores = [[run[name] for run in variant["runs"].values()] for name in ("mAP", "R-1")]
        runs = sorted(filter(is_trained, (folder / variant["name"]).glob("seed_*")))
        cfg = load_config(runs[0] / "config.yml")
        commits = sorted({_commit(run) for run in runs})
        conditions = [
            cfg.MODEL.TRANSFORMER_TYPE,
            f"{_plural(len(runs), 'seed')}, {_plural(cfg.SOLVER.MAX_EPOCHS, 'epoch')}",
            summary["epoch"],
            f"return pattern {'/'.join(map(str, variant['patterns']))}",
            f"commit {' '.join(commits)}",
        ]
        shown = " / ".join(map(show_mean, scores))
        data = cfg.DATASETS.NAMES
        rows.append(Measured(variant["name"], data, shown, folder.name, ", ".join(conditions)))
    return rows


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _commit(run: Path) -> str:
    """The commit that trained a run, from the first line of its log."""
    log = run / "log.txt"
    found = re.search(r"commit (\w+)", log.read_text()) if log.is_file() else None
    return found[1] if found else "unknown"


def read_published() -> list[dict[str, Any]]:
    """The rows of published.yml."""
    rows: list[dict[str, Any]] = yaml.safe_load(PUBLISHED.read_text())
    return rows


def measured_table(rows: Sequence[Measured]) -> str:
    """A row per method, a column per data set, and under what conditions."""
    if not rows:
        return "Nothing yet: name the folders of studies."
    sets = list(dict.fromkeys(row.data for row in rows))
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        own = {row.data: row for row in rows if row.method == method}
        cells = [own[name].scores if name in own else NOTHING for name in sets]
        lines.append([method, *cells, "; ".join(f"{row.study}: {row.conditions}" for row in own.values())])
    return markdown_table(["method", *(f"{name}, measured here" for name in sets), "conditions"], lines)


def published_table(rows: Sequence[dict[str, Any]]) -> str:
    """A row per method and trunk, a column per data set, and where the numbers are from."""
    sets = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    facts = {"trunk": "trunk", "epoch_on_test": "epoch chosen on test", "seen": "seen", "source": "source"}
    lines = [
        [
            row["method"],
            *(
                " / ".join(map(str, row["scores"][name])) if name in row["scores"] else NOTHING
                for name in sets
            ),
            *(row[fact] for fact in facts),
        ]
        for row in rows
    ]
    return markdown_table(["method", *(f"{name}, published" for name in sets), *facts.values()], lines)
