"""Train the runs of a study, several at once, and stop them in order."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tqdm import tqdm

from engine.files import check_regular
from engine.interrupt import RunStopped, StopRequested, StopSwitch
from structures import UserError
from tools.ablation.run_folder import CONSOLE, Run, RunState, begin_session, end_session, is_in_use

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent.parent
LINES_SHOWN = 12  # of the output of a failed run

MakeCommand = Callable[[Run], list[str]]
"""What a process of a run is started with."""


def train_command(run: Run) -> list[str]:
    """train_net.py, resumed where there is something to go on with."""
    how = "--resume" if run.state is RunState.INTERRUPTED else "--overwrite"
    program = ROOT / "train_net.py" if run.program is None else run.program
    return [sys.executable, str(program), how, "--config_file", str(run.config_file), *run.words]


def score_command(run: Run) -> list[str]:
    """The evaluation that keeps the score of each query."""
    cfg = run.cfg
    settings = ["DATASETS.ROOT_DIR", cfg.DATASETS.ROOT_DIR, "MODEL.DEVICE_ID", cfg.MODEL.DEVICE_ID]
    command = [sys.executable, "-m", "tools.ablation.scores", "--epoch", run.epoch]
    program = [] if run.program is None else ["--program", str(run.program)]
    return [*command, *program, str(run.folder), *settings]


@dataclass(frozen=True)
class Failure:
    """A run that did not come to its end.

    Attributes:
        run: which.
        reason: one line.
    """

    run: Run
    reason: str


@dataclass(frozen=True)
class _Active:
    """A process that is under way."""

    run: Run
    is_training: bool
    process: subprocess.Popen[bytes]
    device: str | None
    start: float


class StudyRunner:
    """Brings every run of a study to its end: trained, and its queries scored.

    Args:
        runs: in the order in which they start.
        devices: the CUDA device of each of the runs at once; None where there is no choice.
        threads: CPU threads of each process.
        train: makes the command that trains a run.
        score: makes the command that scores the queries of a trained run.
        poll_seconds: between two looks at the processes.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        devices: Sequence[str | None],
        threads: int,
        train: MakeCommand = train_command,
        score: MakeCommand = score_command,
        poll_seconds: float = 0.5,
    ) -> None:
        self.runs = list(runs)
        self.jobs = len(devices)
        self.threads = threads
        self.train = train
        self.score = score
        self.poll_seconds = poll_seconds
        self.failures: list[Failure] = []
        self._free = list(devices)
        self._find_waiting()
        self._active: list[_Active] = []
        self._epochs = {run.name: run.epochs_done for run in self.runs}
        self._switch = StopSwitch()

    def execute(self) -> list[Failure]:
        """Do what is left; returns the runs that failed.

        Raises:
            RunStopped: a signal asked to stop, and the training processes have saved.
        """
        with self._switch.listen():
            try:
                self._wait_for_earlier_processes()
                self._work()
            except StopRequested:
                raise RunStopped(*self._end_processes()) from None
            except UserError:
                self._end_processes()
                raise
            finally:
                for active in self._active:  # only after a defect, or a second signal
                    with suppress(ProcessLookupError):
                        os.killpg(active.process.pid, signal.SIGKILL)
        return self.failures

    def _wait_for_earlier_processes(self) -> None:
        """If the study itself was killed, its training processes may still run."""
        told = False
        while busy := [run.name for run in self._waiting if is_in_use(run.folder)]:
            if not told:
                logger.warning("waiting for runs that an earlier start has left: %s", ", ".join(busy))
            told = True
            self._pause()
        if told:
            self._find_waiting()

    def _find_waiting(self) -> None:
        self._waiting = [run for run in self.runs if run.state is not RunState.DONE]
        self._num_finished = len(self.runs) - len(self._waiting)

    def _work(self) -> None:
        start, first = time.perf_counter(), sum(self._epochs.values())
        total = sum(run.epochs for run in self.runs)
        bar = tqdm(desc="study", total=total, initial=first, unit="epoch", smoothing=0, disable=None)
        with bar:
            while self._waiting or self._active:
                while self._free and self._waiting:
                    self._start(self._waiting.pop(0))
                self._pause()
                ended = [active for active in self._active if active.process.poll() is not None]
                finished = [active.run for active in ended if self._end(active)]
                done, left = self._count_epochs()
                eta = remaining_seconds(time.perf_counter() - start, done - first, left)
                status = f"{self._num_finished}/{len(self.runs)} runs finished, {len(self.failures)} failed"
                for run in finished:
                    logger.info("%s is finished; %s, ETA %s", run.name, status, _duration(eta))
                bar.total = done + left
                bar.set_postfix_str(status, refresh=False)
                bar.n = done
                bar.refresh()

    def _pause(self) -> None:
        time.sleep(self.poll_seconds)
        if self._switch.signal is not None:
            raise StopRequested

    def _start(self, run: Run) -> None:
        """Start the next process of a run on a free place."""
        is_training = run.state is not RunState.TRAINED
        device = self._free.pop(0)
        chosen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = self.train(run) if is_training else self.score(run)
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            if is_training:
                begin_session(run, threads=self.threads, jobs=self.jobs, device=device)
            check_regular(run.folder / CONSOLE)
            with (run.folder / CONSOLE).open("ab") as console:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **threads, **chosen, "PYTHONPATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches the study alone, which then stops its processes
                )
        except OSError as error:
            raise UserError(f"{run.folder}: the run cannot be started: {error}") from None
        self._active.append(_Active(run, is_training, process, device, time.perf_counter()))
        logger.info("%s: %s", run.name, "training" if is_training else "scoring the queries")

    def _end(self, active: _Active) -> bool:
        """Note how a process has ended, and give its place free; True if the run is finished."""
        self._active.remove(active)
        self._free.insert(0, active.device)
        run, status = active.run, active.process.returncode
        what = "training" if active.is_training else "scoring the queries"
        reason = f"{what} ended with status {status}"
        if active.is_training:
            end_session(run, time.perf_counter() - active.start)
        if status == 0:
            try:
                self._epochs[run.name] = run.epochs_done
                state = run.state
            except UserError as error:  # of this run; the others go on
                state, reason = None, str(error)
            if state is RunState.DONE:
                self._num_finished += 1
                return True
            if state is RunState.TRAINED and active.is_training:
                self._waiting.insert(0, run)
                return False
            reason = reason if state is None else f"{what} ended well, but without a result"
        self.failures.append(Failure(run, reason))
        console = run.folder / CONSOLE
        message = "%s failed: %s; the others go on. The end of %s:\n%s"
        logger.error(message, run.name, reason, console, last_lines(console))
        return False

    def _end_processes(self) -> tuple[str, int]:
        """Ask all processes to stop, and wait until they have saved; message and status for the end."""
        number = self._switch.signal or signal.SIGTERM
        if self._active:
            names = ", ".join(active.run.name for active in self._active)
            logger.warning("waiting until %s have saved; a second signal ends them at once", names)
        for active in self._active:
            active.process.terminate()
        while self._active:
            for active in [active for active in self._active if active.process.poll() is not None]:
                self._active.remove(active)
                if active.is_training:
                    end_session(active.run, time.perf_counter() - active.start)
            time.sleep(min(self.poll_seconds, 0.1))
        done = f"{self._num_finished} of {len(self.runs)} runs are finished and will not be repeated"
        return f"the study was stopped by {number.name}; {done}", 128 + number

    def _count_epochs(self) -> tuple[int, int]:
        """The epochs that are done, and those that are left for the runs that have not failed."""
        for active in self._active:
            self._epochs[active.run.name] = active.run.epochs_done
        unfinished = [*self._waiting, *(active.run for active in self._active)]
        left = sum(max(run.epochs - self._epochs[run.name], 0) for run in unfinished)
        return sum(self._epochs.values()), left


def remaining_seconds(elapsed: float, done: int, left: int) -> float | None:
    """Time for the epochs that are left, at the speed of those that are done; None if none is done."""
    return elapsed * left / done if done > 0 else None


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else str(timedelta(seconds=round(seconds)))


def last_lines(path: Path, count: int = LINES_SHOWN) -> str:
    """The end of a text file, each line set in."""
    lines = path.read_text(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in lines) or "    (nothing)"
