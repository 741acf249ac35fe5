"""The score of every query, which a training run saves: runs are compared query by query."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.run_folder import QUERY_SCORES
from structures import UserError


class QueryScores(NamedTuple):
    """The scores of a run with one return pattern, of the Q queries that have a positive in the gallery."""

    pattern: int
    names: np.ndarray  # of the files, (Q,)
    average_precisions: np.ndarray  # (Q,), in [0, 1]
    first_hits: np.ndarray  # rank of the first positive, (Q,), from 1


def read_scores(folder: Path, pattern: int | None = None, epoch: str = "last") -> QueryScores:
    """The scores of a run.

    Args:
        folder: of the run.
        pattern: the return pattern; None for the last. A model without a fusion part has the first alone.
        epoch: `last` or `best`.
    """
    path = folder / QUERY_SCORES[epoch]
    again = f"`python train_net.py --config_file {folder / 'config.yml'} --resume` makes it"
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
