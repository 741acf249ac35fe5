"""PIFE: join each modality's global feature with the mean of its patches."""

from collections.abc import Sequence

import torch
from timm.layers import QuickGELU
from torch import Tensor, nn

from structures import Modality, PerModality


class PIFE(nn.Module):
    """One reduction 2C -> C for each of the modalities (DeMo's `GLOBAL_LOCAL`); C is `dim`."""

    def __init__(self, dim: int, modalities: Sequence[Modality] = tuple(Modality)) -> None:
        super().__init__()
        self.reduce = nn.ModuleDict(
            {
                m.key: nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, dim), QuickGELU())
                for m in modalities
            }
        )

    def forward(self, globals_: PerModality[Tensor], patches: PerModality[Tensor]) -> PerModality[Tensor]:
        """Globals (B, C) and patches (B, N, C) -> new globals (B, C); others stay as they are."""

        def reduced(modality: Modality) -> Tensor:
            own, patch_mean = globals_.of(modality), patches.of(modality).mean(dim=1)
            if modality.key not in self.reduce:
                return own
            return self.reduce[modality.key](torch.cat([own, patch_mean], dim=-1))

        return PerModality.build(reduced)
