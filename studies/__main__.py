"""Train variants with several seeds and compare them: `python -m tools.ablate SPEC.yml`; docs/ablation.md."""

from __future__ import annotations

from engine.arguments import answer_early
from tools.ablation.arguments import ablate_arguments

if __name__ == "__main__":
    answer_early(ablate_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from config import load_config
from engine.command import run_command
from engine.interrupt import RunStopped
from engine.runtime import setup_log
from structures import UserError
from tools.ablation.pages import check_summary_folder, markdown, write_summary
from tools.ablation.run_folder import (
    Run,
    RunState,
    changed_settings,
    check_threads,
    is_trained,
    lock_study,
    thread_counts,
)
from tools.ablation.runner import StudyRunner, train_command
from tools.ablation.scores import has_scores, score_queries
from tools.ablation.spec import StudySpec, check_jobs, read_spec
from tools.ablation.summary import RunResult, Summary, read_result, summarise

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a study, or list it, or sum it up; or compare two finished runs."""
    args = parse_arguments(argv)
    setup_log()
    if args.output is not None:
        check_summary_folder(args.output)
    if args.compare is not None:
        compare_runs(*args.compare, pattern=args.pattern, output=args.output)
        return
    spec = read_spec(args.spec)
    jobs = args.jobs or spec.jobs
    check_jobs(jobs, spec.devices)
    pattern = args.pattern or spec.pattern
    runs = spec.runs()
    for run in runs:
        run.check_settings()
    threads = spec.num_threads(jobs)
    check_threads(runs, None if args.summary else threads)
    if args.dry_run:
        list_runs(spec, runs, jobs)
        return
    check_summary_folder(spec.output)
    if args.summary:
        write_study(args.spec, spec, runs, pattern)
        return
    with lock_study(spec.output):
        devices: Sequence[str | None] = spec.devices[:jobs] or [None] * jobs
        runner = StudyRunner(runs, devices=devices, threads=threads)
        try:
            failures = runner.execute()
        except RunStopped as stopped:
            again = shlex.join(sys.argv[1:] if argv is None else argv)
            logger.warning("%s; go on with: python -m tools.ablate %s", stopped, again)
            raise SystemExit(stopped.status) from None
        write_study(args.spec, spec, runs, pattern)
    if failures:
        listed = "\n".join(f"  {failure.run.name}: {failure.reason}" for failure in failures)
        logger.error(
            "%d of %d runs failed; the same command tries them again\n%s", len(failures), len(runs), listed
        )
        raise SystemExit(1)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    args = ablate_arguments(argv)
    if (args.spec is None) == (args.compare is None):
        raise UserError(
            "give either a study, as in python -m tools.ablate SPEC.yml, or --compare RUN_A RUN_B"
        )
    if args.compare is None and args.output is not None:
        raise UserError("--output belongs to --compare; a study names its folder itself, with output:")
    if args.compare is not None and (args.dry_run or args.summary or args.jobs is not None):
        raise UserError("--dry_run, --summary and --jobs belong to a study, not to --compare")
    if args.jobs is not None and args.jobs < 1:
        raise UserError(f"--jobs must be 1 or more, not {args.jobs}")
    return args


def list_runs(spec: StudySpec, runs: Sequence[Run], jobs: int) -> None:
    """Log what would run."""
    lines = [f"{run.name:<40} {run.state.value}" for run in runs]
    untrained = [run for run in runs if run.state in (RunState.NEW, RunState.INTERRUPTED)]
    commands = [f"python {shlex.join(train_command(run)[1:])}" for run in untrained]
    left = sum(run.epochs - run.epochs_done for run in untrained)
    threads = spec.num_threads(jobs)
    logger.info("%d runs in %s, compared with %s", len(runs), spec.output, spec.reference)
    logger.info("%d at once with %d threads each; %d epochs are left", jobs, threads, left)
    logger.info("what would run\n%s", "\n".join([*lines, *commands]))


def write_study(path: Path, spec: StudySpec, runs: Sequence[Run], pattern: int | None) -> None:
    """Sum up the runs that are finished, log it and write it."""
    results: dict[str, dict[int, RunResult]] = {variant.name: {} for variant in spec.variants}
    for run in runs:
        if run.state is RunState.DONE:
            results[run.variant][run.seed] = read_result(run.folder, pattern, spec.epoch)
    if not any(results.values()):
        logger.warning("no run of the study is finished: there is nothing to sum up")
        return
    num_seeds = len(spec.seeds)
    summary = summarise(
        f"Study {path.stem}",
        results,
        reference=spec.reference,
        num_wanted=num_seeds,
        pattern=pattern,
        epoch=spec.epoch,
    )
    _show(summary, spec.output)


def compare_runs(first: Path, second: Path, *, pattern: int | None, output: Path | None) -> None:
    """Compare two finished runs, query by query."""
    if first.resolve() == second.resolve():
        raise UserError(f"--compare takes two different runs, not {first} twice")
    for folder in (first, second):
        if not is_trained(folder):
            raise UserError(f"{folder} does not hold a finished run (a metrics.json with a summary)")
    for folder in (first, second):
        if not has_scores(folder):
            score_queries(folder)
    changed = changed_settings(first, load_config(second / "config.yml"))
    listed = "\n".join(f"  {key}: {old!r} → {new!r}" for key, (old, new) in changed.items())
    logger.info("settings that differ from A to B\n%s", listed or "  none")
    threads = [sorted(thread_counts(folder)) for folder in (first, second)]
    if threads[0] != threads[1] and all(threads):
        logger.warning("A was trained with %s threads and B with %s, which alone changes a model", *threads)
    # One pair of runs: the seeds, equal or not, are not compared.
    results = {
        name: {0: read_result(folder, pattern)} for name, folder in zip("AB", (first, second), strict=True)
    }
    title = f"B, {second}, against A, {first}"
    summary = summarise(title, results, reference="A", num_wanted=1, pattern=pattern)
    _show(summary, output)


def _show(summary: Summary, folder: Path | None) -> None:
    logger.info("summary\n\n%s", markdown(summary))
    if folder is not None:
        logger.info("wrote %s", ", ".join(str(path) for path in write_summary(summary, folder)))


if __name__ == "__main__":
    run_command(main)
