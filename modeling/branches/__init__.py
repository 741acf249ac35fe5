"""Branches: each turns the backbone's tokens into one descriptor, with a head and losses of its own.

A branch is one file here, or anywhere else; `docs/extending.md` adds one from outside the checkout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from structures import BranchOutput, Modality, ModalTokens, Role


class Branch(nn.Module):
    """A way from tokens to a descriptor.

    The model calls `forward` with the part of the batch that this process encoded, joins the features of all
    processes, and calls `finish` with those of the whole batch. So batch normalisation belongs in `finish`,
    a loss over the whole batch in `batch_losses`, and the result does not depend on the number of processes.
    """

    out_dim: int  # D, the width of what `finish` gives
    role: Role = Role.FUSED  # what its features are for
    needs: Collection[str] = frozenset()  # fields of `ModalTokens` that are None unless a branch needs them
    selects: bool = False  # whether it gives a `Selection`
    train_neck_bias: bool = False  # whether the batch normalisation of its head learns its bias
    shared_head: str = ""  # the name of a head that several branches use; empty for one of its own
    needs_all: bool = False  # whether it compares all three modalities, so that none may be left out
    # The modalities whose parts, of equal width, stand side by side in the features; none after a fusion.
    parts: tuple[Modality, ...] = ()
    # What the cost report calls the branch, by the path of the module below it; the empty path is the whole
    # branch, and an empty title the name of its class.
    cost_titles: Mapping[str, str] = {"": ""}

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """The features of each triple, with losses and a selection where the branch has any.

        Tokens of an absent image are zeros, or learned; `tokens.present` says which count.
        """
        raise NotImplementedError

    def finish(self, features: Tensor) -> Tensor:
        """The features of the whole batch -> (B, D)."""
        return features

    def batch_losses(self, rows: dict[str, Tensor], person_ids: Tensor) -> dict[str, Tensor]:
        """Losses by name that need the whole batch, such as a contrast between its samples; training only.

        Args:
            rows: the `rows` of `BranchOutput`, joined over all processes, each (B, …).
            person_ids: (B,) labels.

        Returns:
            Scalars; called with the whole batch in every process, so that they do not depend on their number.
            A memory that is updated here stays the same in all of them.
        """
        return {}
