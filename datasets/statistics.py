"""What images look like in figures, from brightness to power by octave, and where people are in them.

`REAL` has the same figures of 128 real RGBNT201 test triples, for comparison with drawn ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from typing_extensions import NamedTuple

from structures import PerModality

SIZE = (256, 128)
"""Height and width at which images are described; others are resized first."""
OCTAVES = (0.01, 0.03, 0.06, 0.12, 0.25, 0.5)
"""Bounds of the octaves in cycles per pixel."""
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class Percentiles(NamedTuple):
    """The 5 %, 50 % and 95 % points of a figure over images."""

    low: float
    median: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Percentiles:
        """Of the given values."""
        return Percentiles(*(float(value) for value in np.percentile(list(values), [5, 50, 95])))


@dataclass(frozen=True)
class ImageFigures:
    """The figures of one image.

    Attributes:
        brightness: mean luminance.
        contrast: standard deviation of the luminance.
        saturation: mean of the largest minus the smallest channel.
        sharpness: variance of the Laplacian of the luminance, times 10,000.
        octaves: mean power density in each octave, relative to the first, (5,).
    """

    brightness: float
    contrast: float
    saturation: float
    sharpness: float
    octaves: np.ndarray


@dataclass(frozen=True)
class SetFigures:
    """The figures of the images of one modality.

    Attributes:
        brightness: see `ImageFigures`.
        contrast: see `ImageFigures`.
        saturation: see `ImageFigures`.
        sharpness: for each camera, by its name.
        octaves: medians, one for each octave.
    """

    brightness: Percentiles
    contrast: Percentiles
    saturation: Percentiles
    sharpness: dict[str, Percentiles]
    octaves: tuple[float, ...]


REAL = PerModality(
    rgb=SetFigures(
        Percentiles(0.16, 0.24, 0.42),
        Percentiles(0.09, 0.17, 0.28),
        Percentiles(0.016, 0.028, 0.068),
        {"cam1": Percentiles(7.7, 17.5, 45.0), "cam2": Percentiles(1.0, 1.9, 4.4)},
        (1.0, 0.13, 0.015, 0.001, 6e-5),
    ),
    ni=SetFigures(
        Percentiles(0.23, 0.35, 0.56),
        Percentiles(0.11, 0.16, 0.27),
        Percentiles(0.0, 0.0, 0.0),
        {"cam1": Percentiles(3.2, 9.4, 26.0), "cam2": Percentiles(1.3, 2.5, 8.5)},
        (1.0, 0.13, 0.012, 7e-4, 5e-5),
    ),
    ti=SetFigures(
        Percentiles(0.29, 0.37, 0.46),
        Percentiles(0.19, 0.23, 0.27),
        Percentiles(0.38, 0.48, 0.58),
        {"cam1": Percentiles(3.2, 7.1, 15.0), "cam2": Percentiles(3.5, 5.8, 13.0)},
        (1.0, 0.08, 0.007, 4e-4, 3e-5),
    ),
)
"""Figures of 128 real RGBNT201 test triples of 29 identities."""


def describe_image(pixels: np.ndarray) -> ImageFigures:
    """The figures of one image of bytes, (H, W) or (H, W, 3)."""
    colours = (pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=-1)) / np.float32(255.0)
    luminance = colours @ _LUMA
    centre = luminance[1:-1, 1:-1]
    neighbours = luminance[:-2, 1:-1] + luminance[2:, 1:-1] + luminance[1:-1, :-2] + luminance[1:-1, 2:]
    return ImageFigures(
        brightness=float(luminance.mean()),
        contrast=float(luminance.std()),
        saturation=float((colours.max(axis=-1) - colours.min(axis=-1)).mean()),
        sharpness=1e4 * float((neighbours - 4.0 * centre).var()),
        octaves=_octave_power(luminance),
    )


def _octave_power(luminance: np.ndarray) -> np.ndarray:
    """Mean power density in each octave, relative to the first."""
    power = np.abs(np.fft.rfft2(luminance - luminance.mean())) ** 2
    rows, columns = np.fft.fftfreq(luminance.shape[0]), np.fft.rfftfreq(luminance.shape[1])
    octave = np.digitize(np.hypot(rows[:, None], columns[None, :]), OCTAVES)
    means = np.array([power[octave == number].mean() for number in range(1, len(OCTAVES))])
    return means / max(float(means[0]), 1e-12)


def describe_set(images: Iterable[tuple[str, ImageFigures]]) -> SetFigures:
    """The figures of images of one modality, each given with the name of its camera."""
    pairs = list(images)
    figures = [figure for _, figure in pairs]
    cameras = sorted({camera for camera, _ in pairs})
    return SetFigures(
        brightness=Percentiles.of(figure.brightness for figure in figures),
        contrast=Percentiles.of(figure.contrast for figure in figures),
        saturation=Percentiles.of(figure.saturation for figure in figures),
        sharpness={
            camera: Percentiles.of(figure.sharpness for own, figure in pairs if own == camera)
            for camera in cameras
        },
        octaves=tuple(float(value) for value in np.median([figure.octaves for figure in figures], axis=0)),
    )


class Comparison(NamedTuple):
    """One median beside the real one.

    Attributes:
        what: the name of the figure.
        drawn: its median.
        real: the real median.
        close: within the real 5–95 % band, or within a factor of 1.5 of the real median.
    """

    what: str
    drawn: float
    real: float
    close: bool


def compare(drawn: SetFigures, real: SetFigures) -> list[Comparison]:
    """Every median of a modality beside the real one; cameras that only one of both has are left out."""
    rows = [
        _compare(name, getattr(drawn, name), getattr(real, name))
        for name in ("brightness", "contrast", "saturation")
    ]
    for camera, figures in drawn.sharpness.items():
        if camera in real.sharpness:
            rows.append(_compare(f"sharpness {camera}", figures, real.sharpness[camera]))
    for high, mine, other in zip(OCTAVES[2:], drawn.octaves[1:], real.octaves[1:], strict=True):
        rows.append(
            _compare(f"power to {high}", Percentiles(mine, mine, mine), Percentiles(other, other, other))
        )
    return rows


def _compare(what: str, drawn: Percentiles, real: Percentiles) -> Comparison:
    inside = real.low <= drawn.median <= real.high
    near = real.median / 1.5 <= drawn.median <= 1.5 * real.median
    return Comparison(what, drawn.median, real.median, inside or near)


class PlacementFigures(NamedTuple):
    """How far the position of people is known in advance, as kept-patch precision in [0, 1].

    Attributes:
        chance: of a random choice of patches.
        fixed: of the best choice of the same patch indices for all images.
        best: of the best choice for each image.
    """

    chance: float
    fixed: float
    best: float


def describe_placement(masks: Iterable[np.ndarray], grid: tuple[int, int] = (16, 8)) -> PlacementFigures:
    """What half of the patches can reach, given masks (H, W) that are True on the person.

    Args:
        masks: all of one size, a multiple of the grid.
        grid: rows and columns of the patches; one lies on the person if more than half of its area does.
    """
    rows, columns = grid
    covered = []
    for mask in masks:
        height, width = mask.shape
        cells = mask.reshape(rows, height // rows, columns, width // columns)
        covered.append(cells.mean(axis=(1, 3)).ravel() > 0.5)
    foreground = np.array(covered)
    kept = rows * columns // 2
    share = foreground.mean(axis=0)
    return PlacementFigures(
        chance=float(share.mean()),
        fixed=float(np.sort(share)[-kept:].mean()),
        best=float(np.minimum(foreground.sum(axis=1), kept).mean() / kept),
    )
