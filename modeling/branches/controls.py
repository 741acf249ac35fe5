"""Controls that stand in for SDTPS's selection: patches at random, and all patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from modeling.seps.sdtps import AggregatedTokens, SparseTokens, choose, extra_token


class RandomSparse(nn.Module):
    """A control for `TokenSparse`: keeps patches at random. It has no parameters.

    In training each call draws anew. In evaluation the scores are drawn from a fixed seed, so that the same
    batch always keeps the same patches.

    Args:
        sparse_ratio: share of the patches to keep, in (0, 1].
        seed: for evaluation.
    """

    def __init__(self, sparse_ratio: float = 0.5, *, seed: int = 0) -> None:
        super().__init__()
        self.sparse_ratio = sparse_ratio
        self.seed = seed

    def predict(self, patches: Tensor) -> Tensor:
        """A random score for each patch: (B, N, C) -> (B, N), in [0, 1)."""
        generator = None if self.training else torch.Generator().manual_seed(self.seed)
        return torch.rand(patches.shape[:2], generator=generator).to(patches.device)

    def forward(self, patches: Tensor, learned: Tensor, similarities: Sequence[Tensor]) -> SparseTokens:
        """Keep the K patches with the highest of the scores that `predict` gave; nothing else counts."""
        choice = choose(learned, self.sparse_ratio)
        extra = extra_token(patches, learned, choice.discarded)
        nothing = learned.new_zeros(learned.shape[0], 0, learned.shape[1])
        return SparseTokens(extra, choice.decision, choice.kept, learned, nothing)


class AllPatches(nn.Module):
    """A control for `MultiModalSDTPS`: every patch is kept, and none is aggregated. It has no parameters."""

    def forward(
        self, patches: Sequence[Tensor], guides: Sequence[Tensor], maps: Sequence[Tensor] | None = None
    ) -> list[AggregatedTokens]:
        """The M modalities as they are, (B, N, C) each; guides and maps do not count."""
        batch, num_patches = patches[0].shape[:2]
        scores = torch.zeros(batch, num_patches, device=patches[0].device)
        kept = torch.arange(num_patches, device=scores.device).expand(batch, -1)
        nothing = scores.new_zeros(batch, 0, num_patches)
        return [
            AggregatedTokens(tokens, torch.ones_like(scores), kept, scores, nothing, None)
            for tokens in patches
        ]
