"""What each modality sees of a dressed body: fabrics on its surface, shaded in RGB and NI, warm in TI."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datasets.synthetic.body import Part, Surface
from datasets.synthetic.clothes import Bag, Fabric, Headwear, Outfit, Pattern

_SIDE = np.pi / 2
_FACE = 1.2
"""Angle from the front up to which a face shows skin."""


@dataclass(frozen=True)
class Light:
    """How a person is lit and warmed in one sample.

    Attributes:
        lamp: direction of the strongest lamp: its components to the right and towards the camera.
        ambient: share of light that comes from everywhere.
        folds: noise with mean 0 that folds add to the light, (H, W).
        blotches: the same for heat, (H, W).
        hands: heat that hands have lost.
        wear: heat that the clothes gain or lose today.
    """

    lamp: tuple[float, float]
    ambient: float
    folds: np.ndarray
    blotches: np.ndarray
    hands: float
    wear: float


def fabric_map(surface: Surface, outfit: Outfit) -> np.ndarray:
    """A `Fabric` for each pixel of a person, (H, W); 0 elsewhere."""
    fabrics = np.zeros(surface.part.shape, np.uint8)
    part, front = surface.part, np.abs(surface.angle) < _SIDE
    _dress_head(fabrics, surface, outfit)
    _dress_trunk(fabrics, surface, outfit, front)
    _dress_limbs(fabrics, surface, outfit)
    # Bags with a pocket of another fabric on the side that faces outwards.
    is_bag = (part == Part.BACKPACK) | (part == Part.BAG)
    fabrics[is_bag] = Fabric.BAG
    fabrics[(part == Part.BACKPACK) & ~front & (surface.along > 0.52)] = Fabric.BAG_PATTERN
    fabrics[(part == Part.BAG) & (surface.along < 0.22)] = Fabric.BAG_PATTERN
    return fabrics


def _dress_head(fabrics: np.ndarray, surface: Surface, outfit: Outfit) -> None:
    part, y, angle = surface.part, surface.y, np.abs(surface.angle)
    head = part == Part.HEAD
    top = surface.y - 0.012 * (angle / _FACE) ** 2 < outfit.hair_line
    fabrics[head & (top | ((angle > _FACE) & (y < max(outfit.hair_length, 0.112))))] = Fabric.HAIR
    fabrics[part == Part.HAIR] = Fabric.HAIR
    face = head & (angle < _FACE)
    if outfit.glasses:
        fabrics[face & (np.abs(y - 0.066) < 0.008) & (angle > 0.10) & (angle < 0.95)] = Fabric.GLASSES
    if outfit.face_mask:
        fabrics[face & (y > 0.083) & (y < 0.125)] = Fabric.FACE_MASK
    fabrics[part == Part.HOOD] = Fabric.HEADWEAR
    if outfit.headwear is Headwear.CAP:
        fabrics[head & (y < 0.048)] = Fabric.HEADWEAR
    if outfit.headwear is Headwear.HOOD_UP:
        fabrics[((head | (part == Part.HAIR)) & ((angle > 0.9) | (y < 0.034))) | (part == Part.NECK)] = (
            Fabric.HEADWEAR
        )
    if outfit.scarf:
        fabrics[(part == Part.NECK) | ((part == Part.HEAD) & (y > 0.118))] = Fabric.TOP_PATTERN


def _dress_trunk(fabrics: np.ndarray, surface: Surface, outfit: Outfit, front: np.ndarray) -> None:
    part, y, lateral = surface.part, surface.y, surface.lateral
    torso = part == Part.TORSO
    top = torso | (part == Part.COAT)
    fabrics[top] = Fabric.TOP
    sleeves = (part == Part.ARM) & (surface.along < outfit.sleeve)
    fabrics[sleeves] = Fabric.TOP
    fabrics[_pattern(surface, outfit, top, sleeves, front)] = Fabric.TOP_PATTERN
    if outfit.opening:
        gap = outfit.opening * (0.55 + 1.6 * (y - 0.15))
        fabrics[torso & front & (np.abs(lateral) < gap)] = Fabric.INNER
        fabrics[(part == Part.COAT) & front & (np.abs(lateral) < gap)] = Fabric.BOTTOM
    else:  # the collar shows some of what is below
        fabrics[torso & front & (y < 0.185 - 0.5 * np.abs(lateral))] = Fabric.INNER
    if outfit.reflector:
        fabrics[torso & (np.abs(y - outfit.reflector) < 0.009)] = Fabric.REFLECTOR
    if outfit.bag is Bag.BACKPACK:
        fabrics[torso & front & (np.abs(np.abs(lateral) - 0.072) < 0.013) & (y < 0.345)] = Fabric.BAG
    if outfit.bag is Bag.CROSS_BODY:
        strap = lateral - outfit.bag_side * (-0.075 + 0.60 * (y - 0.17))
        fabrics[torso & (np.abs(strap) < 0.011)] = Fabric.BAG
    if outfit.bag is Bag.TOTE:
        strap = torso & (np.abs(lateral - 0.088 * outfit.bag_side) < 0.012)
        fabrics[strap & (y < 0.36)] = Fabric.BAG


def _pattern(
    surface: Surface, outfit: Outfit, top: np.ndarray, sleeves: np.ndarray, front: np.ndarray
) -> np.ndarray:
    """Where a top shows its second fabric, (H, W)."""
    y, lateral = surface.y, surface.lateral
    rings = np.mod(y, outfit.period) < 0.45 * outfit.period
    printed = top & (np.abs(y - outfit.pattern_y) < 0.045) & (np.abs(lateral) < 0.055)
    if outfit.pattern is Pattern.RINGS:
        return (top | sleeves) & rings
    if outfit.pattern is Pattern.YOKE:
        return (top | sleeves) & (y < outfit.pattern_y)
    if outfit.pattern is Pattern.FRONT_PRINT:
        return printed & front
    if outfit.pattern is Pattern.BACK_PRINT:
        return printed & ~front
    if outfit.pattern is Pattern.SIDE_PANELS:
        return top & (np.abs(np.abs(surface.angle) - _SIDE) < 0.75)
    if outfit.pattern is Pattern.SLEEVES:
        return sleeves
    if outfit.pattern is Pattern.CHECKS:
        return (top | sleeves) & (rings ^ (np.mod(lateral, outfit.period) < 0.5 * outfit.period))
    if outfit.pattern is Pattern.HEM:
        return top & (y > outfit.hem - 0.055)
    return np.zeros_like(top)


def _dress_limbs(fabrics: np.ndarray, surface: Surface, outfit: Outfit) -> None:
    part, along = surface.part, surface.along
    legs = part == Part.LEG
    below = Fabric.SOCK if outfit.fabrics[Fabric.SOCK, 4] > 0.70 else Fabric.SKIN
    fabrics[legs] = below
    fabrics[legs & (along > 0.90)] = Fabric.SOCK
    fabrics[(legs & (along < outfit.leg)) | (part == Part.SKIRT)] = Fabric.BOTTOM
    if outfit.leg_stripe:
        outer = np.abs(surface.angle - np.where(surface.side, _SIDE, -_SIDE)) < 0.45
        fabrics[legs & outer & (along < outfit.leg)] = Fabric.BOTTOM_PATTERN
    fabrics[(part == Part.SHOE) | (legs & (along > outfit.boots))] = Fabric.SHOE
    fabrics[(part == Part.SHOE) & (surface.facing < 0.55) & (surface.y > 0.962)] = Fabric.SOLE


def paint_light(
    surface: Surface, fabrics: np.ndarray, outfit: Outfit, light: Light
) -> tuple[np.ndarray, np.ndarray]:
    """The light that a person sends back in RGB, (H, W, 3), and in near-infrared, (H, W)."""
    # RGB is lit by a lamp from one side, near-infrared by an illuminator at the camera.
    right, towards = light.lamp
    lamp = np.clip(right * surface.across + towards * surface.facing, 0.0, None)
    relief = 1.0 + light.folds
    if outfit.quilt:
        relief = relief * _quilting(surface, outfit, -0.30)
    relief = np.where(fabrics == Fabric.SKIN, 1.0 + 0.4 * light.folds, relief)
    # Legs, arms and the sides of the torso throw shadows on each other.
    relief *= np.where(surface.part == Part.LEG, 0.80 + 0.20 * np.clip(surface.along * 2.0, 0.0, 1.0), 1.0)
    rgb = outfit.fabrics[fabrics, :3] * ((light.ambient + (1.0 - light.ambient) * lamp) * relief)[..., None]
    ni = outfit.fabrics[fabrics, 3] * (0.35 + 0.65 * np.sqrt(surface.facing)) * relief
    return rgb, ni


def paint_heat(surface: Surface, fabrics: np.ndarray, outfit: Outfit, light: Light) -> np.ndarray:
    """The thermal values of a person, (H, W)."""
    heat = outfit.fabrics[fabrics, 4]
    y, part = surface.y, surface.part
    clothed = (fabrics >= Fabric.TOP) & (fabrics <= Fabric.BOTTOM_PATTERN)
    top = clothed & (fabrics < Fabric.BOTTOM)
    # Cloth is warm where it lies on the body, and cold where it hangs.
    touching = np.interp(
        y, [0.16, 0.24, 0.36, 0.46, 0.54, 0.70, 0.95], [0.07, 0.05, -0.02, -0.05, 0.06, 0.0, -0.06]
    )
    heat += np.where(clothed, touching + light.wear, 0.0).astype(np.float32)
    heat += np.where(top & (part == Part.ARM), -0.06, 0.0)
    for angle, spot_y, radius, added in outfit.spots:
        turn = np.abs((surface.angle - angle + np.pi) % (2 * np.pi) - np.pi)
        spot = np.exp(-((0.09 * turn / radius) ** 2) - ((y - spot_y) / radius) ** 2)
        heat += np.where(top & (part != Part.ARM), added * spot, 0.0).astype(np.float32)
    if outfit.quilt:
        heat += np.where(top, 0.35 * (1.0 - _quilting(surface, outfit, -0.30)), 0.0).astype(np.float32)
    # A face is coldest at the nose and warmest at eyes and neck; hands cool down outside.
    skin = fabrics == Fabric.SKIN
    nose = np.exp(-((surface.angle / 0.35) ** 2) - ((y - 0.085) / 0.018) ** 2)
    heat -= np.where(skin & (part == Part.HEAD), 0.16 * nose, 0.0).astype(np.float32)
    heat -= np.where(skin & (part == Part.HAND), light.hands, 0.0).astype(np.float32)
    heat -= np.where(skin & (part == Part.LEG), 0.06, 0.0).astype(np.float32)
    heat += light.blotches * np.where(skin, 0.4, 1.0)
    return heat - 0.11 * (1.0 - surface.facing) ** 2


def _quilting(surface: Surface, outfit: Outfit, depth: float) -> np.ndarray:
    """Factor of the relief of a quilted top, (H, W): seams are darker by `depth`."""
    seam = np.abs(np.mod(surface.y / outfit.quilt, 1.0) - 0.5) * 2.0
    top = (surface.part == Part.TORSO) | (surface.part == Part.ARM)
    return np.where(top, 1.0 + depth * np.clip(4.0 * (seam - 0.75), 0.0, 1.0), 1.0)
