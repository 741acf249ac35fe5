"""`python -m studies compare`: tables from the finished runs of a study, or from two runs."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from config import load_config
from engine.files import check_destination
from errors import UserError
from studies.pages import SAME, check_summary_folder, markdown, short_table, write_block, write_summary
from studies.run_folder import RunState, changed_keys, check_runs, thread_counts
from studies.spec import StudySpec, read_spec
from studies.summary import RunResult, Summary, read_result, summarise

logger = logging.getLogger(__name__)


def main(args: argparse.Namespace) -> None:
    """Sum up a study, or compare two runs."""
    if len(args.what) > 2:
        raise UserError(f"compare takes one study file or two run folders, not {len(args.what)} names")
    if len(args.what) == 2:
        if args.page is not None:
            raise UserError("--page belongs to a study, whose name marks the place of its table")
        if args.output is not None:
            check_summary_folder(args.output)
        compare_runs(*args.what, pattern=args.pattern, output=args.output)
        return
    if args.output is not None:
        raise UserError("--output belongs to two runs; a study names its folder itself, with output:")
    if args.page is not None:
        check_destination(args.page, replaces=".md")
    spec = read_spec(args.what[0])
    check_runs(spec.runs, None)
    check_summary_folder(spec.output)
    summary = write_study(args.what[0], spec, args.pattern)
    if args.page is not None and summary is not None:
        more = SAME if args.cost else ()
        write_block(args.page, args.what[0].stem, short_table(summary, *more))
        logger.info("wrote the table of %s into %s", args.what[0].stem, args.page)


def read_results(spec: StudySpec, pattern: int | None) -> dict[str, dict[int, RunResult]]:
    """The finished runs by variant and seed."""
    results: dict[str, dict[int, RunResult]] = {variant: {} for variant in spec.variants}
    for run in spec.runs:
        if run.state is RunState.DONE:
            results[run.variant][run.seed] = read_result(run.folder, pattern, spec.epoch)
    return results


def write_study(path: Path, spec: StudySpec, pattern: int | None) -> Summary | None:
    """Sum up the runs that are finished, log it and write it; None if there is none."""
    pattern = pattern or spec.pattern
    results = read_results(spec, pattern)
    if not any(results.values()):
        logger.warning("no run of the study is finished: there is nothing to sum up")
        return None
    variants = summarise(results, spec.reference)
    title = f"Study {path.stem}"
    summary = Summary(title, spec.reference, variants, len(spec.seeds), pattern, spec.epoch)
    _show(summary, spec.output)
    return summary


def compare_runs(first: Path, second: Path, *, pattern: int | None, output: Path | None) -> None:
    """Compare two finished runs, query by query."""
    if first.resolve() == second.resolve():
        raise UserError(f"compare takes two different runs, not {first} twice")
    # One pair of runs: the seeds, equal or not, are not compared.
    results = {"A": {0: read_result(first, pattern)}, "B": {0: read_result(second, pattern)}}
    # What differs before training.
    changed = changed_keys(first, load_config(second / "config.yml"))
    listed = "\n".join(f"  {key}: {old!r} → {new!r}" for key, (old, new) in changed.items())
    logger.info("keys that differ from A to B\n%s", listed or "  none")
    threads = [thread_counts(folder) for folder in (first, second)]
    if threads[0] != threads[1] and all(threads):
        logger.warning("A was trained with %s threads and B with %s, which alone changes a model", *threads)
    title = f"B, {second}, against A, {first}"
    _show(Summary(title, "A", summarise(results, "A"), num_wanted=1, pattern=pattern), output)


def _show(summary: Summary, folder: Path | None) -> None:
    logger.info("summary\n\n%s", markdown(summary))
    if folder is not None:
        write_summary(summary, folder)
        logger.info("wrote the summary to %s", folder)
