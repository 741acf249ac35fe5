"""The parts of SEPS, each in the paper's version and in that of the published code.

Shapes: V images, T texts, L words, N patches, C channels, K kept patches, A aggregated tokens, M tokens of an
image for a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sdtps import (
    choose,
    combine_scores,
    extra_weights,
    masked_softmax,
    min_max_normalise,
    score_network,
    weight_network,
)

Version = Literal["paper", "code"]


def is_paper(switch: str, version: Version) -> bool:
    """Whether a switch stands at "paper"; a value that is no version is refused."""
    if version not in get_args(Version):
        raise ValueError(f"unknown {switch} {version!r}; choose from {sorted(get_args(Version))}")
    return version == "paper"


class PairChoice(NamedTuple):
    """Which patches of an image are kept for a text."""

    decision: Tensor  # D, 1 where a patch is kept and 0 elsewhere, (V, T, N); with Gumbel it has a gradient
    extra: Tensor  # share of each patch in the extra token, 0 for the kept ones, (V, T, N)
    scores: Tensor  # (V, T, N); larger is kept


class TokenSparse(nn.Module):
    """Score the patches of an image for a text, and keep the best: equations (1) to (3).

    Args:
        dim: C.
        score: "paper" or "code"; see `score`.
        decision: in training, "paper" gives the decision the gradient of a Gumbel softmax, "code" none.
        sparse_ratio: share of the patches to keep, in (0, 1].
        beta: weight of the similarities in the score of the paper.
        gumbel_tau: temperature of the Gumbel softmax.
    """

    def __init__(
        self,
        dim: int,
        *,
        score: Version = "code",
        decision: Version = "code",
        sparse_ratio: float = 0.5,
        beta: float = 0.25,
        gumbel_tau: float = 1.0,
    ) -> None:
        super().__init__()
        self.sparse_ratio = sparse_ratio
        self.beta = beta
        self.use_gumbel = is_paper("decision", decision)
        self.gumbel_tau = gumbel_tau
        self.score_predictor = score_network(dim) if is_paper("score", score) else None

    def predict(self, patches: Tensor) -> Tensor | None:
        """(1): s_p = sigmoid(MLP(patch)), (V, N, C) -> (V, 1, N); None in the code version."""
        if self.score_predictor is None:
            return None
        return self.score_predictor(patches).float().sigmoid().transpose(1, 2)

    def score(self, predicted: Tensor | None, image: Tensor, texts: Sequence[Tensor]) -> Tensor:
        """(3): (1 - 2 beta) * s_p + beta * (s_st + s_dt + 2 * s_im); in the code version s_im + s_text.

        Args:
            predicted: s_p, (V, 1, N), or None.
            image: s_im, (V, 1, N).
            texts: similarities with the text of this branch, then with the other, if any; (V, T, N) each.
        """
        if predicted is None:
            return image + texts[0]
        image, *others = (min_max_normalise(similarity) for similarity in (image, *texts))
        return combine_scores(predicted, image, others, self.beta)

    def forward(self, predicted: Tensor | None, image: Tensor, texts: Sequence[Tensor]) -> PairChoice:
        """Keep the K patches with the highest noise-free scores; the arguments are those of `score`."""
        scores = self.score(predicted, image, texts)
        tau = self.gumbel_tau if self.use_gumbel and self.training else None
        _, discarded, decision = choose(scores, self.sparse_ratio, tau)
        shares = extra_weights(scores, discarded)
        return PairChoice(decision, torch.zeros_like(scores).scatter(-1, discarded, shares), scores)


class DualTokenAggregation(nn.Module):
    """(4): A tokens from two selections, W_s V_s + W_d V_d; each selection has its own weight network."""

    def __init__(self, dim: int, num_tokens: int) -> None:
        super().__init__()
        self.weight_sparse = weight_network(dim, num_tokens)
        self.weight_dense = weight_network(dim, num_tokens)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, sparse: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of the two selections, (B, K, C) each -> (B, A, K) each."""
        return (
            (self.scale * self.weight_sparse(sparse)).transpose(1, 2),
            (self.scale * self.weight_dense(dense)).transpose(1, 2),
        )

    def forward(
        self, sparse: Tensor, dense: Tensor, sparse_decision: Tensor, dense_decision: Tensor
    ) -> Tensor:
        """Tokens of the two selections, (B, K, C) each, and their decisions, (B, K) each -> (B, A, C)."""
        sparse_logits, dense_logits = self.logits(sparse, dense)
        return (
            masked_softmax(sparse_logits, sparse_decision) @ sparse
            + masked_softmax(dense_logits, dense_decision) @ dense
        )


class HRPA(nn.Module):
    """(5): how well the tokens of an image and the words of a text find each other.

    Each word takes its most similar token, and each token its most similar word. Either direction gives the
    mean of these maxima, in the paper version plus MLP(the k largest of them). The similarity is their sum.

    Args:
        alignment: "paper" has the MLP, one for both directions; "code" has none.
        similarity: "paper" is the cosine, "code" LeakyReLU(cosine, 0.1).
        top_k: k.
    """

    def __init__(self, *, alignment: Version = "code", similarity: Version = "code", top_k: int = 5) -> None:
        super().__init__()
        self.top_k = top_k
        self.use_leaky_relu = not is_paper("similarity", similarity)
        self.relevance_mlp = (
            nn.Sequential(nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1))
            if is_paper("alignment", alignment)
            else None
        )

    def forward(
        self, tokens: Tensor, words: Tensor, valid: Tensor, class_token: Tensor | None = None
    ) -> Tensor:
        """Align every image with every text, giving (V, T).

        Args:
            tokens: those of each image for each text, (V, T, M, C).
            words: (T, L, C).
            valid: False where there is only padding, (T, L).
            class_token: one more token of each image, the same for all texts, (V, 1, C), or (V, 0, C).
        """
        # Cosines of all tokens with all words.
        # The products are divided by the norms of the tokens, instead of the tokens, which are far larger.
        norms = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp_min(1e-12)
        words = F.normalize(words, dim=-1)
        cosines = torch.einsum("vtmc,tlc->vtml", tokens, words) / norms
        if class_token is not None:
            shared = F.normalize(class_token, dim=-1) @ words.flatten(0, 1).T  # (V, 1, T * L)
            cosines = torch.cat([shared.unflatten(2, words.shape[:2]).transpose(1, 2), cosines], dim=2)
        # The best partner of each word and of each token.
        word_maxima = cosines.max(dim=-2).values  # (V, T, L)
        token_maxima = cosines.masked_fill(~valid.unsqueeze(1), float("-inf")).max(dim=-1).values  # (V, T, M)
        if self.use_leaky_relu:  # it is monotone, so the maximum may be taken first
            word_maxima, token_maxima = F.leaky_relu(word_maxima, 0.1), F.leaky_relu(token_maxima, 0.1)
        every_token = valid.new_ones(token_maxima.shape[-1])
        return self._pool(word_maxima, valid) + self._pool(token_maxima, every_token)

    def _pool(self, maxima: Tensor, valid: Tensor) -> Tensor:
        """One direction: (V, T, S) maxima, of which the valid ones count -> (V, T)."""
        mean = maxima.masked_fill(~valid, 0.0).sum(dim=-1) / valid.sum(dim=-1)
        if self.relevance_mlp is None:
            return mean
        largest = maxima.masked_fill(~valid, float("-inf")).topk(min(self.top_k, maxima.shape[-1])).values
        # Where there are fewer than k, zeros follow, even after negative maxima.
        largest = largest.masked_fill(largest == float("-inf"), 0.0)
        largest = F.pad(largest, (0, self.top_k - largest.shape[-1]))
        return mean + self.relevance_mlp(largest).squeeze(-1)


def mask_xattn_one_text(img_embs: Tensor, cap_i_expand: Tensor) -> Tensor:
    """HRPA of the code version for one text without padding.

    Tokens of each image (V, M, C) and the words, repeated for each image, (V, L, C) -> (V, 1).
    """
    valid = torch.ones(cap_i_expand.shape[:2], dtype=torch.bool, device=cap_i_expand.device)
    return HRPA()(img_embs.unsqueeze(0), cap_i_expand, valid).transpose(0, 1)
