"""A gate per modality: a spoiled image counts less in what the branches make of the triple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from structures import Modality, ModalTokens, PerModality


class ModalityGate(nn.Module):
    """Multiplies the tokens of an image by a scalar in (0, 2) that its own tokens decide; 1 at the start.

    Args:
        dim: C.
        modalities: each has weights of its own.
    """

    def __init__(self, dim: int, modalities: Sequence[Modality] = tuple(Modality)) -> None:
        super().__init__()
        self.score = nn.ModuleDict(
            {m.key: nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, 1)) for m in modalities}
        )
        for layer in self.score.modules():
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def gates(self, tokens: ModalTokens) -> PerModality[Tensor]:
        """The gate of each image, (B, 1); 1 for a modality without weights."""

        def gate(modality: Modality) -> Tensor:
            own, patches = tokens.globals_.of(modality), tokens.patches.of(modality)
            if modality.key not in self.score:
                return torch.ones_like(own[:, :1])
            seen = torch.cat([own, patches.mean(dim=1)], dim=1)
            return 2 * self.score[modality.key](seen).sigmoid()

        return PerModality.build(gate)

    def forward(self, tokens: ModalTokens) -> ModalTokens:
        """Globals (B, C) and patches (B, N, C), each times its gate; class tokens, which guide, stay."""
        gates = self.gates(tokens)
        return replace(
            tokens,
            globals_=PerModality.build(lambda m: gates.of(m) * tokens.globals_.of(m)),
            patches=PerModality.build(lambda m: gates.of(m).unsqueeze(2) * tokens.patches.of(m)),
        )
