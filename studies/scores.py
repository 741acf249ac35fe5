"""The score of every query of a finished run.

metrics.json has means alone; to compare two runs query by query, the weights are evaluated once more, by
`python -m studies.scores EPOCH PROGRAM RUN KEY VALUE …`, which `studies run` starts.
"""

from __future__ import annotations

import hashlib
import logging
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.build import build_test_data
from engine.build import make_device
from engine.command import run_command
from engine.files import save_arrays
from engine.runtime import setup_log
from errors import UserError
from evaluation.build import make_evaluate
from structures import BEST_ON, LAST_EPOCH
from trained import load_trained

logger = logging.getLogger(__name__)

EPOCHS = {"last": LAST_EPOCH, "best": BEST_ON["validation"]}
"""By the name in a study and of the checkpoint, the entry of metrics.json that is compared."""
FILES = {"last": "query_scores.npz", "best": "query_scores_best.npz"}
"""In each run folder: the scores of last.pth, and those of best.pth."""


class QueryScores(NamedTuple):
    """The scores of a run with one return pattern, of the Q queries that have a positive in the gallery."""

    pattern: int
    names: np.ndarray  # of the files, (Q,)
    average_precisions: np.ndarray  # (Q,), in [0, 1]
    first_hits: np.ndarray  # rank of the first positive, (Q,), from 1


def has_scores(folder: Path, epoch: str = "last") -> bool:
    """Whether the queries of the run as it is now have been scored, with the last or the best weights."""
    arrays = _read(folder / FILES[epoch])
    return arrays is not None and str(arrays["run"]) == _fingerprint(folder)


def read_scores(folder: Path, pattern: int | None = None, epoch: str = "last") -> QueryScores:
    """The scores of a run.

    Args:
        folder: of the run.
        pattern: the return pattern; None for the last. A model without a fusion part has the first alone.
        epoch: `last` or `best`.
    """
    arrays = _read(folder / FILES[epoch])
    if arrays is None:
        raise UserError(f"{folder / FILES[epoch]} does not exist; `studies run` makes it")
    patterns = [int(number) for number in arrays["patterns"]]
    chosen = pattern if pattern in patterns else patterns[-1]
    precisions = arrays[f"average_precisions_{chosen}"]
    scored = ~np.isnan(precisions)
    hits = arrays[f"first_hits_{chosen}"]
    return QueryScores(chosen, arrays["names"][scored], precisions[scored], hits[scored])


def score_queries(folder: Path, overrides: Sequence[str] = (), epoch: str = "last") -> None:
    """Evaluate a checkpoint of a finished run, as test_net.py does, and keep the score of each query.

    Args:
        folder: of the run.
        overrides: `KEY VALUE …` that differ from those of the run: where the data are, which device.
        epoch: `last` for last.pth, `best` for best.pth.
    """
    weights = folder / f"{epoch}.pth"
    if not weights.is_file():
        raise UserError(f"{weights} does not exist; without it the queries of the run cannot be scored")
    trained = load_trained(weights, overrides)
    device = make_device(trained.cfg)
    data = build_test_data(trained.cfg, trained.split)
    (result,) = make_evaluate(trained.cfg, data.test, device)(trained.model.to(device)).values()
    ranking = result.ranking
    names = np.array(result.samples.names)[data.test.query_rows]
    arrays = {
        "run": np.array(_fingerprint(folder)),
        "names": names,
        "patterns": np.array(list(ranking)),
        **{f"average_precisions_{p}": metrics.average_precisions for p, metrics in ranking.items()},
        **{f"first_hits_{p}": metrics.first_hits for p, metrics in ranking.items()},
    }
    save_arrays(folder / FILES[epoch], arrays)
    logger.info("wrote the scores of %d queries to %s", len(names), folder / FILES[epoch])


def _fingerprint(folder: Path) -> str:
    """Tells a run from one that was trained anew in the same folder."""
    return hashlib.sha256((folder / "metrics.json").read_bytes()).hexdigest()


def _read(path: Path) -> dict[str, np.ndarray] | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, KeyError):
        raise UserError(f"{path} cannot be read; delete it, and it is made again") from None


def main(argv: Sequence[str] | None = None) -> None:
    """Score the queries of one run."""
    epoch, program, run, *overrides = sys.argv[1:] if argv is None else argv
    setup_log()
    if program:
        sys.path.insert(0, str(Path(program).parent))  # as where Python runs it
        runpy.run_path(program)  # it patches, but does not train, since its name is not __main__
    score_queries(Path(run), overrides, epoch)


if __name__ == "__main__":
    run_command(main)
