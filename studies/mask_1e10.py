"""Train with the mask that others use: the failing control of studies/gumbel.yml, no option of the product.

The value of the masked softmax is the same; its derivative with respect to the decision is 1e10 times too
large. Takes the arguments of train_net.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where train_net.py and the rooms are

from torch import Tensor

import train_net
from engine.setup import run_command
from modeling import sdtps


def softmax_with_1e10(logits: Tensor, decision: Tensor) -> Tensor:
    """See `modeling.sdtps.masked_softmax`."""
    return (logits - (1 - decision).unsqueeze(-2) * 1e10).softmax(dim=-1)


if __name__ == "__main__":
    sdtps.masked_softmax = softmax_with_1e10
    run_command(train_net.main)
