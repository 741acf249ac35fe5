"""The backbone's own descriptor: the globals of the modalities, side by side or one alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from modeling.branches import Branch
from structures import BranchOutput, Modality, ModalTokens, Role


class Original(Branch):
    """The globals of some modalities, concatenated; has no weights.

    Args:
        dim: C.
        modalities: whose globals; DeMo's `DIRECT 1` takes all, `DIRECT 0` has one branch for each.
    """

    role = Role.ORIGINAL
    cost_titles: Mapping[str, str] = {}  # it costs nothing

    def __init__(self, dim: int, modalities: Sequence[Modality] = tuple(Modality)) -> None:
        super().__init__()
        self.parts = tuple(modalities)
        self.out_dim = dim * len(self.parts)

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """(B, C) of each modality -> (B, D)."""
        return BranchOutput(torch.cat([tokens.globals_.of(m) for m in self.parts], dim=1))
