"""Runs that another study has trained already: they are copied, and not trained again."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from config import load_config
from engine.files import save_json
from engine.run_folder import QUERY_SCORES
from errors import UserError
from studies.run_folder import RECORD, TRAINER, Run, describe_training, is_trained, read_record, thread_counts

logger = logging.getLogger(__name__)


def find_twins(runs: Sequence[Run], study: Path, threads: int) -> dict[Run, Path]:
    """By run without a folder, a finished one of a study beside `study` that was trained in the same way.

    The same are all settings but OUTPUT_DIR, with them the seed, and the program and the number of threads.
    """
    twins: dict[Run, Path] = {}
    new = {describe_training(run.program_name, run.cfg): run for run in runs if not run.folder.exists()}
    folders = {path for run in new.values() for path in study.parent.glob(f"*/*/seed_{run.seed}")}
    for folder in sorted(folders):
        with suppress(UserError):  # of another study, which says so itself
            if not is_trained(folder) or thread_counts(folder) != [threads]:
                continue
            program = read_record(folder).get("program", TRAINER)
            run = new.get(describe_training(program, load_config(folder / "config.yml")))
            if run is not None and (folder / QUERY_SCORES[run.epoch]).is_file():
                twins.setdefault(run, folder)
    return twins


def copy_twins(twins: Mapping[Run, Path]) -> None:
    """Copy the folders of finished runs; a copy gets its name when it is whole."""
    for run, twin in twins.items():
        scratch = run.folder.with_name(f".{run.folder.name}.copy")
        try:
            shutil.rmtree(scratch, ignore_errors=True)  # of a study that was killed
            shutil.copytree(twin, scratch, ignore=shutil.ignore_patterns(".lock"))
            save_json(scratch / RECORD, {**read_record(twin), "copied_from": str(twin)})
            scratch.rename(run.folder)
        except OSError as error:
            raise UserError(f"{twin} cannot be copied to {run.folder}: {error}") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        logger.info("%s: copied from %s, which was trained in the same way", run.name, twin)
