"""SDTPS: select the patch tokens that matter and aggregate them, guided by the other modalities.

The file needs nothing but torch; copy it into another project and it works there. seps.py applies the same
functions to every pair of an image and a text.

Shapes: B samples, N patches, C channels, K kept patches, A aggregated tokens, M modalities, "..." any leading
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROUNDING_SLACK = 1e-9  # 100 * 0.07 is 7.000000000000001 in floating point, and must count as 7


class Choice(NamedTuple):
    """Which patches are kept.

    Attributes:
        kept: positions of the kept patches, ascending, (..., K), in [0, N).
        discarded: positions of the others, best score first, (..., N - K).
        decision: D, exactly 1 where a patch is kept and 0 elsewhere, (..., N); with Gumbel it has a gradient.
    """

    kept: Tensor
    discarded: Tensor
    decision: Tensor


class SparseTokens(NamedTuple):
    """What `TokenSparse` decided.

    Attributes:
        selected: the kept patches in the order of their positions, (B, K, C).
        extra: one token that stands for the discarded patches, (B, 1, C).
        decision: see `Choice`, (B, N).
        kept: see `Choice`, (B, K).
        scores: one per patch, (B, N); larger is kept.
        sources: what the scores are made of, (B, 1 + M, N), see `TokenSparse.sources`.
    """

    selected: Tensor
    extra: Tensor
    decision: Tensor
    kept: Tensor
    scores: Tensor
    sources: Tensor


class AggregatedTokens(NamedTuple):
    """What SDTPS makes of one modality.

    Attributes:
        tokens: A aggregated tokens, then the extra token, (B, A + 1, C).
        decision: see `Choice`, (B, N).
        kept: see `Choice`, (B, K).
        scores: see `SparseTokens`, (B, N).
        sources: see `SparseTokens`, (B, 1 + M, N).
        weights: the share of each kept patch in each aggregated token, (B, A, K).
    """

    tokens: Tensor
    decision: Tensor
    kept: Tensor
    scores: Tensor
    sources: Tensor
    weights: Tensor


def num_kept(num_patches: int, sparse_ratio: float) -> int:
    """K = ceil(N * sparse_ratio), at least 1."""
    return max(1, math.ceil(num_patches * sparse_ratio - ROUNDING_SLACK))


def num_aggregated(num_patches: int, sparse_ratio: float, aggr_ratio: float) -> int:
    """A = floor(N * aggr_ratio * sparse_ratio), at least 1."""
    return max(1, math.floor(num_patches * aggr_ratio * sparse_ratio + ROUNDING_SLACK))


def min_max_normalise(scores: Tensor, eps: float = 1e-8) -> Tensor:
    """Stretch the scores of each sample to [0, 1]. (..., N) -> (..., N)."""
    low = scores.amin(dim=-1, keepdim=True)
    high = scores.amax(dim=-1, keepdim=True)
    return (scores - low) / (high - low + eps)


@torch.no_grad()
def guidance_score(patches: Tensor, guide: Tensor) -> Tensor:
    """How much each patch resembles a global feature: cosine similarity, min-max normalised.

    Args:
        patches: (B, N, C).
        guide: (B, C).

    Returns:
        (B, N), in [0, 1], without gradient.
    """
    return min_max_normalise(F.cosine_similarity(patches.float(), guide.float().unsqueeze(1), dim=-1))


def combine_scores(learned: Tensor, own: Tensor, others: Sequence[Tensor], beta: float) -> Tensor:
    """(1 - 2 beta) * learned + beta * (sum of others + 2 * own); all (..., N)."""
    similar = 2 * own
    for other in others:
        similar = similar + other
    return (1 - 2 * beta) * learned + beta * similar


def straight_through_gumbel(scores: Tensor, hard: Tensor, tau: float) -> Tensor:
    """A decision with the value of `hard` and the gradient of a Gumbel softmax.

    Args:
        scores: (..., N).
        hard: 1 for kept patches, 0 for others, (..., N).
        tau: temperature of the softmax.

    Returns:
        (..., N), equal to `hard` bit for bit.
    """
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
    """The share of each discarded patch in the extra token: softmax of their scores.

    Args:
        scores: (..., N).
        discarded: positions, (..., N - K).

    Returns:
        (..., N - K), in the order of `discarded`.
    """
    return scores.gather(-1, discarded).softmax(dim=-1)


def mask_logits(logits: Tensor, decision: Tensor) -> Tensor:
    """Mask logits ahead of a softmax over K so that it becomes D_i e^{l_i} / sum_k D_k e^{l_k}.

    `logits - (1 - D) * 1e10` has the same value, but its derivative with respect to D is 1e10; that of
    log D is 1 where D is 1. See docs/method.md.

    Args:
        logits: (..., A, K).
        decision: D, (..., K): ones, if the K are the kept patches; zeros mask the others, if they are all.
    """
    dropped = decision == 0
    # log 0 would give the right value, but its derivative is infinite, and times zero that is NaN.
    log_decision = decision.masked_fill(dropped, 1.0).log().masked_fill(dropped, float("-inf"))
    return logits + log_decision.unsqueeze(-2)


def score_network(dim: int) -> nn.Sequential:
    """(..., C) -> (..., 1), one logit per patch."""
    return nn.Sequential(nn.Linear(dim, dim // 4), nn.GELU(), nn.Linear(dim // 4, 1))


def weight_network(dim: int, num_tokens: int, hidden_ratio: float = 0.2) -> nn.Sequential:
    """(..., C) -> (..., A), the logit of a patch for each aggregated token."""
    hidden = int(dim * hidden_ratio)
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

    def sources(self, patches: Tensor, own_guide: Tensor, other_guides: Sequence[Tensor]) -> Tensor:
        """The parts of the score, each in [0, 1], in float32, (B, 1 + M, N).

        First the learned part, which alone carries a gradient; then the similarity with the own global, then
        those with the others.
        """
        learned = self.score_predictor(patches).squeeze(-1).float().sigmoid()  # (B, N)
        similarities = [guidance_score(patches, guide) for guide in (own_guide, *other_guides)]
        return torch.stack([learned, *similarities], dim=1)

    def score(self, sources: Tensor) -> Tensor:
        """One score per patch: (B, 1 + M, N) -> (B, N)."""
        learned, own, *others = sources.unbind(dim=1)
        return combine_scores(learned, own, others, self.beta)

    def forward(self, patches: Tensor, own_guide: Tensor, other_guides: Sequence[Tensor]) -> SparseTokens:
        """Keep the K patches with the highest noise-free scores.

        Args:
            patches: (B, N, C).
            own_guide: global feature of this modality, (B, C).
            other_guides: global features of the other modalities, each (B, C).
        """
        sources = self.sources(patches, own_guide, other_guides)
        scores = self.score(sources)
        tau = self.gumbel_tau if self.use_gumbel and self.training else None
        kept, discarded, decision = choose(scores, self.sparse_ratio, tau)
        selected = patches.gather(1, kept.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))  # (B, K, C)
        extra = self._extra(patches, scores, discarded)
        return SparseTokens(selected, extra, decision, kept, scores, sources)

    @staticmethod
    def _extra(patches: Tensor, scores: Tensor, discarded: Tensor) -> Tensor:
        """The discarded patches, weighted by the softmax of their scores; zeros if none is discarded.

        Args:
            patches: (B, N, C).
            scores: (B, N).
            discarded: positions, (B, N - K).

        Returns:
            (B, 1, C).
        """
        weights = extra_weights(scores, discarded).to(patches.dtype)  # (B, N - K)
        tokens = patches.gather(1, discarded.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
        return weights.unsqueeze(1) @ tokens


class TokenAggregation(nn.Module):
    """Turn K kept tokens into A tokens, each a learned weighted mean of the K.

    Args:
        dim: C.
        num_tokens: A.
        hidden_ratio: width of the weight network as a share of C.
    """

    def __init__(self, dim: int, num_tokens: int, *, hidden_ratio: float = 0.2) -> None:
        super().__init__()
        self.weight = weight_network(dim, num_tokens, hidden_ratio)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, tokens: Tensor) -> Tensor:
        """(B, K, C) -> (B, A, K)."""
        return (self.scale * self.weight(tokens)).transpose(1, 2)

    def weights(self, tokens: Tensor, decision: Tensor) -> Tensor:
        """How much of each kept token goes into each aggregated token.

        Args:
            tokens: (B, K, C).
            decision: D at the kept places, (B, K).

        Returns:
            (B, A, K), each row sums to 1.
        """
        return mask_logits(self.logits(tokens), decision).softmax(dim=-1)

    def forward(self, tokens: Tensor, decision: Tensor) -> Tensor:
        """(B, K, C) tokens and (B, K) decision -> (B, A, C)."""
        return self.weights(tokens, decision).to(tokens.dtype) @ tokens


class MultiModalSDTPS(nn.Module):
    """Select and aggregate the patches of each modality, guided by the globals of all.

    Args:
        dim: C.
        num_patches: N.
        num_modalities: M.
        sparse_ratio: share of the patches to keep.
        aggr_ratio: aggregated tokens as a share of the kept ones.
        beta: weight of the similarities in the score.
        use_gumbel: straight-through Gumbel decision in training.
        gumbel_tau: its temperature.
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
    ) -> None:
        super().__init__()
        self.selectors = nn.ModuleList(
            TokenSparse(
                dim, sparse_ratio=sparse_ratio, beta=beta, use_gumbel=use_gumbel, gumbel_tau=gumbel_tau
            )
            for _ in range(num_modalities)
        )
        tokens = num_aggregated(num_patches, sparse_ratio, aggr_ratio)
        self.aggregators = nn.ModuleList(TokenAggregation(dim, tokens) for _ in range(num_modalities))

    def forward(self, patches: Sequence[Tensor], guides: Sequence[Tensor]) -> list[AggregatedTokens]:
        """Process the M modalities.

        Args:
            patches: M tensors (B, N, C).
            guides: M global features (B, C), in the same order.

        Returns:
            One result per modality, in the same order.
        """
        results = []
        modules = zip(self.selectors, self.aggregators, strict=True)
        for index, (select, aggregate) in enumerate(modules):
            others = [guide for other, guide in enumerate(guides) if other != index]
            sparse: SparseTokens = select(patches[index], guides[index], others)
            decision = sparse.decision.gather(1, sparse.kept)  # (B, K)
            assert isinstance(aggregate, TokenAggregation)  # a ModuleList does not tell
            weights = aggregate.weights(sparse.selected, decision)
            aggregated = weights.to(sparse.selected.dtype) @ sparse.selected
            # Aggregated tokens first: the extra token stands for what was discarded, and is not aggregated.
            tokens = torch.cat([aggregated, sparse.extra], dim=1)
            results.append(
                AggregatedTokens(tokens, sparse.decision, sparse.kept, sparse.scores, sparse.sources, weights)
            )
        return results
