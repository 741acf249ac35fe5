"""DeMo's fusion: HDM decouples the modalities, ATMoE weighs the features that it gives.

HDM: each subset of the modalities has one learnable query and its own multi-head attention over the tokens of
its modalities. With a single query, keys and values of the tokens need not be computed. For the head h,

- the logit of a token x is qₕ · (Kₕ x + bias) = (Kₕᵀ qₕ) · x + a constant, which the softmax drops;
- the output Σ wᵢ (Vₕ xᵢ + bias) is Vₕ (Σ wᵢ xᵢ) + (Σ wᵢ) bias, where dropout makes Σ wᵢ differ from 1.

So the projections act on a few vectors in place of all tokens. The result is that of `nn.MultiheadAttention`
but for rounding, and dropout draws the same random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from timm.layers import QuickGELU
from torch import Tensor, nn

from errors import UserError
from modeling.branches import Branch
from structures import BranchOutput, Modality, ModalTokens, PerModality


def subsets_of(modalities: Sequence[Modality]) -> dict[str, tuple[Modality, ...]]:
    """The non-empty subsets by name, smallest first: r, n, t, rn, rt, nt, rnt."""
    sizes = range(1, len(modalities) + 1)
    subsets = [subset for size in sizes for subset in combinations(modalities, size)]
    return {"".join(m.letter for m in subset): subset for subset in subsets}


SUBSETS = subsets_of(tuple(Modality))
"""Those of the three modalities."""


class QueryAttention(nn.Module):
    """Multi-head attention with one learnable query, and dropout on the attention weights."""

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

    def forward(self, tokens: Tensor, present: Tensor | None = None) -> Tensor:
        """L tokens (B, L, C) -> (B, C); `present`, (B, L) booleans, says which of them count."""
        weights, biases = (entry.chunk(3) for entry in (self.in_proj.weight, self.in_proj.bias))
        per_head = (self.num_heads, -1)
        # Fold the key projection into the query: one vector per head, (heads, C).
        query = F.linear(self.query.flatten(), weights[0], biases[0]).unflatten(0, per_head).unsqueeze(1)
        folded = (query @ weights[1].unflatten(0, per_head)).squeeze(1) * query.shape[-1] ** -0.5
        # Weigh the tokens, (B, heads, L). Those that do not count get a share of 0; not by -inf, since a
        # sample may have none that counts.
        logits = folded @ tokens.mT
        if present is not None:
            logits = logits.masked_fill(~present.unsqueeze(1), torch.finfo(logits.dtype).min)
        shares = F.dropout(logits.softmax(dim=2), self.dropout, self.training)
        # Apply the value projection to the weighted sums, giving (B, heads, C / heads).
        sums = (shares @ tokens).transpose(0, 1)  # (heads, B, C)
        values = (sums @ weights[2].unflatten(0, per_head).mT).transpose(0, 1)
        bias = shares.sum(dim=2, keepdim=True) * biases[2].unflatten(0, per_head)
        return self.out_proj((values + bias).flatten(1))


class HDM(nn.Module):
    """One feature for each of the S subsets of the modalities: seven of three.

    An absent modality is left out of every subset; a subset without any image gives zeros.

    Args:
        dim: C, a multiple of the head width.
        modalities: those of which there are subsets.
        head_dim: width of one attention head.
        dropout: dropout on the attention weights.
    """

    def __init__(
        self,
        dim: int,
        modalities: Sequence[Modality] = tuple(Modality),
        *,
        head_dim: int = 64,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if dim % head_dim:
            raise UserError(
                f"MODEL.HDM needs a token width that is a multiple of {head_dim}, but that of this backbone "
                f"is {dim}; choose another MODEL.TRANSFORMER_TYPE, or set MODEL.HDM and MODEL.ATM to False"
            )
        self.subsets = subsets_of(modalities)
        self.attentions = nn.ModuleDict(
            {name: QueryAttention(dim, dim // head_dim, dropout) for name in self.subsets}
        )

    def forward(
        self,
        globals_: PerModality[Tensor],
        patches: PerModality[Tensor],
        present: PerModality[Tensor] | None = None,
    ) -> Tensor:
        """Globals (B, C) and patches (B, N, C) -> (B, S, C), in the order of `subsets`.

        `present` has (B,) booleans of each modality: whether its tokens count.
        """
        tokens = PerModality.build(lambda m: torch.cat([globals_.of(m).unsqueeze(1), patches.of(m)], dim=1))
        features = []
        for name, subset in self.subsets.items():
            joined = torch.cat([tokens.of(m) for m in subset], dim=1)
            if present is None:
                features.append(self.attentions[name](joined))
                continue
            there = torch.stack([present.of(m) for m in subset], dim=1)  # (B, modalities)
            counts = there.repeat_interleave(tokens.rgb.shape[1], dim=1)
            feature = self.attentions[name](joined, counts)
            features.append(feature.masked_fill(~there.any(dim=1, keepdim=True), 0.0))
        return torch.stack(features, dim=1)


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


class DeMoFusion(Branch):
    """The decoupled features of a triple, weighed by a mixture of experts; without `atmoe`, as they are."""

    def __init__(self, hdm: HDM, atmoe: ATMoE | None, dim: int) -> None:
        super().__init__()
        self.hdm = hdm
        self.atmoe = atmoe
        self.out_dim = dim * len(hdm.subsets)
        self.cost_titles = {"hdm": "HDM"} if atmoe is None else {"hdm": "HDM", "atmoe": "ATMoE"}

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """Globals and patches -> (B, S, C), S subsets."""
        return BranchOutput(self.hdm(tokens.globals_, tokens.patches, tokens.present))

    def finish(self, features: Tensor) -> Tensor:
        """(B, S, C) -> (B, SC); the experts normalise over the whole batch."""
        return features.flatten(1) if self.atmoe is None else self.atmoe(features)
