"""SDTPS: select the patch tokens that matter and aggregate them, guided by the other modalities.

This file is the definition of SDTPS. It needs nothing but torch, and also works when it is copied alone into
another project. network.py applies the same functions to every pair of an image and a text.

Shapes: B samples, N patches, C channels, K kept patches, A aggregated tokens, M modalities, "..." any leading
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROUNDING_SLACK = 1e-9  # 100 * 0.07 is 7.000000000000001 in floating point, and must count as 7
LARGEST_LEAD = 10.0  # of a discarded patch's logit over the highest kept one, so that e^l does not overflow


class Choice(NamedTuple):
    """Which patches are kept."""

    kept: Tensor  # indices of the kept patches, ascending, (..., K), in [0, N)
    discarded: Tensor  # indices of the others, best score first, (..., N - K)
    decision: Tensor  # D, 1 where a patch is kept and 0 elsewhere, (..., N); with Gumbel it has a gradient


class SparseTokens(NamedTuple):
    """What a selector such as `TokenSparse` decided; see also `Choice`.

    The sources of a score are the learned part, the similarity with the own global, and those with the
    globals of the other modalities. A selector without such parts has none, (B, 0, N).
    """

    extra: Tensor  # one token that stands for the discarded patches, (B, 1, C)
    decision: Tensor  # (B, N)
    kept: Tensor  # (B, K)
    scores: Tensor  # one per patch, (B, N); larger is kept
    sources: Tensor  # what the scores are made of, (B, 1 + M, N)


class AggregatedTokens(NamedTuple):
    """What SDTPS makes of one modality; `decision` to `sources` are those of `SparseTokens`."""

    tokens: Tensor  # A aggregated tokens, then the extra token, (B, A + 1, C)
    decision: Tensor  # (B, N)
    kept: Tensor  # (B, K)
    scores: Tensor  # (B, N)
    sources: Tensor  # (B, 1 + M, N)
    weights: Tensor | None  # share of each kept patch in each token, (B, A, K); None without aggregation


def num_kept(num_patches: int, sparse_ratio: float) -> int:
    """K = ceil(N * sparse_ratio), at least 1."""
    return max(1, math.ceil(num_patches * sparse_ratio - ROUNDING_SLACK))


def num_aggregated(num_patches: int, sparse_ratio: float, aggr_ratio: float) -> int:
    """A = floor(N * aggr_ratio * sparse_ratio), at least 1."""
    return max(1, math.floor(num_patches * aggr_ratio * sparse_ratio + ROUNDING_SLACK))


def full_precision(values: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def min_max_normalise(scores: Tensor, eps: float = 1e-8) -> Tensor:
    """Stretch the scores of each sample to [0, 1]. (..., N) -> (..., N)."""
    low = scores.amin(dim=-1, keepdim=True)
    high = scores.amax(dim=-1, keepdim=True)
    return (scores - low) / (high - low + eps)


@torch.no_grad()
def guidance_score(patches: Tensor, guide: Tensor) -> Tensor:
    """The cosine similarity of each patch with a global, min-max normalised. (B, N, C), (B, C) -> (B, N)."""
    patches, guide = full_precision(patches), full_precision(guide)
    return min_max_normalise(F.cosine_similarity(patches, guide.unsqueeze(1), dim=-1))


def combine_scores(learned: Tensor, own: Tensor, others: Sequence[Tensor], beta: float) -> Tensor:
    """(1 - 2 beta) * learned + beta * (sum of others + 2 * own); all (..., N)."""
    return (1 - 2 * beta) * learned + beta * sum(others, 2 * own)


def straight_through_gumbel(scores: Tensor, hard: Tensor, tau: float) -> Tensor:
    """The decision `hard`, equal bit for bit, with the gradient of a Gumbel softmax; all (..., N)."""
    gumbel = -torch.empty_like(scores).exponential_().log()
    soft = ((scores + gumbel) / tau).softmax(dim=-1)
    # The brackets matter: (hard + soft) - soft would round, hard + 0 does not.
    return hard + (soft - soft.detach())


def choose(scores: Tensor, sparse_ratio: float, gumbel_tau: float | None = None) -> Choice:
    """Keep the K patches with the highest noise-free scores; of equal ones the earlier.

    Args:
        scores: (..., N).
        sparse_ratio: share of the patches to keep.
        gumbel_tau: temperature of the gradient of the decision; None for a decision without gradient.
    """
    keep = num_kept(scores.shape[-1], sparse_ratio)
    ranked = scores.argsort(dim=-1, descending=True, stable=True)
    kept = ranked[..., :keep].sort(dim=-1).values
    hard = torch.zeros_like(scores).scatter(-1, kept, 1.0)
    decision = hard if gumbel_tau is None else straight_through_gumbel(scores, hard, gumbel_tau)
    return Choice(kept, ranked[..., keep:], decision)


def extra_weights(scores: Tensor, discarded: Tensor) -> Tensor:
    """The share of each discarded patch in the extra token: softmax of their scores, (..., N - K)."""
    return scores.gather(-1, discarded).softmax(dim=-1)


def extra_token(patches: Tensor, scores: Tensor, discarded: Tensor) -> Tensor:
    """The discarded patches, weighted by the softmax of their scores; zeros if none is discarded.

    Patches (B, N, C), scores (B, N) and the indices of the discarded patches (B, N - K) -> (B, 1, C).
    """
    weights = extra_weights(scores, discarded).to(patches.dtype)  # (B, N - K)
    tokens = patches.gather(1, discarded.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
    return weights.unsqueeze(1) @ tokens


def masked_softmax(logits: Tensor, decision: Tensor) -> Tensor:
    """Softmax over the patches that D keeps: W_i = D_i e^{l_i} / sum_k D_k e^{l_k}.

    The value is that of a softmax over the kept patches, and exactly 0 for the others. The derivative with
    respect to D exists for both: a discarded patch can learn that it should have been kept. Softmax of
    `logits - (1 - D) * 1e10` has the same value, but its derivative is 1e10 times too large at kept patches
    and 0 at the others. See docs/method.md.

    Args:
        logits: (..., A, N).
        decision: D, (..., N): 1 for kept patches, of which there is at least one, and 0 for others.

    Returns:
        (..., A, N), in the precision of D; each row sums to 1.
    """
    decision = decision.unsqueeze(-2)
    logits = logits.to(decision.dtype)
    highest = logits.detach().masked_fill(decision == 0, float("-inf")).amax(dim=-1, keepdim=True)
    shares = decision * (logits - highest).clamp(max=LARGEST_LEAD).exp()
    return shares / shares.sum(dim=-1, keepdim=True)


def score_network(dim: int) -> nn.Sequential:
    """(..., C) -> (..., 1), one logit per patch."""
    return nn.Sequential(nn.Linear(dim, dim // 4), nn.GELU(), nn.Linear(dim // 4, 1))


def weight_network(dim: int, num_tokens: int) -> nn.Sequential:
    """(..., C) -> (..., A), the logit of a patch for each aggregated token."""
    hidden = int(0.2 * dim)
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, num_tokens))


class TokenSparse(nn.Module):
    """Score the patches of one modality and keep the best.

    score = (1 - 2 beta) * learned + beta * (sum over other modalities + 2 * own similarity)

    Args:
        dim: C.
        sparse_ratio: share of the patches to keep, in (0, 1].
        beta: weight of the similarities.
        use_gumbel: let the decision carry a gradient in training; evaluation is always deterministic.
        gumbel_tau: temperature of the Gumbel softmax.
    """

    def __init__(
        self,
        dim: int,
        *,
        sparse_ratio: float = 0.5,
        beta: float = 0.25,
        use_gumbel: bool = False,
        gumbel_tau: float = 1.0,
    ) -> None:
        super().__init__()
        self.sparse_ratio = sparse_ratio
        self.beta = beta
        self.use_gumbel = use_gumbel
        self.gumbel_tau = gumbel_tau
        self.score_predictor = score_network(dim)

    def predict(self, patches: Tensor) -> Tensor:
        """The learned part of the score, alone with a gradient, at least float32: (B, N, C) -> (B, N)."""
        return full_precision(self.score_predictor(patches)).squeeze(-1).sigmoid()

    def score(self, sources: Tensor) -> Tensor:
        """One score per patch: (B, 1 + M, N) -> (B, N)."""
        learned, own, *others = sources.unbind(dim=1)
        return combine_scores(learned, own, others, self.beta)

    def forward(self, patches: Tensor, learned: Tensor, similarities: Sequence[Tensor]) -> SparseTokens:
        """Keep the K patches with the highest noise-free scores.

        Args:
            patches: (B, N, C).
            learned: what `predict` says of them, (B, N).
            similarities: with the global of each modality, the own first, each (B, N), in [0, 1].
        """
        sources = torch.stack([learned, *similarities], dim=1)
        scores = self.score(sources)
        tau = self.gumbel_tau if self.use_gumbel and self.training else None
        choice = choose(scores, self.sparse_ratio, tau)
        return SparseTokens(
            extra_token(patches, scores, choice.discarded), choice.decision, choice.kept, scores, sources
        )


class TokenAggregation(nn.Module):
    """Turn the kept of N tokens into A tokens, each a learned weighted mean of them.

    Args:
        dim: C.
        num_tokens: A.
    """

    def __init__(self, dim: int, num_tokens: int) -> None:
        super().__init__()
        self.weight = weight_network(dim, num_tokens)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, A, N)."""
        return (self.scale * self.weight(tokens)).transpose(1, 2)

    def weights(self, tokens: Tensor, decision: Tensor) -> Tensor:
        """The share of each token in each aggregated token; D is (B, N). (B, N, C) -> (B, A, N)."""
        return masked_softmax(self.logits(tokens), decision)

    def forward(self, tokens: Tensor, decision: Tensor) -> Tensor:
        """(B, N, C) tokens and (B, N) decision -> (B, A, C)."""
        return self.weights(tokens, decision).to(tokens.dtype) @ tokens


class MultiModalSDTPS(nn.Module):
    """Select and aggregate the patches of each modality, guided by all modalities.

    Args:
        dim: C.
        num_patches: N, from which the number A of aggregated tokens follows.
        num_modalities: M.
        sparse_ratio: see `TokenSparse`, as for `beta`, `use_gumbel` and `gumbel_tau`.
        aggr_ratio: aggregated tokens as a share of the kept ones.
        selectors: M modules in place of `TokenSparse`, with its methods `predict` and `forward`.
    """

    def __init__(
        self,
        dim: int,
        num_patches: int,
        *,
        num_modalities: int = 3,
        sparse_ratio: float = 0.5,
        aggr_ratio: float = 0.4,
        beta: float = 0.25,
        use_gumbel: bool = False,
        gumbel_tau: float = 1.0,
        selectors: Sequence[nn.Module] | None = None,
    ) -> None:
        super().__init__()
        options = {"sparse_ratio": sparse_ratio, "beta": beta, "gumbel_tau": gumbel_tau}
        default = (TokenSparse(dim, use_gumbel=use_gumbel, **options) for _ in range(num_modalities))
        self.selectors = nn.ModuleList(selectors or default)
        tokens = num_aggregated(num_patches, sparse_ratio, aggr_ratio)
        self.aggregators = nn.ModuleList(TokenAggregation(dim, tokens) for _ in range(num_modalities))

    def forward(
        self, patches: Sequence[Tensor], guides: Sequence[Tensor], maps: Sequence[Tensor] | None = None
    ) -> list[AggregatedTokens]:
        """Process M modalities, in one order.

        Args:
            patches: each (B, N, C).
            guides: the globals that the patches are compared with, each (B, C).
            maps: each (B, N): what to score the patches by in place of the similarities; every modality gets
                the values of the others at the same patch index.
        """
        selectors = cast(Sequence[TokenSparse], self.selectors)  # a ModuleList hides the type
        aggregators = cast(Sequence[TokenAggregation], self.aggregators)
        learned = [select.predict(tokens) for select, tokens in zip(selectors, patches, strict=True)]
        results = []
        for index, tokens in enumerate(patches):
            # Compare the patches with the own global, then with those of the other modalities.
            order = [index, *(other for other in range(len(patches)) if other != index)]
            if maps is None:
                similarities = [guidance_score(tokens, guides[m]) for m in order]
            else:
                similarities = [min_max_normalise(full_precision(maps[m].detach())) for m in order]
            # Keep the best patches, and aggregate them.
            extra, decision, kept, scores, sources = selectors[index](tokens, learned[index], similarities)
            weights = aggregators[index].weights(tokens, decision)  # (B, A, N)
            aggregated = weights.to(tokens.dtype) @ tokens
            # The extra token stands for what was discarded: it is not aggregated, and comes last.
            joined = torch.cat([aggregated, extra], dim=1)
            shares = weights.gather(2, kept.unsqueeze(1).expand(-1, weights.shape[1], -1))
            results.append(AggregatedTokens(joined, decision, kept, scores, sources, shares))
        return results
