"""DeMo's fusion: HDM decouples the modalities, ATMoE weighs what it gives."""

from __future__ import annotations

from torch import Tensor

from modeling.atmoe import ATMoE
from modeling.branches.base import Branch
from modeling.hdm import HDM, SUBSETS
from structures import BranchOutput, ModalTokens


class DeMoFusion(Branch):
    """Seven decoupled features per triple, weighed by a mixture of experts.

    Args:
        hdm: decouples.
        atmoe: weighs; None for the seven features as they are.
        dim: C.
    """

    def __init__(self, hdm: HDM, atmoe: ATMoE | None, dim: int) -> None:
        super().__init__()
        self.hdm = hdm
        self.atmoe = atmoe
        self.out_dim = dim * len(SUBSETS)

    @property
    def cost_titles(self) -> dict[str, str]:
        """HDM and ATMoE, each for itself."""
        return {"hdm": "HDM"} if self.atmoe is None else {"hdm": "HDM", "atmoe": "ATMoE"}

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """Globals and patches -> (B, 7, C)."""
        return BranchOutput(self.hdm(tokens.globals_, tokens.patches))

    def finish(self, features: Tensor) -> Tensor:
        """(B, 7, C) -> (B, 7C); the experts normalise over the whole batch."""
        return features.flatten(1) if self.atmoe is None else self.atmoe(features)
