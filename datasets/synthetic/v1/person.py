"""The people of the synthetic data set: a body each, and what each modality sees of it.

The three surfaces of a person are drawn independently, so that none can be told from another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from datasets.synthetic.v1.body import Build, Part, PosedBody
from structures import PerModality

UPPER_COLOURS = np.array(
    [
        [0.80, 0.12, 0.14],  # red
        [0.93, 0.50, 0.10],  # orange
        [0.92, 0.84, 0.20],  # yellow
        [0.15, 0.55, 0.22],  # green
        [0.12, 0.62, 0.66],  # teal
        [0.15, 0.28, 0.75],  # blue
        [0.48, 0.20, 0.60],  # purple
        [0.93, 0.55, 0.70],  # pink
        [0.92, 0.92, 0.90],  # white
        [0.12, 0.12, 0.14],  # black
    ]
)
LOWER_COLOURS = np.array(
    [
        [0.10, 0.10, 0.12],  # black
        [0.13, 0.17, 0.38],  # navy
        [0.50, 0.50, 0.52],  # grey
        [0.75, 0.66, 0.48],  # beige
        [0.38, 0.24, 0.14],  # brown
        [0.36, 0.40, 0.20],  # olive
    ]
)
_SKIN_COLOURS = np.array([[0.90, 0.72, 0.60], [0.72, 0.52, 0.38], [0.45, 0.30, 0.22]])
_HAIR_COLOURS = np.array([[0.08, 0.07, 0.07], [0.35, 0.22, 0.12], [0.75, 0.60, 0.32], [0.55, 0.54, 0.54]])


def jittered_choice(rng: np.random.Generator, palette: np.ndarray, jitter: float = 0.04) -> np.ndarray:
    """One colour of `palette` (n, 3), slightly changed; shape (3,), in [0, 1]."""
    return np.clip(palette[rng.integers(len(palette))] + rng.normal(0.0, jitter, 3), 0.0, 1.0)


class Surface(Protocol):
    """What one modality sees of a person."""

    def paint(self, body: PosedBody) -> np.ndarray:
        """The values of the person's pixels in [0, 1], (H, W, channels); other pixels mean nothing."""


_NUM_TEXTURES = 5


def _texture(kind: int, body: PosedBody, period: float) -> np.ndarray:
    """Where a garment shows its second colour, (H, W): plain, rings, stripes, checks or a lower half."""
    rings = np.mod(body.y, period) < 0.5 * period
    stripes = np.mod(body.x, period) < 0.5 * period
    return [np.zeros_like(rings), rings, stripes, rings ^ stripes, body.y > 0.33][kind]


def _motif(kind: int, body: PosedBody) -> np.ndarray:
    """Where the torso reflects otherwise in near-infrared, (H, W): one of five large shapes."""
    x, y = body.x, body.y
    return [
        np.abs(y - 0.25) < 0.045,
        np.abs(x) < 0.035,
        np.abs(x - 0.9 * (y - 0.32)) < 0.04,
        (x > 0) ^ (y > 0.32),
        x**2 + (y - 0.31) ** 2 < 0.075**2,
    ][kind]


@dataclass(frozen=True)
class Clothing:
    """The visible surface: colours of the parts and a texture on torso and sleeves.

    Attributes:
        colours: one for each part, (parts, 3).
        second_colour: of the texture, (3,).
        texture: its kind, in [0, 5).
        period: of its repetition, in body coordinates.
    """

    colours: np.ndarray
    second_colour: np.ndarray
    texture: int
    period: float

    @staticmethod
    def draw(rng: np.random.Generator) -> Clothing:
        """The clothing of a new person."""
        upper = jittered_choice(rng, UPPER_COLOURS)
        lower = jittered_choice(rng, LOWER_COLOURS)
        colours = np.zeros((len(Part), 3), dtype=np.float32)
        colours[Part.SKIN] = jittered_choice(rng, _SKIN_COLOURS)
        colours[Part.HAIR] = jittered_choice(rng, _HAIR_COLOURS)
        colours[Part.TORSO] = upper
        colours[Part.SLEEVES] = 0.9 * upper
        colours[Part.THIGHS] = lower
        colours[Part.SHINS] = 0.9 * lower
        colours[Part.SHOES] = jittered_choice(rng, LOWER_COLOURS)
        colours[Part.BAG] = jittered_choice(rng, np.concatenate([UPPER_COLOURS, LOWER_COLOURS]))
        return Clothing(
            colours=colours,
            second_colour=jittered_choice(rng, UPPER_COLOURS).astype(np.float32),
            texture=int(rng.integers(_NUM_TEXTURES)),
            period=rng.uniform(0.06, 0.12),
        )

    def paint(self, body: PosedBody) -> np.ndarray:
        """See `Surface`; three channels."""
        image = self.colours[body.parts]
        garment = (body.parts == Part.TORSO) | (body.parts == Part.SLEEVES)
        image[garment & _texture(self.texture, body, self.period)] = self.second_colour
        return image


@dataclass(frozen=True)
class Reflectance:
    """The near-infrared surface, which the colours do not reveal.

    Attributes:
        levels: reflectance of each part, (parts, 1).
        motif: the kind of shape on the torso, in [0, 5).
        motif_level: its reflectance.
        band: upper and lower edge of a band round the legs, in body coordinates.
        band_level: its reflectance.
    """

    levels: np.ndarray
    motif: int
    motif_level: float
    band: tuple[float, float]
    band_level: float

    @staticmethod
    def draw(rng: np.random.Generator) -> Reflectance:
        """The reflectance of a new person."""
        levels = rng.uniform(0.12, 0.92, (len(Part), 1)).astype(np.float32)
        levels[Part.SKIN] = rng.uniform(0.55, 0.70)
        levels[Part.SLEEVES] = levels[Part.TORSO]
        band_top = rng.uniform(0.58, 0.84)
        return Reflectance(
            levels=levels,
            motif=int(rng.integers(5)),
            motif_level=_clearly_different(rng, float(levels[Part.TORSO, 0])),
            band=(band_top, band_top + rng.uniform(0.04, 0.08)),
            band_level=_clearly_different(rng, float(levels[Part.THIGHS, 0])),
        )

    def paint(self, body: PosedBody) -> np.ndarray:
        """See `Surface`; one channel."""
        image = self.levels[body.parts]
        image[(body.parts == Part.TORSO) & _motif(self.motif, body)] = self.motif_level
        legs = (body.parts == Part.THIGHS) | (body.parts == Part.SHINS)
        image[legs & (body.y > self.band[0]) & (body.y < self.band[1])] = self.band_level
        return image


def _clearly_different(rng: np.random.Generator, level: float) -> float:
    """A reflectance in [0.1, 0.95] at least 0.3 away from `level`."""
    return rng.uniform(level + 0.3, 0.95) if level < 0.5 else rng.uniform(0.1, level - 0.3)


@dataclass(frozen=True)
class Heat:
    """The thermal surface: warm skin, garments of the person's own warmth, hot and cold spots.

    Attributes:
        levels: heat of each part, (parts, 1).
        spots: x, y, radius in body coordinates and added heat of each spot, (spots, 4).
    """

    levels: np.ndarray
    spots: np.ndarray

    @staticmethod
    def draw(rng: np.random.Generator) -> Heat:
        """The heat of a new person."""
        levels = rng.uniform(0.25, 0.80, (len(Part), 1)).astype(np.float32)
        levels[Part.SKIN] = rng.uniform(0.82, 0.92)
        levels[Part.HAIR] = rng.uniform(0.45, 0.60)
        levels[Part.SLEEVES] = levels[Part.TORSO] - 0.05
        levels[Part.SHINS] = levels[Part.THIGHS] - 0.05
        levels[Part.BAG] = rng.uniform(0.15, 0.35)
        spots = np.stack(
            [
                rng.uniform(-0.10, 0.10, 3),
                rng.uniform([0.18, 0.32, 0.55], [0.32, 0.50, 0.85]),
                rng.uniform(0.030, 0.055, 3),
                rng.choice([-0.3, 0.3], 3) * rng.uniform(0.8, 1.2, 3),
            ],
            axis=1,
        )
        return Heat(levels=levels, spots=spots)

    def paint(self, body: PosedBody) -> np.ndarray:
        """See `Surface`; one channel."""
        image = self.levels[body.parts]
        for x, y, radius, added in self.spots:
            image[(body.x - x) ** 2 + (body.y - y) ** 2 < radius**2] += added
        return np.clip(image, 0.0, 1.0)


@dataclass(frozen=True)
class Person:
    """One identity."""

    build: Build
    surfaces: PerModality[Surface]

    @staticmethod
    def draw(rng: np.random.Generator) -> Person:
        """A new person."""
        return Person(Build.draw(rng), PerModality(Clothing.draw(rng), Reflectance.draw(rng), Heat.draw(rng)))
