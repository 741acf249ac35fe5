"""`python -m studies run`: train the runs of a study, several at once, and stop them in order."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from engine.files import check_regular, save_json, take_lock
from engine.interrupt import RunStopped, StopRequested, StopSwitch
from errors import UserError
from studies.compare import write_study
from studies.pages import check_summary_folder
from studies.reuse import copy_twins, find_twins
from studies.run_folder import CONSOLE, RECORD, TRAINER, Run, RunState, check_runs, read_record
from studies.spec import StudySpec, read_spec

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent
LINES_SHOWN = 12  # of the output of a failed run


def main(args: argparse.Namespace) -> None:
    """Do what is left of a study and sum it up, or list it."""
    # Check everything before the first run starts.
    spec = read_spec(args.spec)
    jobs = spec.jobs if args.jobs is None else args.jobs
    if jobs < 1:
        raise UserError(f"--jobs must be 1 or more, not {jobs}")
    spec.check_jobs(jobs)
    threads = spec.num_threads(jobs)
    check_runs(spec.runs, threads)
    twins = find_twins(spec.runs, spec.output, threads)
    if args.dry_run:
        list_runs(spec, jobs, threads, twins)
        return
    check_summary_folder(spec.output)
    for run in spec.runs:
        check_regular(run.folder / CONSOLE)
    try:
        spec.output.mkdir(parents=True, exist_ok=True)
        lock = take_lock(spec.output / ".lock")
    except OSError as error:
        raise UserError(f"the study folder {spec.output} cannot be written: {error.strerror}") from None
    if lock is None:
        raise UserError(f"{spec.output} is in use by another study; wait for it, or change output")
    # Train and sum up, while nobody else works on the study.
    with lock:
        copy_twins(twins)
        try:
            failures = StudyRunner(spec.runs, spec.devices[:jobs] or [None] * jobs, threads).execute()
        except RunStopped as stopped:
            option = f" --jobs {jobs}" if args.jobs else ""
            again = f"python -m studies run {shlex.quote(str(args.spec))}{option}"
            logger.warning("%s; continue with: %s", stopped, again)
            raise SystemExit(stopped.status) from None
        write_study(args.spec, spec, args.pattern)
    if failures:
        listed = "\n".join(f"  {name}: {reason}" for name, reason in failures.items())
        message = "%d of %d runs failed; the same command tries them again\n%s"
        logger.error(message, len(failures), len(spec.runs), listed)
        raise SystemExit(1)


def list_runs(spec: StudySpec, jobs: int, threads: int, twins: Mapping[Run, Path]) -> None:
    """Log what would run; `twins` are the runs that would be copied."""
    copied = {run: f"to be copied from {twin}" for run, twin in twins.items()}
    states = [f"{run.name:<40} {copied.get(run, run.state.value)}" for run in spec.runs]
    untrained = [run for run in spec.runs if run.state is not RunState.DONE and run not in twins]
    commands = [f"python {shlex.join(train_command(run)[1:])}" for run in untrained]
    left = sum(run.epochs_left for run in untrained)
    logger.info("%d runs in %s, compared with %s", len(spec.runs), spec.output, spec.reference)
    logger.info("%d at once with %d threads each; %d epochs are left", jobs, threads, left)
    logger.info("what would run\n%s", "\n".join([*states, *commands]))


def train_command(run: Run) -> list[str]:
    """train_net.py, resumed where a checkpoint is saved."""
    how = "--resume" if run.state is RunState.INTERRUPTED else "--overwrite"
    program = run.program or ROOT / TRAINER
    return [sys.executable, str(program), how, "--config_file", str(run.config_file), *run.words]


class Job(NamedTuple):
    """A training process."""

    run: Run
    device: str | None
    process: subprocess.Popen[bytes]
    earlier: list[float | None]  # seconds of the earlier processes of the run
    start: float


class StudyRunner:
    """Trains every run of a study to its end.

    Args:
        runs: in the order in which they start.
        devices: the CUDA device of each of the runs at once; None where there is no choice.
        threads: CPU threads of each process.
        train: makes the command that trains a run.
        poll_seconds: between two looks at processes and signals.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        devices: Sequence[str | None],
        threads: int,
        *,
        train: Callable[[Run], list[str]] = train_command,
        poll_seconds: float = 0.5,
    ) -> None:
        self.runs, self.threads, self.train, self.poll_seconds = runs, threads, train, poll_seconds
        self.failures: dict[str, str] = {}  # name of the run -> reason
        self.num_finished = 0
        self._free = list(devices)
        self._jobs: list[Job] = []
        self._switch = StopSwitch()

    def execute(self) -> dict[str, str]:
        """Do what is left; returns the runs that failed, each with the reason.

        Raises:
            RunStopped: a signal asked to stop, and the training processes have saved.
        """
        with self._switch.listen():
            try:
                # Start runs as long as devices are free, and take note of those that end.
                self._wait_for_earlier_processes()
                left = [run for run in self.runs if run.state is not RunState.DONE]
                self.num_finished = len(self.runs) - len(left)
                while left or self._jobs:
                    while left and self._free:
                        self._start(left.pop(0))
                    self._pause()
                    for job in [job for job in self._jobs if job.process.poll() is not None]:
                        self._finish(job)
            except StopRequested:
                logger.warning("waiting until the runs have saved; a second signal ends them at once")
                for job in self._jobs:
                    job.process.terminate()
                for job in list(self._jobs):
                    self._finish(job)
                # All have saved: say what is left to do.
                number = self._switch.signal or signal.SIGTERM
                kept = f"{self.num_finished} of {len(self.runs)} runs are finished and will not be repeated"
                raise RunStopped(f"the study was stopped by {number.name}; {kept}", 128 + number) from None
            finally:  # nothing is left, unless after a defect or a second signal
                for job in self._jobs:
                    with suppress(ProcessLookupError):
                        os.killpg(job.process.pid, signal.SIGKILL)
        return self.failures

    def _wait_for_earlier_processes(self) -> None:
        """If the study itself was killed, its training processes may still run."""
        told = False
        while busy := [run.name for run in self.runs if run.is_in_use()]:
            if not told:
                logger.warning("waiting for runs that an earlier start has left: %s", ", ".join(busy))
            told = True
            self._pause()

    def _pause(self) -> None:
        time.sleep(self.poll_seconds)
        if self._switch.signal is not None:
            raise StopRequested

    def _start(self, run: Run) -> None:
        """Start to train a run on a free device."""
        # What the process sees.
        device = self._free[0]
        chosen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        try:
            # The time of this process is not known if the study dies.
            run.folder.mkdir(parents=True, exist_ok=True)
            earlier = read_record(run.folder).get("seconds", []) if run.state is RunState.INTERRUPTED else []
            _record(run, [*earlier, None])
            with (run.folder / CONSOLE).open("ab") as console:
                process = subprocess.Popen(
                    self.train(run),
                    env={**os.environ, **threads, **chosen, "PYTHONPATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches the study alone, which then stops its processes
                )
        except (UserError, OSError) as error:  # of this run; the others continue
            self._fail(run, str(error))
            return
        logger.info("%s: training", run.name)
        self._free.remove(device)
        self._jobs.append(Job(run, device, process, earlier, time.perf_counter()))

    def _finish(self, job: Job) -> None:
        """Wait for a process and log how its run ended. A run that was asked to stop did not fail."""
        run, status = job.run, job.process.wait()
        self._jobs.remove(job)
        self._free.append(job.device)
        try:
            _record(run, [*job.earlier, time.perf_counter() - job.start])
            is_done = run.state is RunState.DONE
        except (UserError, OSError) as error:
            self._fail(run, str(error))
            return
        if status == 0 and is_done:
            self.num_finished += 1
            logger.info("%s is finished: %d of %d runs", run.name, self.num_finished, len(self.runs))
        elif self._switch.signal is None:
            without = "training ended well, but without a result"
            self._fail(run, f"training ended with status {status}" if status else without)

    def _fail(self, run: Run, reason: str) -> None:
        self.failures[run.name] = reason
        console = run.folder / CONSOLE
        lines = console.read_text(errors="replace").splitlines() if console.is_file() else []
        shown = "\n".join(f"    {line}" for line in lines[-LINES_SHOWN:])
        message = "%s failed: %s; the others continue. The end of %s:\n%s"
        logger.error(message, run.name, reason, console, shown)


def _record(run: Run, seconds: list[float | None]) -> None:
    save_json(run.folder / RECORD, {"program": run.program_name, "seconds": seconds})
