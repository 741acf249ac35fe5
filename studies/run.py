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
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from engine.files import check_regular, save_json, take_lock
from engine.interrupt import RunStopped, StopRequested, StopSwitch
from errors import UserError
from studies.compare import write_study
from studies.pages import check_summary_folder
from studies.run_folder import CONSOLE, RECORD, Run, RunState, check_runs, read_record
from studies.spec import StudySpec, read_spec

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent
LINES_SHOWN = 12  # of the output of a failed run

MakeCommand = Callable[[Run], list[str]]
"""What a process of a run is started with."""


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
    if args.dry_run:
        list_runs(spec, jobs, threads)
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
    # Train, score and sum up, while nobody else works on the study.
    with lock:
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


def list_runs(spec: StudySpec, jobs: int, threads: int) -> None:
    """Log what would run."""
    states = [f"{run.name:<40} {run.state.value}" for run in spec.runs]
    untrained = [run for run in spec.runs if run.state in (RunState.NEW, RunState.INTERRUPTED)]
    commands = [f"python {shlex.join(train_command(run)[1:])}" for run in untrained]
    left = sum(run.epochs_left for run in untrained)
    logger.info("%d runs in %s, compared with %s", len(spec.runs), spec.output, spec.reference)
    logger.info("%d at once with %d threads each; %d epochs are left", jobs, threads, left)
    logger.info("what would run\n%s", "\n".join([*states, *commands]))


def train_command(run: Run) -> list[str]:
    """train_net.py, resumed where a checkpoint is saved."""
    how = "--resume" if run.state is RunState.INTERRUPTED else "--overwrite"
    program = run.program or ROOT / "train_net.py"
    return [sys.executable, str(program), how, "--config_file", str(run.config_file), *run.words]


def score_command(run: Run) -> list[str]:
    """The evaluation that keeps the score of each query."""
    cfg = run.cfg
    command = [sys.executable, "-m", "studies.scores", run.epoch, str(run.program or "")]
    overrides = ["DATASETS.ROOT_DIR", cfg.DATASETS.ROOT_DIR, "MODEL.DEVICE_ID", cfg.MODEL.DEVICE_ID]
    return [*command, str(run.folder), *overrides]


class StudyRunner:
    """Brings every run of a study to its end: trained, and its queries scored.

    One thread per device waits for the processes of one run after another.

    Args:
        runs: in the order in which they start.
        devices: the CUDA device of each of the runs at once; None where there is no choice.
        threads: CPU threads of each process.
        train: makes the command that trains a run.
        score: makes the command that scores the queries of a trained run.
        poll_seconds: between two looks at signals.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        devices: Sequence[str | None],
        threads: int,
        *,
        train: MakeCommand = train_command,
        score: MakeCommand = score_command,
        poll_seconds: float = 0.5,
    ) -> None:
        self.runs, self.jobs, self.threads = runs, len(devices), threads
        self.train, self.score, self.poll_seconds = train, score, poll_seconds
        self.failures: dict[str, str] = {}  # name of the run -> reason
        self._free: SimpleQueue[str | None] = SimpleQueue()
        for device in devices:
            self._free.put(device)
        self._lock = Lock()  # over what follows
        self.num_finished = 0
        self._active: dict[str, subprocess.Popen[bytes]] = {}  # by the name of the run
        self._stopping = False
        self._switch = StopSwitch()

    def execute(self) -> dict[str, str]:
        """Do what is left; returns the runs that failed, each with the reason.

        Raises:
            RunStopped: a signal asked to stop, and the training processes have saved.
        """
        with self._switch.listen(), ThreadPoolExecutor(self.jobs) as pool:
            pending: set[Future[None]] = set()
            try:
                self._wait_for_earlier_processes()
                left = [run for run in self.runs if run.state is not RunState.DONE]
                self.num_finished = len(self.runs) - len(left)
                pending = {pool.submit(self._finish, run) for run in left}
                while pending:
                    done, pending = wait(pending, timeout=self.poll_seconds)
                    for future in done:
                        future.result()  # raises what is a defect
                    self._check_signal()
            except StopRequested:
                logger.warning("waiting until the runs have saved; a second signal ends them at once")
                self._end_processes(subprocess.Popen.terminate)
                wait(pending)
                number = self._switch.signal or signal.SIGTERM
                kept = f"{self.num_finished} of {len(self.runs)} runs are finished and will not be repeated"
                raise RunStopped(f"the study was stopped by {number.name}; {kept}", 128 + number) from None
            finally:  # nothing is left, unless after a defect or a second signal
                self._end_processes(lambda process: os.killpg(process.pid, signal.SIGKILL))
        return self.failures

    def _wait_for_earlier_processes(self) -> None:
        """If the study itself was killed, its training processes may still run."""
        told = False
        while busy := [run.name for run in self.runs if run.is_in_use()]:
            if not told:
                logger.warning("waiting for runs that an earlier start has left: %s", ", ".join(busy))
            told = True
            time.sleep(self.poll_seconds)
            self._check_signal()

    def _check_signal(self) -> None:
        if self._switch.signal is not None:
            raise StopRequested

    def _finish(self, run: Run) -> None:
        """Train and score a run on a free device, and log how it ended; nothing once the study stops."""
        if self._stopping:
            return
        device = self._free.get()
        try:
            reason = self._train_and_score(run, device)
        except (UserError, OSError) as error:  # of this run; the others continue
            reason = str(error)
        finally:
            self._free.put(device)
        if reason is None:
            with self._lock:
                self.num_finished += 1
            logger.info("%s is finished: %d of %d runs", run.name, self.num_finished, len(self.runs))
        elif not self._stopping:
            self.failures[run.name] = reason
            console = run.folder / CONSOLE
            lines = console.read_text(errors="replace").splitlines() if console.is_file() else []
            shown = "\n".join(f"    {line}" for line in lines[-LINES_SHOWN:])
            message = "%s failed: %s; the others continue. The end of %s:\n%s"
            logger.error(message, run.name, reason, console, shown)

    def _train_and_score(self, run: Run, device: str | None) -> str | None:
        """Returns why the run failed, or None."""
        run.folder.mkdir(parents=True, exist_ok=True)
        if (state := run.state) is not RunState.TRAINED:
            logger.info("%s: training", run.name)
            # Record the time of this process after those of earlier ones; it is not known if the study dies.
            earlier = read_record(run.folder).get("seconds", []) if state is RunState.INTERRUPTED else []
            record = {"program": run.program_name, "seconds": [*earlier, None]}
            save_json(run.folder / RECORD, record)
            start = time.perf_counter()
            status = self._call(self.train(run), run, device)
            save_json(run.folder / RECORD, {**record, "seconds": [*earlier, time.perf_counter() - start]})
            if status != 0:
                return f"training ended with status {status}"
            if run.state not in (RunState.TRAINED, RunState.DONE):
                return "training ended well, but without a result"
        if run.state is RunState.TRAINED:
            logger.info("%s: scoring the queries", run.name)
            status = self._call(self.score(run), run, device)
            if status != 0:
                return f"scoring the queries ended with status {status}"
        return None if run.state is RunState.DONE else "scoring the queries ended well, but without a result"

    def _call(self, command: Sequence[str], run: Run, device: str | None) -> int | None:
        """Start a process of a run and wait for its end; returns its status, or None if the study stops."""
        chosen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with (run.folder / CONSOLE).open("ab") as console, self._lock:
            if self._stopping:
                return None
            process = self._active[run.name] = subprocess.Popen(
                command,
                env={**os.environ, **threads, **chosen, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the study alone, which then stops its processes
            )
        status = process.wait()
        with self._lock:
            del self._active[run.name]
        return status

    def _end_processes(self, end: Callable[[subprocess.Popen[bytes]], None]) -> None:
        """Start no more processes, and end those that run."""
        with self._lock:
            self._stopping = True
            for process in self._active.values():
                with suppress(ProcessLookupError):
                    end(process)
