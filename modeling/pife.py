"""PIFE: join each modality's global feature with the mean of its patches."""

import torch
from timm.layers import QuickGELU
from torch import Tensor, nn

from structures import Modality, PerModality


class PIFE(nn.Module):
    """One reduction 2C -> C per modality (DeMo's `GLOBAL_LOCAL`); C is `dim`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduce = nn.ModuleDict(
            {
                m.key: nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, dim), QuickGELU())
                for m in Modality
            }
        )

    def forward(self, globals_: PerModality[Tensor], patches: PerModality[Tensor]) -> PerModality[Tensor]:
        """Globals (B, C) and patches (B, N, C) -> new globals (B, C)."""
        return PerModality.build(
            lambda m: self.reduce[m.key](torch.cat([globals_.of(m), patches.of(m).mean(dim=1)], dim=-1))
        )
