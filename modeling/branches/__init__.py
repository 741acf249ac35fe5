"""Branches: each turns the backbone's tokens into one descriptor, with a head and losses of its own.

A branch is one file here, or anywhere else; `docs/extending.md` adds one from outside the checkout.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from structures import BranchOutput, ModalTokens, Role


class Branch(nn.Module):
    """A way from tokens to a descriptor.

    The model calls `forward` with the part of the batch that this process encoded, joins the features of all
    processes, and calls `finish` with those of the whole batch. So batch normalisation belongs in `finish`,
    and the result does not depend on the number of processes.
    """

    out_dim: int  # D, the width of what `finish` gives
    role: Role = Role.FUSED  # what its features are for
    # What the cost report calls the branch, by the path of the module below it; the empty path is the whole
    # branch, and an empty title the name of its class.
    cost_titles: Mapping[str, str] = {"": ""}

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """The features of each triple, with losses and a selection where the branch has any."""
        raise NotImplementedError

    def finish(self, features: Tensor) -> Tensor:
        """The features of the whole batch -> (B, D)."""
        return features
