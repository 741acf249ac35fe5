"""What people wear and carry: fabrics with a look in each modality, and outfits that tell people apart."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Fabric(IntEnum):
    """What a pixel of a person is made of; the rows of `Outfit.fabrics`."""

    SKIN = 0
    HAIR = 1
    TOP = 2
    TOP_PATTERN = 3
    INNER = 4
    BOTTOM = 5
    BOTTOM_PATTERN = 6
    SHOE = 7
    SOLE = 8
    SOCK = 9
    BAG = 10
    BAG_PATTERN = 11
    HEADWEAR = 12
    GLASSES = 13
    FACE_MASK = 14
    REFLECTOR = 15


class Pattern(IntEnum):
    """Where a top shows its second fabric."""

    PLAIN = 0
    RINGS = 1
    YOKE = 2
    FRONT_PRINT = 3
    BACK_PRINT = 4
    SIDE_PANELS = 5
    SLEEVES = 6
    CHECKS = 7
    HEM = 8


class Bag(IntEnum):
    """What a person carries."""

    NONE = 0
    BACKPACK = 1
    CROSS_BODY = 2
    TOTE = 3
    HAND = 4


class Headwear(IntEnum):
    """What is on the head."""

    NONE = 0
    CAP = 1
    HOOD_UP = 2
    HOOD_DOWN = 3


THIN, MEDIUM, THICK = (0.66, 0.82), (0.48, 0.68), (0.18, 0.40)
"""How warm a fabric looks from outside: the thicker, the colder."""


@dataclass(frozen=True)
class Outfit:
    """One person's clothes, hair and belongings; lengths are y in body coordinates or shares of a limb.

    Attributes:
        fabrics: red, green, blue, near-infrared reflectance and heat of each `Fabric`, (fabrics, 5).
        loose: what the top adds to the half widths of the torso.
        sleeve: share of the arm that it covers.
        hem: y at which the top ends; below the crotch for a coat.
        opening: half width of an open front; 0 if it is closed.
        quilt: distance between the seams of a quilted top; 0 without.
        pattern: of the top.
        period: of its repetition.
        pattern_y: where it lies on the torso.
        skirt: y of its hem; 0 without.
        leg: share of the leg that trousers cover.
        leg_width: factor on the width of the legs.
        leg_stripe: whether a stripe runs down the outer sides.
        boots: share of the leg above which boots do not reach; 1 without.
        hair_length: y to which hair falls; short hair ends at the neck.
        ponytail: whether hair is tied at the back.
        hair_line: y of the hair over the face.
        headwear: on the head.
        glasses: worn, dark in the thermal image.
        face_mask: worn.
        scarf: worn; in the second fabric of the top.
        bag: carried.
        bag_size: factor on its size.
        bag_side: 1 or -1, the side on which it is carried.
        pocket: whether a hand is mostly in its pocket, by side.
        reflector: y of a reflecting band on the torso; 0 without.
        spots: angle, y, radius and added heat of warm and cold patches of the top, (spots, 4).
    """

    fabrics: np.ndarray
    loose: float
    sleeve: float
    hem: float
    opening: float
    quilt: float
    pattern: Pattern
    period: float
    pattern_y: float
    skirt: float
    leg: float
    leg_width: float
    leg_stripe: bool
    boots: float
    hair_length: float
    ponytail: bool
    hair_line: float
    headwear: Headwear
    glasses: bool
    face_mask: bool
    scarf: bool
    bag: Bag
    bag_size: float
    bag_side: float
    pocket: tuple[bool, bool]
    reflector: float
    spots: np.ndarray

    @staticmethod
    def draw(rng: np.random.Generator) -> Outfit:
        """The outfit of a new person."""
        warmth = int(rng.choice(3, p=[0.35, 0.35, 0.30]))  # thin, medium, thick
        skirt = bool(rng.random() < 0.12)
        shorts = not skirt and bool(rng.random() < (0.40, 0.06, 0.02)[warmth])
        coat = warmth == 2 and rng.random() < 0.35
        open_front = warmth > 0 and rng.random() < 0.40
        long_hair = rng.random() < 0.40
        return Outfit(
            fabrics=_draw_fabrics(rng, warmth, bare_legs=shorts or skirt),
            loose=rng.uniform(0.0, 0.010) + (0.0, 0.005, 0.014)[warmth],
            sleeve=rng.uniform(0.32, 0.52) if warmth == 0 and rng.random() < 0.75 else 1.0,
            hem=rng.uniform(0.58, 0.76) if coat else rng.uniform(0.46, 0.55),
            opening=rng.uniform(0.020, 0.050) if open_front else 0.0,
            quilt=rng.uniform(0.032, 0.055) if warmth == 2 and not coat and rng.random() < 0.6 else 0.0,
            pattern=Pattern(
                rng.choice(len(Pattern), p=[0.36, 0.10, 0.11, 0.10, 0.07, 0.07, 0.09, 0.04, 0.06])
            ),
            period=rng.uniform(0.05, 0.10),
            pattern_y=rng.uniform(0.25, 0.33),
            skirt=rng.uniform(0.60, 0.76) if skirt else 0.0,
            leg=0.0 if skirt else rng.uniform(0.38, 0.58) if shorts else rng.choice([0.86, 0.97, 0.97]),
            leg_width=rng.uniform(0.85, 1.22),
            leg_stripe=bool(rng.random() < 0.15),
            boots=rng.uniform(0.70, 0.85) if rng.random() < 0.10 else 1.0,
            hair_length=rng.uniform(0.17, 0.26) if long_hair else rng.uniform(0.10, 0.125),
            ponytail=bool(long_hair and rng.random() < 0.4),
            hair_line=rng.uniform(0.028, 0.048),
            headwear=Headwear(rng.choice(4, p=[0.66, 0.10, 0.06, 0.18])),
            glasses=bool(rng.random() < 0.35),
            face_mask=bool(rng.random() < 0.15),
            scarf=bool(warmth > 0 and rng.random() < 0.12),
            bag=Bag(rng.choice(5, p=[0.36, 0.32, 0.12, 0.10, 0.10])),
            bag_size=rng.uniform(0.8, 1.25),
            bag_side=float(rng.choice([-1.0, 1.0])),
            pocket=(bool(rng.random() < 0.15), bool(rng.random() < 0.15)),
            reflector=rng.uniform(0.24, 0.44) if rng.random() < 0.07 else 0.0,
            spots=np.stack(
                [
                    rng.uniform(-np.pi, np.pi, 6),
                    rng.uniform(0.20, 0.46, 6),
                    rng.uniform(0.05, 0.10, 6),
                    rng.choice([-1.0, 1.0], 6) * rng.uniform(0.04, 0.11, 6),
                ],
                axis=1,
            ),
        )


def _draw_fabrics(rng: np.random.Generator, warmth: int, *, bare_legs: bool) -> np.ndarray:
    """See `Outfit.fabrics`; `warmth` is 0 for thin, 1 for medium and 2 for thick tops."""
    heat = (THIN, MEDIUM, THICK)[warmth]
    table = np.zeros((len(Fabric), 5), dtype=np.float32)
    table[Fabric.SKIN] = *_tint(rng, rng.uniform(0.35, 0.60), 0.07, 0.25), rng.uniform(0.50, 0.72), 0.92
    table[Fabric.HAIR] = *_tint(rng, rng.uniform(0.02, 0.10), 0.07, 0.15), rng.uniform(0.10, 0.45), 0.0
    table[Fabric.HAIR, 4] = rng.uniform(0.48, 0.72)
    table[Fabric.TOP] = _fabric(rng, heat)
    table[Fabric.TOP_PATTERN] = _contrasting(rng, table[Fabric.TOP])
    table[Fabric.INNER] = _fabric(rng, (0.64, 0.82), bright=0.5)
    table[Fabric.BOTTOM] = _fabric(rng, (0.54, 0.76), bright=0.16, infrared=0.30)
    table[Fabric.BOTTOM_PATTERN] = _contrasting(rng, table[Fabric.BOTTOM])
    table[Fabric.SHOE] = _fabric(rng, (0.28, 0.52), bright=0.45)
    table[Fabric.SOLE] = *_tint(rng, rng.choice([0.05, 0.75]), 0.1, 0.05), rng.choice([0.1, 0.75]), 0.42
    table[Fabric.SOCK] = _fabric(rng, (0.54, 0.70), bright=0.5)
    table[Fabric.BAG] = _fabric(rng, (0.08, 0.30), bright=0.25, vivid=0.25)
    table[Fabric.BAG_PATTERN] = _contrasting(rng, table[Fabric.BAG])
    table[Fabric.HEADWEAR] = table[Fabric.TOP] if rng.random() < 0.5 else _fabric(rng, (0.30, 0.60))
    table[Fabric.GLASSES] = 0.10, 0.10, 0.10, 0.20, rng.uniform(0.15, 0.35)
    table[Fabric.FACE_MASK] = *_tint(rng, rng.choice([0.08, 0.70]), 0.55, 0.10), 0.65, rng.uniform(0.6, 0.75)
    table[Fabric.REFLECTOR] = 0.85, 0.85, 0.80, 1.60, table[Fabric.TOP, 4] - 0.1
    if bare_legs and rng.random() < 0.35:  # tights
        table[Fabric.SOCK] = _fabric(rng, (0.72, 0.84), bright=0.1)
    return table


def _fabric(
    rng: np.random.Generator,
    heat: tuple[float, float],
    *,
    bright: float = 0.30,
    infrared: float = 0.50,
    vivid: float = 0.12,
) -> np.ndarray:
    """A row of `Outfit.fabrics`.

    Args:
        rng: source of chance.
        heat: its range.
        bright: probability of a light fabric.
        infrared: probability that its dye reflects near-infrared light, so that black becomes grey or white.
        vivid: probability that its colour survives in the night.
    """
    level = rng.uniform(0.45, 0.90) if rng.random() < bright else 0.03 + 0.32 * rng.random() ** 1.6
    reflectance = (
        rng.uniform(0.40, 0.92) if rng.random() < infrared else 0.75 * level + rng.uniform(0.02, 0.12)
    )
    saturation = rng.uniform(0.40, 0.85) if rng.random() < vivid else rng.uniform(0.0, 0.14)
    return np.array([*_tint(rng, level, rng.random(), saturation), reflectance, rng.uniform(*heat)])


def _contrasting(rng: np.random.Generator, fabric: np.ndarray) -> np.ndarray:
    """Another fabric of the same garment: it differs in RGB, near-infrared or both, and a little in heat."""
    other = fabric.copy()
    differs = rng.integers(3)
    if differs != 1:
        level = float(fabric[:3].mean())
        other[:3] = _tint(rng, _far_from(rng, level), rng.random(), rng.uniform(0.0, 0.35))
    if differs != 0:
        other[3] = _far_from(rng, float(fabric[3]))
    other[4] += rng.uniform(-0.09, 0.09)
    return other


def _far_from(rng: np.random.Generator, level: float) -> float:
    """A level in [0.05, 0.95] at least 0.3 away from `level`."""
    return rng.uniform(level + 0.3, 0.95) if level < 0.5 else rng.uniform(0.05, level - 0.3)


def _tint(rng: np.random.Generator, level: float, hue: float, saturation: float) -> np.ndarray:
    """A colour of the given brightness, (3,)."""
    colour = np.array(colorsys.hsv_to_rgb((hue + rng.normal(0.0, 0.02)) % 1.0, saturation, 1.0))
    return np.minimum(1.0, colour * level / (colour @ [0.3, 0.59, 0.11]))
