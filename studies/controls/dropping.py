"""The controls of `python -m studies slim`: leave patches out in place of merging them."""

from __future__ import annotations

import torch

from modeling.backbone.slimming import Slimming, SlimTokens, take


class Dropping(Slimming):
    """Keeps some tokens as they are; a patch that is left out gets the features of the most similar token.

    Args:
        keep_ratio: see `Slimming`.
        at_random: keep other ones in each image; if not, the same in all, spread over the image.
    """

    def __init__(self, keep_ratio: float, *, at_random: bool) -> None:
        super().__init__(keep_ratio)
        self.generator = torch.Generator().manual_seed(0) if at_random else None

    def forward(self, state: SlimTokens, columns: int | None = None) -> SlimTokens:
        """As `Slimming`; every token counts once in attention."""
        count, num_left = state.merged.shape[1], self.num_left(state)
        if num_left == count:
            return state
        kept = torch.arange(num_left).expand(state.merged.shape[0], -1)
        if self.generator is not None:
            kept = torch.rand(state.sizes.shape, generator=self.generator).argsort(dim=1)[:, :num_left]
        kept = kept.to(state.leads.device)
        left = take(state.merged, kept)
        nearest = torch.cdist(state.merged.float(), left.float()).argmin(dim=2)
        return SlimTokens(
            prefix=state.prefix,
            merged=left,
            sizes=take(state.sizes, kept),
            leads=take(state.leads, kept),
            owners=take(nearest, state.owners),
        )
