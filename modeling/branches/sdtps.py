"""SDTPS as a branch: select and aggregate patches, then take the mean of what is left of each modality.

The scores and the decision are computed in modeling/seps/sdtps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from modeling.branches import Branch
from modeling.seps.sdtps import AggregatedTokens
from structures import BranchOutput, Modality, ModalTokens, PerModality, Selection

T = TypeVar("T")


class SDTPSBranch(Branch):
    """Runs a selector on the tokens of M modalities.

    An absent image, whose tokens are zeros, guides nobody: its similarities are 0. Its part is zeros.

    Args:
        select: `MultiModalSDTPS`, or a control in its place (controls.py).
        dim: C.
        modalities: M of them.
        beta: weight of the similarities in the score; sources of weight 0 are left out of the `Selection`.
        guide: what scores patches: `reduced`, the similarity with the globals after PIFE; `class`, with the
            class tokens; `attention`, how much the class token attends to them.
    """

    selects = True
    cost_titles: Mapping[str, str] = {"": "SDTPS"}

    def __init__(
        self,
        select: nn.Module,
        dim: int,
        modalities: Sequence[Modality] = tuple(Modality),
        *,
        beta: float = 0.25,
        guide: str = "reduced",
    ) -> None:
        super().__init__()
        self.modalities = tuple(modalities)
        self.select = select
        self.beta = beta
        self.guide = guide
        self.needs = frozenset({"attended"}) if guide == "attention" else frozenset()
        self.out_dim = dim * len(self.modalities)

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """Patches and globals -> the mean of the A + 1 tokens of each modality, (B, MC)."""
        guides = tokens.class_tokens if self.guide == "class" else tokens.globals_
        maps = tokens.attended if self.guide == "attention" else None
        inputs = [
            values and [values.of(m) for m in self.modalities] for values in (tokens.patches, guides, maps)
        ]
        results = dict(zip(self.modalities, self.select(*inputs), strict=True))
        features = torch.cat([result.tokens.mean(dim=1) for result in results.values()], dim=1)
        return BranchOutput(features, selection=_describe(results, tokens, self.beta))


def _describe(results: Mapping[Modality, AggregatedTokens], tokens: ModalTokens, beta: float) -> Selection:
    """What was decided, by patch index in the image; a modality that the branch lacks keeps nothing."""

    def sources(modality: Modality) -> dict[str, Tensor]:
        others = [other.key for other in results if other is not modality]
        rows = results[modality].sources.unbind(dim=1)
        shares = {"learned": 1 - 2 * beta, "own": 2 * beta, **dict.fromkeys(others, beta)}
        names = list(shares)[: len(rows)]  # none for a control
        return {n: row.detach() for n, row in zip(names, rows, strict=True) if shares[n]}

    def everywhere(known: Callable[[Modality], T], absent: T) -> PerModality[T]:
        return PerModality.build(lambda m: known(m) if m in results else absent)

    first, result = next(iter(results.items()))
    weights = {m: found.weights.detach() for m, found in results.items() if found.weights is not None}
    return Selection(
        kept=everywhere(lambda m: results[m].kept, result.kept[:, :0]),
        scores=everywhere(lambda m: results[m].scores.detach(), torch.zeros_like(result.scores)),
        grid=tokens.grid,
        sources=everywhere(sources, {}),
        # A control that aggregates nothing has no weights.
        weights=everywhere(weights.__getitem__, weights[first][:, :, :0]) if weights else None,
    )
