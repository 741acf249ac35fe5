"""The losses of SEPS: contrastive, and the share of kept patches."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

Masks = Tensor | tuple[Tensor, ...]
"""The decisions for all pairs, as `RatioLoss` needs them: with `ratio_loss="paper"` the pair D_s, D_d, each
(T, V, N); with "code" the sum of the two, (T, V, N). Without dense texts there is no D_d."""


class SEPSLosses(NamedTuple):
    """Three scalars; total = alignment + ratio_weight * ratio."""

    total: Tensor
    alignment: Tensor
    ratio: Tensor


class ContrastiveLoss(nn.Module):
    """(6): a matching pair must beat the others of its image and of its text by a margin.

    Args:
        margin: in units of similarity.
        max_violation: count the hardest negative alone; otherwise the sum over all negatives.
    """

    def __init__(self, margin: float = 0.2, max_violation: bool = False) -> None:
        super().__init__()
        self.margin = margin
        self.max_violation = max_violation

    def forward(self, similarities: Tensor) -> Tensor:
        """(V, V), image i and text i belonging together -> scalar, summed over images and texts."""
        if similarities.dim() != 2 or similarities.shape[0] != similarities.shape[1]:
            raise ValueError(
                f"similarities must be square, image i with text i, not {tuple(similarities.shape)}"
            )
        matching = similarities.diagonal()
        others = ~torch.eye(len(similarities), dtype=torch.bool, device=similarities.device)
        wrong_text = (self.margin + similarities - matching.unsqueeze(1)).clamp_min(0) * others
        wrong_image = (self.margin + similarities - matching.unsqueeze(0)).clamp_min(0) * others
        if self.max_violation:
            return wrong_text.amax(dim=1).sum() + wrong_image.amax(dim=0).sum()
        return wrong_text.sum() + wrong_image.sum()


class RatioLoss(nn.Module):
    """(7): the share of kept patches should be the target. The form of the masks says which version is meant.

    Paper: lambda_sparse * (mean D_s - target)^2 + lambda_dense * (mean D_d - target)^2. Code:
    (mean(D_s + D_d) - target)^2.

    Args:
        target_ratio: the share of patches to keep.
        lambda_sparse: weight of D_s; paper only.
        lambda_dense: weight of D_d; paper only.
    """

    def __init__(
        self, target_ratio: float = 0.5, lambda_sparse: float = 1.0, lambda_dense: float = 1.0
    ) -> None:
        super().__init__()
        self.target_ratio = target_ratio
        self.lambdas = (lambda_sparse, lambda_dense)

    def forward(self, masks: Masks) -> Tensor:
        """Masks, (T, V, N) each -> scalar."""
        if isinstance(masks, Tensor):
            return (masks.mean() - self.target_ratio) ** 2
        terms = [
            weight * (mask.mean() - self.target_ratio) ** 2
            for weight, mask in zip(self.lambdas, masks, strict=False)  # no dense text, no second mask
        ]
        return reduce(torch.add, terms)


class SEPSLoss(nn.Module):
    """Contrastive loss + ratio_weight * ratio loss; see the two for the other arguments."""

    def __init__(
        self,
        margin: float = 0.2,
        target_ratio: float = 0.5,
        ratio_weight: float = 2.0,
        max_violation: bool = False,
        lambda_sparse: float = 1.0,
        lambda_dense: float = 1.0,
    ) -> None:
        super().__init__()
        self.ratio_weight = ratio_weight
        self.alignment = ContrastiveLoss(margin, max_violation)
        self.ratio = RatioLoss(target_ratio, lambda_sparse, lambda_dense)

    def forward(self, similarities: Tensor, masks: Masks) -> SEPSLosses:
        """Similarities (V, V) and masks, as the network returns them in training -> the losses."""
        alignment, ratio = self.alignment(similarities), self.ratio(masks)
        return SEPSLosses(alignment + self.ratio_weight * ratio, alignment, ratio)
