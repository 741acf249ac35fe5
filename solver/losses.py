"""The training losses, each under its own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from structures import HeadOutput, ModelOutput

HeadLoss = Callable[[HeadOutput, Tensor], Tensor]
"""From what a head gives and the labels (B,) to a scalar."""


def batch_hard_triplet(features: Tensor, person_ids: Tensor, margin: float | None) -> Tensor:
    """Triplet loss with the farthest positive and the nearest negative of each anchor in the batch.

    The anchor counts among its own positives, at a distance of almost zero: an identity with a single image
    in the batch pushes its negatives away and pulls nothing. Without any negative the loss is NaN: the batch
    needs two identities, as the sampler provides. Never computed in half precision, because squared
    distances of un-normalised features overflow or lose their differences there.

    Args:
        features: (B, D), un-normalised.
        person_ids: (B,) integers.
        margin: max(0, d_ap - d_an + margin); None for the soft margin log(1 + exp(d_ap - d_an)).

    Returns:
        The mean over the B anchors, a scalar.
    """
    same_id = person_ids.unsqueeze(0) == person_ids.unsqueeze(1)  # (B, B)
    with torch.autocast(features.device.type, enabled=False):
        distances = _euclidean(_full_precision(features))
        hardest_positive = distances.masked_fill(~same_id, -torch.inf).amax(dim=1)
        hardest_negative = distances.masked_fill(same_id, torch.inf).amin(dim=1)
        # Without a negative the gap would be -inf and the loss 0; to ask for one would stall CUDA.
        gap = hardest_positive - hardest_negative.masked_fill(hardest_negative.isinf(), torch.nan)
        return (F.softplus(gap) if margin is None else F.relu(gap + margin)).mean()


def _full_precision(values: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _euclidean(features: Tensor) -> Tensor:
    """Distances between all rows: (B, D) to (B, B)."""
    squared_norms = features.square().sum(dim=1)
    squared = squared_norms.unsqueeze(0) + squared_norms.unsqueeze(1) - 2 * features @ features.T
    # Rounding makes some squares of zero negative, and the root has no finite gradient at zero.
    return squared.clamp(min=1e-12).sqrt()


@dataclass(frozen=True, kw_only=True)
class ReIDLoss:
    """Identity and triplet loss of every head."""

    id_weight: float  # weight of the cross-entropy
    triplet_weight: float  # weight of the triplet loss
    label_smoothing: float  # share of the target that is spread evenly over all identities
    margin: float | None  # of the triplet loss; None for the soft margin
    head_weights: Mapping[str, float] = field(default_factory=dict)  # by head; others have 1
    more: Mapping[str, HeadLoss] = field(default_factory=dict)  # registered losses

    def __call__(self, output: ModelOutput, person_ids: Tensor) -> dict[str, Tensor]:
        """The weighted losses by name: those of each head, and those that branches computed.

        Args:
            output: heads with logits (B, K) and features (B, D).
            person_ids: (B,) labels in [0, K).

        Returns:
            Scalars under `<head>/id`, `<head>/triplet` and so on, and the names in `output.losses`.
        """
        unknown = set(self.head_weights) - {head.name for head in output.heads}
        if unknown:
            raise ValueError(
                f"loss weights for the heads {sorted(unknown)}, which the model does not have; "
                f"choose from {[head.name for head in output.heads]}"
            )
        losses: dict[str, Tensor] = {}
        for head in output.heads:
            weight = self.head_weights.get(head.name, 1.0)
            triplet_loss = batch_hard_triplet(head.features, person_ids, self.margin)
            losses[f"{head.name}/id"] = weight * self._id_loss(head.logits, person_ids)
            losses[f"{head.name}/triplet"] = weight * self.triplet_weight * triplet_loss
            for name, loss in self.more.items():
                losses[f"{head.name}/{name}"] = weight * loss(head, person_ids)
        return losses | output.losses

    def _id_loss(self, logits: Tensor, person_ids: Tensor) -> Tensor:
        """The weighted cross-entropy."""
        loss = F.cross_entropy(_full_precision(logits), person_ids, label_smoothing=self.label_smoothing)
        return self.id_weight * loss
