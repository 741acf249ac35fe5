"""One run of a study: its folder, how far it has come, and what it was trained with."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from yacs.config import CfgNode

from config import load_config
from config.compare import HARMLESS
from config.schema import flatten
from engine.files import take_lock
from engine.run_folder import QUERY_SCORES
from errors import UserError
from structures import BEST_ON, LAST_EPOCH

EPOCHS = {"last": LAST_EPOCH, "best": BEST_ON["validation"]}
"""By the name in a study and of the checkpoint, the entry of metrics.json that is compared."""
TRAINER = "train_net.py"
RECORD = "study.json"
"""In each run folder: the program that trained it, the seconds of each of its training processes, and the
folder of another study that it was copied from, if it was."""
CONSOLE = "console.txt"
"""In each run folder: what its processes printed."""


class RunState(Enum):
    """How far a run has come."""

    NEW = "to be trained"
    INTERRUPTED = "to be resumed"
    DONE = "finished"


@dataclass(frozen=True, eq=False)
class Run:
    """One variant with one seed."""

    variant: str  # its name
    seed: int  # SOLVER.SEED
    folder: Path  # OUTPUT_DIR
    config_file: Path  # for --config_file
    words: tuple[str, ...]  # the overrides, `KEY VALUE …`
    cfg: CfgNode  # the configuration that they give
    program: Path | None = None  # what trains in place of train_net.py
    epoch: str = "last"  # which is compared: `last` or `best`

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.variant}/seed_{self.seed}"

    @property
    def program_name(self) -> str:
        """What trains, for the record."""
        return str(self.program or TRAINER)

    @property
    def epochs_left(self) -> int:
        """How many are to be trained."""
        done = len((read_metrics(self.folder) or {}).get("epochs", []))
        return max(int(self.cfg.SOLVER.MAX_EPOCHS) - done, 0)

    @property
    def state(self) -> RunState:
        """What its folder says. A run without the scores of its queries is resumed, which makes them."""
        if is_trained(self.folder) and (self.folder / QUERY_SCORES[self.epoch]).is_file():
            return RunState.DONE
        return RunState.INTERRUPTED if (self.folder / "last.pth").is_file() else RunState.NEW

    def is_in_use(self) -> bool:
        """Whether a training process still writes into the folder."""
        lock = self.folder / ".lock"
        return lock.is_file() and take_lock(lock) is None


def check_runs(runs: Sequence[Run], threads: int | None) -> None:
    """Refuse to continue, or to compare, runs that were trained in another way than the study asks for.

    Args:
        runs: of a study.
        threads: the number that the study gives to its runs; None if nothing is going to be trained.
    """
    other = f"the study asks for {threads}"
    for run in runs:
        if run.state is RunState.NEW:  # nothing of it will be used
            continue
        # Configuration and program.
        changed = changed_keys(run.folder, run.cfg)
        before = read_record(run.folder).get("program", run.program_name)
        if before != run.program_name:
            changed["program"] = (before, run.program_name)
        if changed:
            listed = ", ".join(f"{key} was {old!r} and is {new!r} now" for key, (old, new) in changed.items())
            raise UserError(
                f"{run.folder} was trained in another way than the study asks for: {listed}; "
                "change the study back, name another output, or delete that folder"
            )
        # Threads.
        for count in thread_counts(run.folder):
            if threads is None:
                threads, other = count, f"{run.folder} with {count}"
            if count != threads:
                raise UserError(
                    f"{run.folder} was trained with {count} threads, but {other}, and their number changes "
                    f"the trained model; set threads: {count} in the study, name another output, or delete "
                    "that folder to train it again"
                )


def describe_training(program: str, cfg: CfgNode) -> str:
    """The same text for runs that differ in OUTPUT_DIR alone."""
    return f"{program} {dict(flatten(cfg)) | {'OUTPUT_DIR': ''}}"


def thread_counts(folder: Path) -> list[int]:
    """The numbers of threads that a run was trained with: one, unless it was resumed with another."""
    return sorted({entry["threads"] for entry in (read_metrics(folder) or {}).get("environments", [])})


def changed_keys(folder: Path, cfg: CfgNode) -> dict[str, tuple[Any, Any]]:
    """The values of a run that alter its result and differ from `cfg`, as {key: (of the run, of cfg)}.

    A key that the run does not know yet, because it is younger, has its default.
    """
    before, now = (dict(flatten(config)) for config in (load_config(folder / "config.yml"), cfg))
    return {key: (before[key], now[key]) for key in sorted(now.keys() - HARMLESS) if before[key] != now[key]}


def is_trained(folder: Path) -> bool:
    """Whether the training of a run has come to its end."""
    return "summary" in (read_metrics(folder) or {})


def finished_runs(study: Path, variants: Sequence[str] | None) -> dict[str, list[Path]]:
    """The folders of the trained runs by variant, to evaluate them; of all variants if none is named."""
    names = variants or sorted(path.name for path in study.glob("*") if path.is_dir())
    runs = {name: sorted(filter(is_trained, (study / name).glob("seed_*"))) for name in names}
    for name in names or [""]:
        if not runs.get(name):
            raise UserError(f"{study / name} holds no finished runs; name a folder that `studies run` made")
        for folder in runs[name]:
            program = read_record(folder).get("program", TRAINER)
            if program != TRAINER and not _is_imported(Path(program)):
                raise UserError(
                    f"{folder} was trained by {program}, and what that registers or patches is not here; "
                    "import it before the command (docs/extending.md), or name other --variants"
                )
    return runs


def _is_imported(program: Path) -> bool:
    """Whether this process has imported the program as a module."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    same_name = [Path(file) for file in files if file and Path(file).name == program.name]
    return program.resolve() in [file.resolve() for file in same_name]


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """The metrics.json of a run, or None if there is none yet."""
    content = _read_json(folder / "metrics.json")
    if content is not None and not isinstance(content.get("epochs"), list):
        raise UserError(f"{folder / 'metrics.json'} is not the metrics.json of a run; delete that folder")
    return content


def read_record(folder: Path) -> dict[str, Any]:
    """What the study has recorded about a run; empty for runs that no study has made."""
    return _read_json(folder / RECORD) or {}


class QueryScores(NamedTuple):
    """The scores of a run with one return pattern, of the Q queries that have a positive in the gallery."""

    pattern: int
    names: np.ndarray  # of the files, (Q,)
    average_precisions: np.ndarray  # (Q,), in [0, 1]
    first_hits: np.ndarray  # rank of the first positive, (Q,), from 1


def read_scores(folder: Path, pattern: int | None = None, epoch: str = "last") -> QueryScores:
    """The scores of the queries of a run, in its last or best epoch.

    They are those of the last return pattern, unless the model has the one that is asked for.
    """
    path = folder / QUERY_SCORES[epoch]
    again = f"`python train_net.py --config_file {folder}/config.yml --resume OUTPUT_DIR {folder}` makes it"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            patterns = [int(number) for number in arrays["patterns"]]
            chosen = pattern if pattern in patterns else patterns[-1]
            names, hits = arrays["names"], arrays[f"first_hits_{chosen}"]
            precisions = arrays[f"average_precisions_{chosen}"]
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; {again}") from None
    except (OSError, ValueError, EOFError, KeyError):
        raise UserError(f"{path} cannot be read; delete it: {again} again") from None
    scored = ~np.isnan(precisions)
    return QueryScores(chosen, names[scored], precisions[scored], hits[scored])


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} cannot be read; delete the folder to repeat the run")
    return content
