"""What the model decided about patches → pictures of the images, as tensors in [0, 1].

Shapes: B triples, N patches, K kept patches, A aggregated tokens, images and pictures (B, 3, H, W). `grid`:
rows and columns of the patches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from colorsys import hsv_to_rgb
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reporting.extra import import_extra
from structures import Modality, PerModality, Selection

VEIL = (0.25, 0.35, 0.65)  # a blue that neither persons nor scenes have
VEIL_STRENGTH = 0.75
TOKEN_STRENGTH = 0.8
GREY = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)  # brightness of red, green and blue
NO_TOKEN = -1
SCORE_COLOURS = "viridis"
ATTENTION_COLOURS = "inferno"
ATTENTION_STRENGTH = 0.65
HUE_STEP = 0.618034  # the golden ratio: any number of hues in a row lie far from each other


class Maps(NamedTuple):
    """Maps of T triples, and what their colours mean."""

    pictures: np.ndarray  # V views of each image of M modalities, (T, M, V, H, W, 3) in [0, 1]
    modalities: tuple[Modality, ...]  # M of them
    views: tuple[str, ...]  # V names
    colours: str  # name of the colour map
    label: str  # what the colour map shows
    ends: tuple[str, str]  # the texts at its lower and at its upper end


def denormalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The images as they were before normalisation, on the CPU. (B, 3, H, W) -> (B, 3, H, W)."""
    shift, scale = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))
    return (images.cpu().float() * scale + shift).clamp(0, 1)


def spread_over_pixels(
    values: Tensor, grid: tuple[int, int], images: Tensor, mode: str = "nearest"
) -> Tensor:
    """Give each pixel the value of its patch.

    Args:
        values: (B, N).
        grid: rows and columns of the patches.
        images: (B, 3, H, W), for their size.
        mode: of the interpolation; "bilinear" goes over from patch to patch without steps.

    Returns:
        (B, 1, H, W).
    """
    return F.interpolate(values.cpu().float().view(-1, 1, *grid), size=images.shape[-2:], mode=mode)


def lay_over(images: Tensor, colour: Tensor, strength: Tensor | float) -> Tensor:
    """Mix colours into images; strength 1 covers them."""
    return strength * colour + (1 - strength) * images


def veil_discarded(images: Tensor, kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """Veil the patches that were discarded; `kept` (B, N) is True for the others."""
    veil = VEIL_STRENGTH * (~kept.cpu()).float()
    return lay_over(images, torch.tensor(VEIL).view(3, 1, 1), spread_over_pixels(veil, grid, images))


def strongest_token(kept: Tensor, weights: Tensor, num_patches: int) -> Tensor:
    """The token in which each patch has its largest share, (B, N); `NO_TOKEN` for discarded patches.

    Args:
        kept: (B, K).
        weights: the share of each kept patch in each token, (B, A, K).
        num_patches: N.
    """
    nowhere = torch.full((len(kept), num_patches), NO_TOKEN, device=kept.device)
    return nowhere.scatter(1, kept, weights.argmax(dim=1))


def colour_by_token(images: Tensor, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Colour each kept patch by its token, (B, N) as from `strongest_token`; discarded patches fade."""
    palette = token_colours(int(tokens.max()) + 1)
    colours = torch.cat([palette, torch.ones(1, 3)])[tokens.cpu()]  # NO_TOKEN, -1, is the white at the end
    planes = [spread_over_pixels(plane, grid, images) for plane in colours.unbind(dim=2)]
    grey = (images * GREY).sum(dim=1, keepdim=True).expand_as(images)
    return lay_over(grey, torch.cat(planes, dim=1), TOKEN_STRENGTH)


def token_colours(count: int) -> Tensor:
    """Colours that can be told apart, (count, 3): hues far from each other, in two brightnesses."""
    shades = ((0.9, 0.75), (0.6, 1.0))
    return torch.tensor([hsv_to_rgb(index * HUE_STEP % 1, *shades[index % 2]) for index in range(count)])


def selection_maps(
    images: PerModality[Tensor], selection: Selection, modalities: Sequence[Modality] = tuple(Modality)
) -> Maps:
    """The image, the kept patches, the scores, and by colour the aggregated token that a patch feeds most.

    The maps of slimming end with the scores: how far a patch has a token of its own.

    Args:
        images: not normalised, each (T, 3, H, W) in [0, 1].
        selection: of the same triples.
        modalities: those to show.
    """
    grid = selection.grid
    scores = torch.stack([selection.scores.of(m).cpu() for m in modalities])  # (M, T, N)
    low, high = float(scores.min()), float(scores.max())

    def views(modality: Modality) -> list[Tensor]:
        own = images.of(modality)
        relative = (selection.scores.of(modality).cpu() - low) / max(high - low, 1e-12)
        score = _coloured(spread_over_pixels(relative, grid, own), SCORE_COLOURS)
        pictures = [own, veil_discarded(own, selection.masks.of(modality), grid), score]
        if selection.weights is not None:
            tokens = strongest_token(
                selection.kept.of(modality), selection.weights.of(modality), grid[0] * grid[1]
            )
            pictures.append(colour_by_token(own, tokens, grid))
        return pictures

    names = ("image", "kept", "score", "tokens")[: 3 if selection.weights is None else 4]
    return Maps(
        _stack(views, modalities),
        tuple(modalities),
        names,
        SCORE_COLOURS,
        "score",
        (f"{low:.2f}", f"{high:.2f}"),
    )


def attention_maps(
    images: PerModality[Tensor],
    rollout: PerModality[Tensor],
    grid: tuple[int, int],
    modalities: Sequence[Modality] = tuple(Modality),
) -> Maps:
    """The image, and how much of each patch reaches the class token, from the least to the most in the image.

    Args:
        images: not normalised, each (T, 3, H, W) in [0, 1].
        rollout: the share of each patch, each (T, N).
        grid: rows and columns of the patches.
        modalities: those to show.
    """

    def views(modality: Modality) -> list[Tensor]:
        own, shares = images.of(modality), rollout.of(modality).cpu()
        low, high = shares.amin(dim=1, keepdim=True), shares.amax(dim=1, keepdim=True)
        heat = spread_over_pixels((shares - low) / (high - low).clamp(min=1e-12), grid, own, "bilinear")
        return [own, lay_over(own, _coloured(heat, ATTENTION_COLOURS), ATTENTION_STRENGTH)]

    return Maps(
        _stack(views, modalities),
        tuple(modalities),
        ("image", "attention"),
        ATTENTION_COLOURS,
        "attention",
        ("least", "most"),
    )


def whiten_absent(images: Tensor, present: Tensor) -> Tensor:
    """Images on the CPU, (B, 3, H, W), with white in place of those that are not `present`, (B,) booleans."""
    return torch.where(present.cpu().view(-1, 1, 1, 1), images, 1.0)


def without_absent(maps: Maps, present: PerModality[Tensor]) -> Maps:
    """The maps with white in place of images that are not there; `present` has (T,) booleans of each."""
    there = torch.stack([present.of(m).cpu() for m in maps.modalities], dim=1).numpy()  # (T, M)
    return maps._replace(pictures=np.where(there[:, :, None, None, None, None], maps.pictures, 1.0))


def _coloured(values: Tensor, colours: str) -> Tensor:
    """(T, 1, H, W) in [0, 1] -> (T, 3, H, W)."""
    colour_map = import_extra("matplotlib").colormaps[colours]
    return torch.from_numpy(colour_map(values[:, 0].numpy())[..., :3]).float().permute(0, 3, 1, 2)


def _stack(views: Callable[[Modality], list[Tensor]], modalities: Sequence[Modality]) -> np.ndarray:
    """The views of each modality, V times (T, 3, H, W), as (T, M, V, H, W, 3)."""
    pictures = torch.stack([torch.stack(views(modality)) for modality in modalities])  # (M, V, T, 3, H, W)
    return pictures.permute(2, 0, 1, 4, 5, 3).numpy()
