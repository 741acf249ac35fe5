"""Where in the image is the evidence of who it is? Asked of the patches before the blocks mix them.

Behind the blocks every patch has seen all others, so that one on the wall may carry the person's features as
well as one on the coat. Ahead of them a patch knows what is inside it, and where it is, and nothing else.
There a mean of patches tells who it is only as far as the patches show the person.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modeling.sdtps import score_network
from structures import Modality, PerModality

HIDDEN_SHARE = 0.5  # of the patches, drawn anew in every training step, that cannot be used as evidence


def neighbourhood_mean(scores: Tensor, grid: tuple[int, int]) -> Tensor:
    """The mean of each patch and those of its eight neighbours that exist: (B, N) -> (B, N)."""
    on_grid = scores.unflatten(1, (1, *grid))
    return F.avg_pool2d(on_grid, kernel_size=3, stride=1, padding=1, count_include_pad=False).flatten(1)


class LocalEvidence(nn.Module):
    """Score each place of the image by how much it tells about the person, taught by the identity loss.

    The scores weigh a mean of the patches (attention-based multiple-instance learning), and a head of its own
    has to tell the person from this mean. Three things make the scores cover the person instead of the most
    telling patch: the modalities, which are aligned, decide together for a place; a place is scored with
    its neighbours; and in training half of the patches are hidden, so that the others have to do.

    Args:
        dim: C, width of the embeddings.
        grid: rows and columns of the patches, N = rows * columns.
    """

    def __init__(self, dim: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.score = nn.ModuleDict(
            {m.key: nn.Sequential(nn.LayerNorm(dim), score_network(dim)) for m in Modality}
        )

    def forward(self, embeddings: PerModality[Tensor]) -> tuple[Tensor, Tensor]:
        """Score the places, and weigh the patches by the scores.

        Args:
            embeddings: patches ahead of the first block, each (B, N, C). Zeros stand for a missing image: all
                of its places get the same score, so that it has no say.

        Returns:
            The score of each place for all modalities, (B, N), and the weighted means, (B, 3C).
        """
        votes = PerModality.build(lambda m: self.score[m.key](embeddings.of(m)).squeeze(-1))
        scores = neighbourhood_mean(sum(vote.float() for vote in votes), self.grid)
        usable = scores
        if self.training:
            usable = scores.masked_fill(torch.rand_like(scores) < HIDDEN_SHARE, torch.finfo(scores.dtype).min)
        weights = usable.softmax(dim=1).unsqueeze(1)  # (B, 1, N)
        means = [(weights.to(patches.dtype) @ patches).squeeze(1) for patches in embeddings]
        return scores, torch.cat(means, dim=1)
