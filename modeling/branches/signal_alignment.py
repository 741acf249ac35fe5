"""Signal's two alignment losses, which train the trunk and do not touch the feature: GAM and LAM.

Both see the patches of all modalities as the trunk gave them, kept or not, and run in training alone.
Shapes: B triples, N = rows * columns patches, C channels, P sampled points.
"""

from __future__ import annotations

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import UserError
from modeling.seps.sdtps import full_precision
from structures import Modality, PerModality

LABEL_SMOOTHING = 0.1
CELL = 4
"""Patches on the side of the cell that one sampled point stands for."""


def volumes(directions: PerModality[Tensor]) -> Tensor:
    """The volume that each RGB direction spans with each pair of NI and TI directions of one triple.

    The square is the determinant of the Gram matrix of three unit vectors r, n and t, which is
    1 + 2 (r·n)(r·t)(n·t) − (r·n)² − (r·t)² − (n·t)².

    Args:
        directions: of unit length, each (B, C).

    Returns:
        (B, B): row i is the RGB image of triple i, column j the pair of triple j.
    """
    rgb, ni, ti = directions
    rgb_ni, rgb_ti = rgb @ ni.T, rgb @ ti.T  # (B, B)
    ni_ti = (ni * ti).sum(dim=1)  # (B,)
    determinant = 1 + 2 * rgb_ni * rgb_ti * ni_ti - rgb_ni.square() - rgb_ti.square() - ni_ti.square()
    # The root has no finite gradient at 0, which two equal images reach.
    return (determinant.abs() + 1e-12).sqrt()


class GlobalAlignment(nn.Module):
    """GAM: the three modalities of a triple point in one direction, those of two triples do not.

    A contrastive loss over the whole batch: small volumes are alike. The temperature is learned. As published
    it has no bound: on its way to 0 its gradient grows beyond all others, and below 0 the loss is reversed.

    Args:
        min_temperature: a lower bound that repairs this, such as 0.01; 0 for none.
    """

    def __init__(self, min_temperature: float = 0.0) -> None:
        super().__init__()
        self.min_temperature = min_temperature
        self.temperature = nn.Parameter(torch.tensor(0.07))

    @staticmethod
    def directions(patches: PerModality[Tensor]) -> Tensor:
        """The mean patch of each image, at unit length, at least float32: each (B, N, C) -> (B, 3, C)."""
        means = [full_precision(tokens).mean(dim=1) for tokens in patches]
        return F.normalize(torch.stack(means, dim=1), dim=2)

    def forward(self, directions: Tensor) -> Tensor:
        """The loss of the whole batch, (B, 3, C) -> a scalar; the target of a row is its own column."""
        with torch.autocast(directions.device.type, enabled=False):
            temperature: Tensor = self.temperature
            if self.min_temperature:
                temperature = temperature.clamp(min=self.min_temperature)
            logits = -volumes(PerModality(*directions.unbind(dim=1))) / temperature
            target = torch.arange(len(logits), device=logits.device)
            pair = [
                F.cross_entropy(each, target, label_smoothing=LABEL_SMOOTHING) for each in (logits, logits.T)
            ]
            return torch.stack(pair).mean()


def reference_points(cells: int) -> Tensor:
    """Where the points of an axis are before they move, -1 at the first patch and 1 at the last: (cells,).

    Half a cell is added and then divided by the number of steps, not of cells, as published: the points lie
    off-centre, and the last one beyond the border.
    """
    return 2 * (torch.arange(cells) + 0.5) / (cells - 1) - 1


def sample(patches: Tensor, grid: tuple[int, int], y: Tensor, x: Tensor) -> Tensor:
    """The tokens at any points of the grid, interpolated bilinearly.

    A matrix product with the weights of all patches: unlike `grid_sample`, its gradient is the same in every
    run on CUDA.

    Args:
        patches: (B, N, C).
        grid: rows and columns.
        y: in [-1, 1] from the first row to the last, (B, P).
        x: likewise over the columns, (B, P).

    Returns:
        (B, P, C).
    """

    def weights(position: Tensor, size: int) -> Tensor:  # (B, P) -> (B, P, size)
        steps = (position + 1) / 2 * (size - 1)
        distances = steps.unsqueeze(2) - torch.arange(size, device=steps.device)
        return (1 - distances.abs()).clamp(min=0)

    by_patch = weights(y, grid[0]).unsqueeze(3) * weights(x, grid[1]).unsqueeze(2)  # (B, P, rows, columns)
    return by_patch.flatten(2).to(patches.dtype) @ patches


class PointSampler(nn.Module):
    """Reads an image's tokens at one point per cell of 4 x 4 patches; a network moves the points.

    Args:
        dim: C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(dim, dim, 1)
        self.offset = nn.Sequential(
            nn.Conv2d(dim, dim, 1),
            nn.GELU(),
            nn.Conv2d(dim, dim, CELL, stride=CELL, groups=dim),
            nn.GELU(),
            nn.Conv2d(dim, 1, 1, bias=False),
        )

    def points(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Where the tokens are read: (B, N, C) -> y and x, each (B, rows // 4, columns // 4), in [-1, 1].

        One number per cell moves its point along both axes, by one step of the points at most. A point that
        the border stops has no gradient.
        """
        image = patches.mT.unflatten(2, grid)
        moves = full_precision(self.offset(self.query(image))).squeeze(1).tanh()
        rows, columns = moves.shape[1:]
        y = reference_points(rows).to(moves).unsqueeze(1) + 2 * moves / (rows - 1)
        x = reference_points(columns).to(moves) + 2 * moves / (columns - 1)
        return y.clamp(-1, 1), x.clamp(-1, 1)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, N, C) -> (B, P, C), row by row."""
        y, x = self.points(patches, grid)
        return sample(patches, grid, y.flatten(1), x.flatten(1))


class LocalAlignment(nn.Module):
    """LAM: what the modalities show at their sampled points is alike.

    Args:
        dim: C; 512 alone in the authors' code.
        grid: rows and columns of the patches.
    """

    def __init__(self, dim: int, grid: tuple[int, int]) -> None:
        super().__init__()
        if min(grid) < 2 * CELL:
            raise UserError(
                f"SIGNAL.LAM_WEIGHT needs two cells of {CELL} x {CELL} patches along each side, but the "
                f"images have {grid[0]} x {grid[1]} patches; make INPUT.SIZE_TRAIN and INPUT.SIZE_TEST "
                "larger, or set SIGNAL.LAM_WEIGHT to 0"
            )
        self.samplers = nn.ModuleDict({modality.key: PointSampler(dim) for modality in Modality})

    def forward(self, patches: PerModality[Tensor], grid: tuple[int, int]) -> Tensor:
        """The mean squared difference over the three pairs of modalities: each (B, N, C) -> (B,)."""
        read = PerModality.build(lambda m: full_precision(self.samplers[m.key](patches.of(m), grid)))
        differences = torch.stack([one - other for one, other in combinations(read, 2)])  # (3, B, P, C)
        return differences.square().mean(dim=(0, 2, 3))
