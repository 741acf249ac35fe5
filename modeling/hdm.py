"""HDM: decouple three modalities into what is special to each and what subsets of them share."""

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structures import Modality, PerModality, UserError

SUBSETS: dict[str, tuple[Modality, ...]] = {
    "".join(m.letter for m in subset): subset
    for size in range(1, len(Modality) + 1)
    for subset in combinations(Modality, size)
}
"""r, n, t, rn, rt, nt, rnt: the non-empty subsets of the modalities, smallest first."""


class QueryAttention(nn.Module):
    """Multi-head attention of one learnable query over a sequence of tokens.

    Args:
        dim: C.
        num_heads: number of heads.
        dropout: dropout on the attention weights.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Parameter(torch.randn(1, 1, dim) * dim**-0.5)
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, L, C) -> (B, heads, L, C / heads)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L, C) -> (B, C)."""
        dim = tokens.shape[-1]
        weight, bias = self.in_proj.weight, self.in_proj.bias
        query = F.linear(self.query.expand(len(tokens), -1, -1), weight[:dim], bias[:dim])  # (B, 1, C)
        key, value = F.linear(tokens, weight[dim:], bias[dim:]).chunk(2, dim=-1)  # (B, L, C) each
        attended = F.scaled_dot_product_attention(
            self._split_heads(query),
            self._split_heads(key),
            self._split_heads(value),
            dropout_p=self.dropout if self.training else 0.0,
        )  # (B, heads, 1, C / heads)
        return self.out_proj(attended.flatten(1))


class HDM(nn.Module):
    """Seven features, one for each subset of the modalities.

    Args:
        dim: C, a multiple of the head width.
        head_dim: width of one attention head.
        dropout: dropout on the attention weights.
    """

    def __init__(self, dim: int, *, head_dim: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        if dim % head_dim:
            raise UserError(f"HDM needs a token width that is a multiple of {head_dim}, not {dim}")
        self.attentions = nn.ModuleDict(
            {name: QueryAttention(dim, dim // head_dim, dropout) for name in SUBSETS}
        )

    def forward(self, globals_: PerModality[Tensor], patches: PerModality[Tensor]) -> Tensor:
        """Globals (B, C) and patches (B, N, C) -> (B, 7, C), in the order of `SUBSETS`."""
        tokens = PerModality.build(lambda m: torch.cat([globals_.of(m).unsqueeze(1), patches.of(m)], dim=1))
        features = [
            self.attentions[name](torch.cat([tokens.of(m) for m in subset], dim=1))
            for name, subset in SUBSETS.items()
        ]
        return torch.stack(features, dim=1)
