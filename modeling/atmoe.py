"""ATMoE: weigh the seven decoupled features by an attention-triggered mixture of experts."""

import torch
from timm.layers import QuickGELU
from torch import Tensor, nn

from structures import UserError


class ATMoE(nn.Module):
    """A gate per head and feature, an expert per head and feature.

    Args:
        dim: C.
        num_features: E, the number of features to weigh.
        num_heads: H; each expert handles C / H channels of one feature.
    """

    def __init__(self, dim: int, *, num_features: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise UserError(f"MODEL.HEAD ({num_heads}) must divide the token width of the backbone ({dim})")
        self.num_heads = num_heads
        width = dim // num_heads
        self.scale = width**-0.5
        self.experts = nn.ModuleDict(
            {
                f"head{h}_feature{e}": nn.Sequential(
                    nn.Linear(width, width), QuickGELU(), nn.BatchNorm1d(width)
                )
                for e in range(num_features)
                for h in range(num_heads)
            }
        )
        self.summary = nn.Sequential(nn.Linear(num_features * dim, dim), QuickGELU(), nn.BatchNorm1d(dim))
        self.to_query = nn.Linear(dim, dim, bias=False)
        self.to_key = nn.Linear(dim, dim, bias=False)

    def gates(self, features: Tensor) -> Tensor:
        """How much each feature counts in each head. (B, E, C) -> (B, H, E); sums to 1 over E."""
        query = self.to_query(self.summary(features.flatten(1))).unflatten(-1, (self.num_heads, -1))
        key = self.to_key(features).unflatten(-1, (self.num_heads, -1))
        return torch.einsum("bhd,behd->bhe", query, key).mul(self.scale).softmax(dim=-1)

    def forward(self, features: Tensor) -> Tensor:
        """(B, E, C) -> (B, E * C)."""
        gates = self.gates(features)
        chunks = features.unflatten(-1, (self.num_heads, -1))  # (B, E, H, C / H)
        answers = [
            self.experts[f"head{h}_feature{e}"](chunks[:, e, h])
            for e in range(chunks.shape[1])
            for h in range(chunks.shape[2])
        ]
        answer = torch.stack(answers, dim=1).view_as(chunks)
        return (answer * gates.transpose(1, 2).unsqueeze(-1)).flatten(1)
