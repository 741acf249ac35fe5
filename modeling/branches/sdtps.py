"""SDTPS as a branch: select and aggregate patches, then take the mean of what is left of each modality.

The scores and the decision are computed in modeling/seps/sdtps.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from modeling.branches import Branch
from modeling.seps.sdtps import AggregatedTokens
from structures import BranchOutput, Modality, ModalTokens, PerModality, Selection


class SDTPSBranch(Branch):
    """Runs a selector on the tokens of the three modalities.

    Args:
        select: `MultiModalSDTPS`, or a control in its place (controls.py).
        dim: C.
        beta: weight of the similarities in the score; sources of weight 0 are left out of the `Selection`.
        guide: what scores patches: `reduced`, the similarity with the globals after PIFE; `class`, with the
            class tokens; `attention`, how much the class token attends to them.
    """

    selects = True
    cost_titles: Mapping[str, str] = {"": "SDTPS"}

    def __init__(self, select: nn.Module, dim: int, *, beta: float = 0.25, guide: str = "reduced") -> None:
        super().__init__()
        self.select = select
        self.beta = beta
        self.guide = guide
        self.needs = frozenset({"attended"}) if guide == "attention" else frozenset()
        self.out_dim = dim * len(Modality)

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """Patches and globals -> the mean of the A + 1 tokens of each modality, (B, 3C)."""
        guides = tokens.class_tokens if self.guide == "class" else tokens.globals_
        maps = tokens.attended if self.guide == "attention" else None
        results = PerModality(*self.select(tokens.patches, guides, maps))
        features = torch.cat([result.tokens.mean(dim=1) for result in results], dim=1)
        return BranchOutput(features, selection=_describe(results, tokens, self.beta))


def _describe(results: PerModality[AggregatedTokens], tokens: ModalTokens, beta: float) -> Selection:
    """What was decided, by patch index in the image; patches that slimming dropped have score 0."""

    def kept(modality: Modality) -> Tensor:
        chosen = results.of(modality).kept
        return chosen if tokens.slimmed is None else tokens.slimmed.of(modality).indices.gather(1, chosen)

    def sources(modality: Modality) -> dict[str, Tensor]:
        others = [other.key for other in Modality if other is not modality]
        rows = results.of(modality).sources.unbind(dim=1)
        shares = {"learned": 1 - 2 * beta, "own": 2 * beta, **dict.fromkeys(others, beta)}
        names = list(shares)[: len(rows)]  # none for a control
        return {
            n: tokens.on_grid(row.detach(), modality) for n, row in zip(names, rows, strict=True) if shares[n]
        }

    # A control that aggregates nothing has no weights.
    weights = [result.weights.detach() for result in results if result.weights is not None]
    return Selection(
        kept=PerModality.build(kept),
        scores=PerModality.build(lambda m: tokens.on_grid(results.of(m).scores.detach(), m)),
        grid=tokens.grid,
        sources=PerModality.build(sources),
        weights=PerModality(*weights) if weights else None,
    )
