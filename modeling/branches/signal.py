"""Signal (AAAI 2026): select patches within and across modalities, then let the globals attend to them.

Its selection keeps a patch that its own global picks (`intra`) or that another modality's global picks
(`inter`). A patch that nobody picks becomes a zero vector and stays in the sequence. See docs/selectors.md.

Shapes: B triples, N patches of an image, C channels, K patches that one query picks within a modality.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from errors import UserError
from modeling.branches import Branch
from modeling.branches.signal_alignment import GlobalAlignment, LocalAlignment
from modeling.seps.sdtps import full_precision
from structures import BranchOutput, Modality, ModalTokens, PerModality, Selection

NUM_HEADS = 8
"""Of the interaction."""


class Pick(NamedTuple):
    """What one query picks among n patches."""

    hard: Tensor  # 1 for the patches that are picked, 0 for the others, (..., n)
    soft: Tensor  # in (0, 1), above one half where `hard` is 1, with a gradient, (..., n)

    @property
    def straight_through(self) -> Tensor:
        """The value of `hard`, bit for bit, with the gradient of `soft`."""
        # The brackets matter: (hard + soft) - soft would round, hard + 0 does not.
        return self.hard + (self.soft - self.soft.detach())


def pick(logits: Tensor, count: int) -> Pick:
    """Pick the `count` patches with the highest logits; of equal ones the earlier, all if there are fewer.

    `soft` is the sigmoid of a logit's distance from the cut, the middle between the last that is picked and
    the first that is not. Its slope is 1/4 at the cut and falls off on both sides. A number that is added to
    all logits changes neither `hard` nor `soft`, so it gets no gradient.

    Args:
        logits: (..., n).
        count: how many, 1 or more.
    """
    if count >= logits.shape[-1]:
        return Pick(torch.ones_like(logits), torch.ones_like(logits))
    ranked = logits.argsort(dim=-1, descending=True, stable=True)
    hard = torch.zeros_like(logits).scatter(-1, ranked[..., :count], 1.0)
    cut = logits.gather(-1, ranked[..., count - 1 : count + 1]).mean(dim=-1, keepdim=True)
    return Pick(hard, (logits - cut).sigmoid())


class SelectedPatches(NamedTuple):
    """What was decided for one modality; all (B, N)."""

    decision: Tensor  # 1 for kept patches and 0 for others; may have a gradient
    intra: Pick  # by its own global
    inter: Pick  # by the globals of the other modalities, jointly


class TokenSelection(nn.Module):
    """Decides which patches each modality keeps.

    - intra: the K patches with the largest dot product with the global of their own modality.
    - inter: each global, projected by W_q, picks 2K patches of the two other modalities together, projected
      by W_k; how many of them in which modality is open.
    - A patch is kept that its own global or another one has picked: at least K, and the number varies.

    As published, W_q and W_k act through the order of the logits alone. Nothing gives them a gradient: they
    are a random projection that stays as it was initialised, so here they do not count as trainable.

    With `straight_through` they learn. The decision is D = 1 − (1 − I)(1 − P)(1 − P′), where I is the choice
    of the own global and P, P′ are those of the two others. Its value is the published one, exactly. For the
    gradient, P stands for `Pick.soft`, so that ∂D/∂logit = (1 − I)(1 − P′) σ′(logit − cut): at most 1/4, and
    0 for a patch that is kept anyway. A discarded patch has one too: it can learn that it should have been
    kept.

    Args:
        dim: C.
        top_k: K.
        straight_through: let the decision carry a gradient to W_q and W_k.
    """

    def __init__(self, dim: int, top_k: int, *, straight_through: bool = False) -> None:
        super().__init__()
        self.top_k = top_k
        self.straight_through = straight_through
        self.to_query = nn.Linear(dim, dim)
        self.to_key = nn.Linear(dim, dim)
        self.requires_grad_(straight_through)

    def forward(
        self, globals_: PerModality[Tensor], patches: PerModality[Tensor]
    ) -> PerModality[SelectedPatches]:
        """Globals (B, C) and patches (B, N, C) of each modality."""
        scale = globals_.rgb.shape[1] ** -0.5
        # The projected globals and patches across modalities: a row per query, (B, 3, 3, N).
        queries = self.to_query(torch.stack(list(globals_), dim=1)) * scale
        keys = self.to_key(torch.cat(list(patches), dim=1))
        across = full_precision(queries @ keys.mT).unflatten(2, (len(Modality), -1))
        # What the global of each modality picks in the two others, by query and by the modality of the patch.
        picked: dict[tuple[Modality, Modality], Pick] = {}
        for index, query in enumerate(Modality):
            others = [other for other in Modality if other is not query]
            logits = torch.cat([across[:, index, i] for i, m in enumerate(Modality) if m in others], dim=1)
            halves = zip(*(part.chunk(2, dim=1) for part in pick(logits, 2 * self.top_k)), strict=True)
            picked |= {(query, m): Pick(*half) for m, half in zip(others, halves, strict=True)}

        def select(modality: Modality) -> SelectedPatches:
            guide = (globals_.of(modality) * scale).unsqueeze(2)
            intra = pick(full_precision(patches.of(modality) @ guide).squeeze(2), self.top_k)
            by_others = [picked[query, modality] for query in Modality if query is not modality]
            left_out = 1 - intra.hard
            for other in by_others:
                left_out = left_out * (1 - (other.straight_through if self.straight_through else other.hard))
            hard, soft = (torch.maximum(*pair) for pair in zip(*by_others, strict=True))
            return SelectedPatches(1 - left_out, intra, Pick(hard, soft))

        return PerModality.build(select)


class Interaction(nn.Module):
    """The globals attend to the patches that are left, then pass a feed-forward layer; both with LayerNorm.

    A zeroed patch still takes part in the attention: its key and its value are the biases of the projections.

    Args:
        dim: C, a multiple of the 8 heads.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim % NUM_HEADS:
            raise UserError(
                f"MODEL.USE_SIGNAL needs a token width that is a multiple of {NUM_HEADS}, but that of this "
                f"backbone is {dim}; choose another MODEL.TRANSFORMER_TYPE"
            )
        self.attention = nn.MultiheadAttention(dim, NUM_HEADS, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Globals (B, 3, C) and tokens (B, 3N, C) -> (B, 3, C)."""
        attended, _ = self.attention(queries, tokens, tokens, need_weights=False)
        attended = self.norm1(queries + attended)
        return self.norm2(attended + self.mlp(attended))


class SignalBranch(Branch):
    """Selection, interaction and, in training, the two alignment losses.

    Args:
        dim: C.
        grid: rows and columns of the patches.
        top_k: K of the selection.
        straight_through: let the selection learn; see `TokenSelection`.
        gam_weight: weight of the global alignment; 0 leaves it out.
        min_temperature: of the global alignment; see there.
        lam_weight: weight of the local alignment; 0 leaves it out.
    """

    selects = True
    needs_all = True
    cost_titles: Mapping[str, str] = {"": "Signal"}

    def __init__(
        self,
        dim: int,
        grid: tuple[int, int],
        *,
        top_k: int,
        straight_through: bool = False,
        gam_weight: float = 0.2,
        min_temperature: float = 0.0,
        lam_weight: float = 0.2,
    ) -> None:
        super().__init__()
        self.select = TokenSelection(dim, top_k, straight_through=straight_through)
        self.interact = Interaction(dim)
        self.gam = GlobalAlignment(min_temperature) if gam_weight else None
        self.lam = LocalAlignment(dim, grid) if lam_weight else None
        self.gam_weight, self.lam_weight = gam_weight, lam_weight
        self.out_dim = dim * len(Modality)

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """Globals and patches -> the globals after the interaction, (B, 3C)."""
        selected = self.select(tokens.globals_, tokens.patches)
        left = PerModality.build(
            lambda m: (
                tokens.patches.of(m) * selected.of(m).decision.to(tokens.patches.of(m).dtype).unsqueeze(2)
            )
        )
        queries = torch.stack(list(tokens.globals_), dim=1)
        features = self.interact(queries, torch.cat(list(left), dim=1)).flatten(1)
        # The alignment losses see all patches.
        rows: dict[str, Tensor] = {}
        if self.training and self.gam is not None:
            rows["directions"] = self.gam.directions(tokens.patches)
        if self.training and self.lam is not None:
            rows["lam"] = self.lam(tokens.patches, tokens.grid)
        return BranchOutput(features, selection=_describe(selected, tokens), rows=rows)

    def batch_losses(self, rows: dict[str, Tensor], person_ids: Tensor) -> dict[str, Tensor]:
        """GAM contrasts each triple with all others, those of its own identity too; LAM is a mean."""
        losses = {}
        if self.gam is not None:
            losses["gam"] = self.gam_weight * self.gam(rows["directions"])
        if self.lam is not None:
            losses["lam"] = self.lam_weight * rows["lam"].mean()
        return losses


def _describe(selected: PerModality[SelectedPatches], tokens: ModalTokens) -> Selection:
    """What was decided, by patch index in the image; scores above one half are kept."""

    def sources(found: SelectedPatches) -> dict[str, Tensor]:
        return {"intra": found.intra.soft.detach(), "inter": found.inter.soft.detach()}

    by_modality = selected.map(sources)
    return Selection(
        kept=selected.map(lambda found: found.decision.detach().bool()),
        scores=by_modality.map(lambda parts: torch.maximum(parts["intra"], parts["inter"])),
        grid=tokens.grid,
        sources=by_modality,
    )
