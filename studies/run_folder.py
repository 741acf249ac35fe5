"""One run of a study: its folder, how far it has come, and what it was trained with."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

from yacs.config import CfgNode

from config import load_config
from config.compare import HARMLESS
from config.validate import flatten
from engine.files import save_json, take_lock
from structures import UserError
from tools.ablation.scores import has_scores

logger = logging.getLogger(__name__)

RECORD = "ablate.json"
"""In each run folder: what the study knows of the run beside what train_net.py writes."""
CONSOLE = "console.txt"
"""In each run folder: what its processes printed."""


class RunState(Enum):
    """How far a run has come."""

    NEW = "to be trained"
    INTERRUPTED = "to be resumed"
    TRAINED = "trained; the queries are to be scored"
    DONE = "finished"


@dataclass(frozen=True)
class Run:
    """One variant with one seed.

    Attributes:
        variant: its name.
        seed: SOLVER.SEED.
        folder: OUTPUT_DIR.
        config_file: for --config_file.
        words: `KEY VALUE …` behind it.
        cfg: the configuration that they give.
        program: what trains in place of train_net.py, or None.
        epoch: whose queries are scored: `last` or `best`.
    """

    variant: str
    seed: int
    folder: Path
    config_file: Path
    words: tuple[str, ...]
    cfg: CfgNode
    program: Path | None = None
    epoch: str = "last"

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.variant}/seed_{self.seed}"

    @property
    def epochs(self) -> int:
        """How many there will be."""
        return int(self.cfg.SOLVER.MAX_EPOCHS)

    @property
    def epochs_done(self) -> int:
        """How many there are."""
        return len((read_metrics(self.folder) or {}).get("epochs", []))

    @property
    def state(self) -> RunState:
        """What its folder says."""
        if is_trained(self.folder):
            return RunState.DONE if has_scores(self.folder, self.epoch) else RunState.TRAINED
        return RunState.INTERRUPTED if (self.folder / "last.pth").is_file() else RunState.NEW

    def check_settings(self) -> None:
        """Refuse to go on with, or to use, a run that was trained with other settings."""
        if self.state is RunState.NEW:  # nothing of it will be used
            return
        changed = changed_settings(self.folder, self.cfg)
        before, now = read_record(self.folder).get("program"), program_name(self.program)
        if before is not None and before != now:
            changed["program"] = (before, now)
        if changed:
            listed = ", ".join(f"{key} was {old!r} and is {new!r} now" for key, (old, new) in changed.items())
            raise UserError(
                f"{self.folder} was trained with other settings than the study asks for: {listed}; "
                "change the study back, name another output, or delete that folder"
            )


def thread_counts(folder: Path) -> set[int]:
    """The numbers of threads that a run was trained with: one, unless it was resumed with another."""
    known = (read_metrics(folder) or {}).get("environments") or read_record(folder).get("sessions", [])
    return {int(entry["threads"]) for entry in known}


def check_threads(runs: Sequence[Run], wanted: int | None) -> None:
    """Refuse to go on with, or to compare, runs that were trained with different numbers of threads.

    Args:
        runs: of a study.
        wanted: the number that the study gives to its runs; None if nothing is going to be trained.
    """
    other = f"the study asks for {wanted}"
    for run in runs:
        counts = set() if run.state is RunState.NEW else thread_counts(run.folder)
        for count in sorted(counts):
            if wanted is None:
                wanted, other = count, f"{run.folder} with {count}"
            if count != wanted:
                raise UserError(
                    f"{run.folder} was trained with {count} threads, but {other}, and their number changes "
                    f"the trained model; set threads: {count} in the study, name another output, or delete "
                    "that folder to train it again"
                )


def program_name(program: Path | None) -> str:
    """What trains, for the record of a run."""
    return "train_net.py" if program is None else str(program)


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """The metrics.json of a run, or None if there is none yet."""
    content = _read_json(folder / "metrics.json")
    if content is not None and not isinstance(content.get("epochs"), list):
        raise UserError(f"{folder / 'metrics.json'} is not the metrics.json of a run; delete that folder")
    return content


def is_trained(folder: Path) -> bool:
    """Whether the training of a run has come to its end."""
    return "summary" in (read_metrics(folder) or {})


def changed_settings(folder: Path, cfg: CfgNode) -> dict[str, tuple[Any, Any]]:
    """The settings of a run that alter its result and differ from `cfg`, as {key: (of the run, of cfg)}.

    A setting that the run does not know yet, because it is younger, has its default.
    """
    before = dict(flatten(load_config(folder / "config.yml")))
    now = dict(flatten(cfg))
    return {key: (before[key], now[key]) for key in sorted(now.keys() - HARMLESS) if before[key] != now[key]}


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run; empty for runs that no study has made."""
    return _read_json(folder / RECORD) or {}


def begin_session(run: Run, *, threads: int, jobs: int, device: str | None) -> None:
    """Note that a training process starts; its time is not known yet.

    Args:
        run: the run.
        threads: CPU threads of the process.
        jobs: runs at once, which share the machine.
        device: the CUDA device, if one was chosen.
    """
    resumes = run.state is RunState.INTERRUPTED
    sessions = read_record(run.folder).get("sessions", []) if resumes else []
    sessions.append({"seconds": None, "threads": threads, "jobs": jobs, "device": device})
    save_json(run.folder / RECORD, {"program": program_name(run.program), "sessions": sessions})


def end_session(run: Run, seconds: float) -> None:
    """Note how long the training process took that `begin_session` announced."""
    record = read_record(run.folder)
    record["sessions"][-1]["seconds"] = seconds
    save_json(run.folder / RECORD, record)


def training_seconds(folder: Path) -> float | None:
    """Time of all training processes of a run; None where it is not known of each."""
    seconds = [session["seconds"] for session in read_record(folder).get("sessions", [])]
    return None if not seconds or None in seconds else float(sum(seconds))


def lock_study(folder: Path) -> IO[bytes]:
    """Refuse a study folder that another process works on; the lock lasts as long as the returned file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = take_lock(folder / ".lock")
    except OSError as error:
        raise UserError(f"the study folder {folder} cannot be written: {error.strerror}") from None
    if file is None:
        raise UserError(f"{folder} is in use by another study; wait for it, or change output")
    return file


def is_in_use(folder: Path) -> bool:
    """Whether a training process still writes into a run folder."""
    try:
        with (folder / ".lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read; delete the folder to repeat the run") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold what it should; delete the folder to repeat the run")
    return content
