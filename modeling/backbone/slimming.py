"""Slimming: merge similar patches of an image, so that the following blocks compute less.

A token then stands for several patches. It is their mean, and attention counts it as many times as it has
patches, so that merging equal patches changes nothing. After the last block every patch gets the features of
its token, and the branches see all patches. See docs/method.md.

Bipartite matching and attention by size follow ToMe (Bolya et al., ICLR 2023, arXiv 2210.09461). Merging
before the first block, by the distance of the tokens, and into a lattice of patches is what keeps mAP here.

Shapes: B images, C channels, N patches of an image, n tokens that stand for them, P prefix tokens.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from structures import SlimmedPatches

TARGETS = 0.6
"""Of the tokens that are left, the share that others may join; the rest stays alone."""
PLASTIC = 1.32471795724474602596
"""The real root of x³ = x + 1. Multiples of 1 / PLASTIC and 1 / PLASTIC² fill the unit square evenly."""
STEP = 0.03
"""A step of one patch counts as this share of the variance of the tokens, where they carry no position."""


def lattice_order(grid: tuple[int, int]) -> Tensor:
    """The patch indices of a grid in an order in which the first ones, however many, spread over the image.

    Returns:
        (N,), each of 0 … N - 1 once.
    """
    rows, columns = torch.meshgrid(*(torch.arange(size) for size in grid), indexing="ij")
    places = (rows.double() / PLASTIC + columns.double() / PLASTIC**2) % 1
    return places.flatten().argsort(stable=True)


class SlimTokens(NamedTuple):
    """The tokens between two blocks; those of patches are in the order of the lattice."""

    prefix: Tensor  # the class token, then register tokens if the backbone has any, (B, P, C)
    merged: Tensor  # the means of the patches that each token stands for, (B, n, C)
    sizes: Tensor  # of how many patches, (B, n), in float32
    leads: Tensor  # for each token one of its patches, which it has been from the start, (B, n), in [0, N)
    owners: Tensor  # for each patch of the image its token, (B, N), in [0, n)

    @staticmethod
    def whole(tokens: Tensor, num_prefix: int, lattice: Tensor) -> SlimTokens:
        """A token for each patch; `tokens` are (B, P + N, C), `lattice` is from `lattice_order`."""
        count = tokens.shape[0]
        merged = tokens[:, num_prefix:][:, lattice]
        leads, owners = (order.expand(count, -1) for order in (lattice, lattice.argsort()))
        sizes = torch.ones_like(merged[..., 0], dtype=torch.float32)
        return SlimTokens(tokens[:, :num_prefix], merged, sizes, leads, owners)

    @property
    def is_whole(self) -> bool:
        """Whether nothing has been merged."""
        return self.merged.shape[1] == self.owners.shape[1]

    def joined(self) -> Tensor:
        """One sequence for a block, (B, P + n, C)."""
        return torch.cat([self.prefix, self.merged], dim=1)

    def updated(self, tokens: Tensor) -> SlimTokens:
        """The same tokens after a block; `tokens` as from `joined`."""
        prefix, merged = tokens.tensor_split([self.prefix.shape[1]], dim=1)
        return self._replace(prefix=prefix, merged=merged)

    def bias(self) -> Tensor | None:
        """What makes attention count a token as often as it has patches, (B, 1, 1, P + n); None if whole.

        A softmax over s equal products is that over one of them plus log s. A prefix token counts once.
        """
        if self.is_whole:
            return None
        once = torch.zeros_like(self.prefix[..., 0], dtype=self.sizes.dtype)
        return torch.cat([once, self.sizes.log()], dim=1)[:, None, None].to(self.prefix.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """What belongs to tokens, (B, n) or (B, n, …), for the patches, (B, N) or (B, N, …)."""
        return take(values, self.owners)

    def describe(self) -> SlimmedPatches:
        """Which patches have a token, for reports."""
        return SlimmedPatches(self.leads.sort(dim=1).values, self.spread(1 / self.sizes))


class Slimming(nn.Module):
    """Merges tokens until a share of them is left; has no parameters.

    The first tokens of the lattice are targets. Each other token finds the nearest target; those at the
    smallest distance join theirs. Patches far apart in the image should not be merged: with a position
    embedding they differ already; in a trunk that rotates queries and keys in its place, the distance in the
    image is added. The decision has no gradient, the means have.

    Args:
        keep_ratio: share of the tokens to be left, in (0, 1], rounded up.
    """

    def __init__(self, keep_ratio: float) -> None:
        super().__init__()
        self.keep_ratio = keep_ratio

    def num_left(self, state: SlimTokens) -> int:
        """K, how many tokens of these are to be left."""
        return math.ceil(self.keep_ratio * state.merged.shape[1] - 1e-9)  # 0.7 * 10 is 7

    def forward(self, state: SlimTokens, columns: int | None = None) -> SlimTokens:
        """K tokens in place of n; the state as it is if K = n.

        Args:
            state: the tokens.
            columns: of the grid of patches, where the tokens do not carry their position.
        """
        count, num_left = state.merged.shape[1], self.num_left(state)
        if num_left == count:
            return state
        # Decide: which tokens join a target, and which.
        num_targets = math.ceil(TARGETS * num_left)
        compared = state.merged.detach().float()
        compared = compared if columns is None else add_places(compared, state.leads, columns)
        joining, staying, targets = match(compared, num_targets, count - num_left)
        # Sum up the patches of each target, and divide by their number.
        sums, sizes = state.merged * state.sizes.unsqueeze(-1).to(state.merged.dtype), state.sizes
        sums = _add(sums[:, :num_targets], targets, take(sums, joining))
        grown = _add(sizes[:, :num_targets], targets, take(sizes, joining))
        means = sums / grown.unsqueeze(-1).to(sums.dtype)
        # The targets come first, then the tokens that stay alone, in the lattice's order.
        alone = torch.arange(num_targets, num_left, device=staying.device).expand_as(staying)
        first = torch.arange(num_targets, device=staying.device).expand(staying.shape[0], -1)
        moved = torch.zeros_like(sizes, dtype=torch.long).scatter(1, first, first)  # by token its new index
        moved = moved.scatter(1, joining, targets).scatter(1, staying, alone)
        return SlimTokens(
            prefix=state.prefix,
            merged=torch.cat([means, take(state.merged, staying)], dim=1),
            sizes=torch.cat([grown, take(sizes, staying)], dim=1),
            leads=torch.cat([state.leads[:, :num_targets], take(state.leads, staying)], dim=1),
            owners=take(moved, state.owners),
        )


def add_places(tokens: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Tokens with two more channels, so that their squared distance grows with that in the image.

    Args:
        tokens: (B, n, C).
        indices: of their patches, (B, n).
        columns: of the grid.

    Returns:
        (B, n, C + 2).
    """
    places = torch.stack([indices // columns, indices % columns], dim=2).to(tokens.dtype)
    variance = tokens.var(dim=1, correction=0).sum(dim=1)  # (B,)
    return torch.cat([tokens, (STEP * variance).sqrt()[:, None, None] * places], dim=2)


@torch.no_grad()
def match(tokens: Tensor, num_targets: int, num_joining: int) -> tuple[Tensor, Tensor, Tensor]:
    """Match tokens with the nearest of the first T tokens, by their Euclidean distance.

    Args:
        tokens: (B, n, C).
        num_targets: T.
        num_joining: J, at most n - T.

    Returns:
        The J tokens that are nearest to a target, (B, J); those that are neither among them nor targets,
        ascending, (B, n - T - J); and for each of the J its target, in [0, T), (B, J).
    """
    # Half precision is too coarse to tell similar tokens apart; an exported file has none.
    device = tokens.device.type
    half = torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False) if half else nullcontext():
        targets, others = tokens.tensor_split([num_targets], dim=1)
        lengths = targets.square().sum(dim=2).unsqueeze(1)  # (B, 1, T)
        products = others @ targets.transpose(1, 2)  # (B, n - T, T)
        nearest, owner = (lengths - 2 * products).min(dim=2)
        distances = nearest + others.square().sum(dim=2)  # squared, (B, n - T)
    order = distances.argsort(dim=1, stable=True)
    joining, staying = order.tensor_split([num_joining], dim=1)
    return joining + num_targets, staying.sort(dim=1).values + num_targets, owner.gather(1, joining)


def _add(totals: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """(B, T, …) plus values (B, J, …) in the rows (B, J)."""
    index = rows if values.dim() == 2 else rows.unsqueeze(-1).expand_as(values)
    return totals.scatter_add(1, index, values)


def take(values: Tensor, indices: Tensor) -> Tensor:
    """(B, n, …) at (B, K) -> (B, K, …)."""
    if values.dim() == 2:
        return values.gather(1, indices)
    return values.gather(1, indices.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
