"""HDM: decouple three modalities into what is special to each and what subsets of them share.

Each subset has one learnable query and its own multi-head attention over the tokens of its modalities. With a
single query, keys and values of the tokens need not be computed. For the head h,

- the logit of a token x is qₕ · (Kₕ x + bias) = (Kₕᵀ qₕ) · x + a constant, which the softmax drops;
- the output Σ wᵢ (Vₕ xᵢ + bias) is Vₕ (Σ wᵢ xᵢ) + (Σ wᵢ) bias, where dropout makes Σ wᵢ differ from 1.

So the projections act on a few vectors in place of all tokens. The result is that of `nn.MultiheadAttention`
but for rounding, and dropout draws the same random numbers.
"""

from itertools import combinations
from typing import cast

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


USERS = PerModality.build(lambda m: [name for name, subset in SUBSETS.items() if m in subset])
"""For each modality the subsets that it is in."""


class QueryAttention(nn.Module):
    """The parameters of a multi-head attention with one learnable query, and what is done with them.

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

    def folded_query(self) -> Tensor:
        """One vector per head, (heads, C); its product with a token is the token's logit."""
        query_weight, key_weight, _ = self.in_proj.weight.chunk(3)
        query = F.linear(self.query.flatten(), query_weight, self.in_proj.bias.chunk(3)[0])
        query = query.unflatten(0, (self.num_heads, 1, -1))  # (heads, 1, C / heads)
        return (query @ key_weight.unflatten(0, (self.num_heads, -1))).squeeze(1) * query.shape[-1] ** -0.5

    def weigh(self, logits: Tensor) -> Tensor:
        """Logits of L tokens to their weights, both (B, heads, L)."""
        return F.dropout(logits.softmax(dim=2), self.dropout, self.training)

    def read_out(self, sums: Tensor, totals: Tensor) -> Tensor:
        """Weighted sums of tokens (B, heads, C) and of the weights (B, heads) to the output (B, C)."""
        weight = self.in_proj.weight.chunk(3)[2].unflatten(0, (self.num_heads, -1))
        bias = self.in_proj.bias.chunk(3)[2].unflatten(0, (self.num_heads, -1))
        values = (sums.transpose(0, 1) @ weight.mT).transpose(0, 1)  # (B, heads, C / heads)
        return self.out_proj((values + totals.unsqueeze(2) * bias).flatten(1))


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
            raise UserError(
                f"MODEL.HDM needs a token width that is a multiple of {head_dim}, but that of this backbone "
                f"is {dim}; choose another MODEL.TRANSFORMER_TYPE, or set MODEL.HDM and MODEL.ATM to False"
            )
        self.attentions = nn.ModuleDict(
            {name: QueryAttention(dim, dim // head_dim, dropout) for name in SUBSETS}
        )

    def forward(self, globals_: PerModality[Tensor], patches: PerModality[Tensor]) -> Tensor:
        """Globals (B, C) and patches (B, N, C) -> (B, 7, C), in the order of `SUBSETS`.

        The tokens of a modality are multiplied with the queries of its four subsets at once.
        """
        tokens = PerModality.build(lambda m: torch.cat([globals_.of(m).unsqueeze(1), patches.of(m)], dim=1))
        attentions = cast("dict[str, QueryAttention]", dict(self.attentions.items()))
        queries = {name: attention.folded_query() for name, attention in attentions.items()}
        logits = _by_subset(
            PerModality.build(lambda m: torch.cat([queries[n] for n in USERS.of(m)]) @ tokens.of(m).mT)
        )
        weights, shares = {}, {}
        for name, subset in SUBSETS.items():
            weights[name] = attentions[name].weigh(torch.cat(logits[name], dim=2))
            parts = weights[name].split([tokens.of(m).shape[1] for m in subset], dim=2)
            shares[name] = dict(zip(subset, parts, strict=True))  # of each modality, (B, heads, N + 1)
        sums = _by_subset(
            PerModality.build(lambda m: torch.cat([shares[n][m] for n in USERS.of(m)], dim=1) @ tokens.of(m))
        )
        features = [
            attention.read_out(torch.stack(sums[name]).sum(dim=0), weights[name].sum(dim=2))
            for name, attention in attentions.items()
        ]
        return torch.stack(features, dim=1)


def _by_subset(joint: PerModality[Tensor]) -> dict[str, list[Tensor]]:
    """Rows of each modality's four subsets, (B, 4 · heads, X), to those of each subset, (B, heads, X)."""
    parts: dict[str, list[Tensor]] = {name: [] for name in SUBSETS}
    for names, rows in zip(USERS, joint, strict=True):
        for name, part in zip(names, rows.chunk(len(names), dim=1), strict=True):
            parts[name].append(part)
    return parts
