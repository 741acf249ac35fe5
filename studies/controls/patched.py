"""What the programs of the studies share: they patch a function, and then train as train_net.py does.

By hand: `python -m studies.controls.own_only --config_file …`.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

import train_net
from engine.command import run_command
from modeling.seps import sdtps


def score_by(choose: Callable[[Tensor, Sequence[Tensor]], Tensor]) -> None:
    """Let SDTPS score patches by some of the similarities alone.

    Args:
        choose: from the similarity with the own global, (B, N), and those with the others', to the scores.
    """

    def combine_scores(learned: Tensor, own: Tensor, others: Sequence[Tensor], beta: float) -> Tensor:
        return choose(own, others) + 0 * learned  # the predictor has no say, but stays in the graph

    sdtps.combine_scores = combine_scores


def train() -> None:
    """As train_net.py, with its arguments."""
    run_command(train_net.main)
