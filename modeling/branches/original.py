"""The backbone's own descriptor: the globals of the modalities, side by side or one alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from modeling.branches import Branch
from structures import BranchOutput, Modality, ModalTokens, Role

TEMPERATURE = 0.1
"""Of the cosines in the alignment."""


class Original(Branch):
    """The globals of some modalities, concatenated; has no weights.

    Args:
        dim: C.
        modalities: whose globals; DeMo's `DIRECT 1` takes all, `DIRECT 0` has one branch for each.
        align_weight: weight of the loss that brings the globals of a person together; 0 leaves it out.
    """

    role = Role.ORIGINAL
    cost_titles: Mapping[str, str] = {}  # it costs nothing

    def __init__(
        self, dim: int, modalities: Sequence[Modality] = tuple(Modality), *, align_weight: float = 0.0
    ) -> None:
        super().__init__()
        self.parts = tuple(modalities)
        self.out_dim = dim * len(self.parts)
        self.align_weight = align_weight

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """(B, C) of each modality -> (B, D)."""
        parts = [tokens.globals_.of(m) for m in self.parts]
        rows: dict[str, Tensor] = {}
        if self.training and self.align_weight:
            rows["parts"] = torch.stack(parts, dim=1)  # (B, M, C)
            there = [torch.ones_like(part[:, 0]) for part in parts]
            if tokens.present is not None:
                there = [
                    tokens.present.of(m).to(part.dtype) for m, part in zip(self.parts, parts, strict=True)
                ]
            rows["present"] = torch.stack(there, dim=1)
        return BranchOutput(torch.cat(parts, dim=1), rows=rows)

    def batch_losses(self, rows: dict[str, Tensor], person_ids: Tensor) -> dict[str, Tensor]:
        """`align`, over the triples of all processes."""
        found = align_loss(rows["parts"], rows["present"] > 0, person_ids)
        return {"align": self.align_weight * found}


def align_loss(parts: Tensor, present: Tensor, person_ids: Tensor) -> Tensor:
    """A contrastive loss between modalities: an image is nearest to images of its person in another one.

    For each ordered pair of modalities and each image of the first: the cross-entropy between the softmax of
    its cosines with all images of the second and equal shares for those of its person. The mean over the
    images that have such a counterpart; 0 if none has.

    Args:
        parts: (B, M, C).
        present: which of them are there, (B, M) booleans.
        person_ids: (B,).
    """
    with torch.autocast(parts.device.type, enabled=False):
        units = F.normalize(parts.to(torch.promote_types(parts.dtype, torch.float32)), dim=2)
        same_id = person_ids.unsqueeze(1) == person_ids.unsqueeze(0)  # (B, B)
        losses, counts = [], []
        for first, second in permutations(range(parts.shape[1]), 2):
            candidates = present[:, second].unsqueeze(0)  # (1, B)
            # Not -inf, since a batch may have no candidate at all.
            logits = (units[:, first] @ units[:, second].T) / TEMPERATURE
            logits = logits.masked_fill(~candidates, torch.finfo(logits.dtype).min)
            positives = same_id & candidates
            count = positives.sum(dim=1)
            counted = present[:, first] & (count > 0)
            shares = torch.where(positives, logits.log_softmax(dim=1), 0.0).sum(dim=1) / count.clamp(min=1)
            losses.append(-torch.where(counted, shares, 0.0).sum())
            counts.append(counted.sum())
        return torch.stack(losses).sum() / torch.stack(counts).sum().clamp(min=1)
