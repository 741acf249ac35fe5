"""A dressed body in a pose: from proportions, outfit and view to the visible surface."""

from __future__ import annotations

from math import cos, sin

from datasets.synthetic.body import Build, Part, Rasteriser, Surface, View
from datasets.synthetic.clothes import Bag, Headwear, Outfit

_SHOULDER_Y, _NECK_Y, _ANKLE_Y = 0.190, 0.150, 0.945


def pose_figure(build: Build, outfit: Outfit, view: View, size: tuple[int, int]) -> Surface:
    """Draw a dressed body.

    Args:
        build: its proportions.
        outfit: gives garments and bags their volume.
        view: pose and direction.
        size: rows and columns of the image.
    """
    canvas = Rasteriser(view, size)
    for side in (-1.0, 1.0):
        _add_leg(canvas, build, outfit, side)
        _add_arm(canvas, build, outfit, side)
    _add_trunk(canvas, build, outfit)
    _add_head(canvas, build, outfit)
    _add_bag(canvas, build, outfit)
    return canvas.finish()


def _add_leg(canvas: Rasteriser, build: Build, outfit: Outfit, side: float) -> None:
    view = canvas.view
    # The foot that swings forwards is lifted while it passes the other one; one that is behind, at the heel.
    ahead = side * sin(view.phase) * view.energy
    lift = 0.05 * max(0.0, side * cos(view.phase)) * view.energy + 0.03 * max(0.0, -ahead)
    thigh, shin = outfit.leg_width**0.5 * build.thigh, outfit.leg_width * build.shin
    hip = (side * (0.98 * build.hip - thigh), build.crotch - 0.01, 0.0)
    ankle = (side * build.gait, _ANKLE_Y - lift, build.stride * ahead)
    knee = (
        0.55 * hip[0] + 0.45 * ankle[0],
        0.5 * (hip[1] + ankle[1]) + 0.01,
        0.5 * ankle[2] + 0.015 + 0.9 * lift,
    )
    bare = outfit.leg < 0.6
    shin = build.shin if bare else shin
    canvas.limb(Part.LEG, knee, ankle, (1.15 * shin, shin if not bare else 0.8 * shin), along=(0.5, 1.0))
    canvas.limb(Part.LEG, hip, knee, (thigh, 1.15 * shin), along=(0.0, 0.5))
    heel = (ankle[0], ankle[1] + 0.022, ankle[2] - 0.012)
    toe = (ankle[0] + 0.012 * side, ankle[1] + 0.032 + 0.4 * lift, ankle[2] + 0.070)
    canvas.limb(Part.SHOE, heel, toe, (0.027, 0.022))


def _add_arm(canvas: Rasteriser, build: Build, outfit: Outfit, side: float) -> None:
    view = canvas.view
    ahead = -side * sin(view.phase) * view.energy * build.swing
    width = build.arm + 0.6 * outfit.loose
    reach = build.shoulder + outfit.loose
    shoulder = (side * (reach - 0.8 * width), _SHOULDER_Y + 0.9 * width, 0.0)
    elbow = (side * (reach + 0.010), 0.335, 0.35 * ahead - 0.015)
    wrist = (side * (reach + 0.002), 0.465 - 0.15 * abs(ahead), ahead + 0.025)
    if outfit.pocket[int(side > 0)]:
        elbow = (side * (reach + 0.026), 0.335, -0.03)
        wrist = (side * (build.hip + 0.012), 0.445, 0.035)
    canvas.limb(Part.ARM, shoulder, elbow, (1.12 * width, width), along=(0.0, 0.5))
    canvas.limb(Part.ARM, elbow, wrist, (width, 0.78 * width), along=(0.5, 1.0))
    if not outfit.pocket[int(side > 0)]:
        fingers = (wrist[0], wrist[1] + 0.045, wrist[2] + 0.012)
        canvas.limb(Part.HAND, wrist, fingers, (0.020, 0.017))


def _add_trunk(canvas: Rasteriser, build: Build, outfit: Outfit) -> None:
    loose = outfit.loose
    waist, belly = build.waist + loose, build.belly + loose
    hip, seat = build.hip + 0.6 * loose, build.chest + 0.6 * loose
    canvas.limb(Part.NECK, (0.0, 0.115, 0.4 * build.stoop), (0.0, 0.165, 0.0), (0.034, 0.040))
    pelvis = [(0.42, 0.9 * build.hip, 0.9 * build.belly, 0.0), (build.crotch, build.hip, build.chest, 0.0)]
    canvas.shell(Part.LEG, pelvis, along=0.0)
    shoulder, chest = build.shoulder + loose, build.chest + loose
    hem = min(outfit.hem, build.crotch + 0.02)
    canvas.shell(
        Part.TORSO,
        [
            (_NECK_Y - 0.005, 0.040, 0.040, 0.0),
            (_NECK_Y + 0.020, 0.62 * shoulder, 0.050, 0.0),
            (_SHOULDER_Y + 0.005, 0.95 * shoulder, 0.9 * chest, 0.0),
            (0.25, shoulder, chest, 0.0),
            (0.35, max(waist, 0.80 * shoulder), belly, 0.004),
            (0.43, max(waist, 0.97 * hip), max(belly, 0.95 * seat), 0.0),
            (hem, hip * 1.02, seat, 0.0),
        ],
    )
    if outfit.hem > hem:
        flare = 0.012 + 0.3 * build.stride * canvas.view.energy * abs(sin(canvas.view.phase))
        below = (outfit.hem, 1.16 * hip, seat + flare, 0.0)
        canvas.shell(Part.COAT, [(0.40, 1.02 * hip, seat, 0.0), (hem, 1.06 * hip, seat, 0.0), below])
    if outfit.skirt:
        flare = 0.02 + 0.3 * build.stride * canvas.view.energy * abs(sin(canvas.view.phase))
        below = (outfit.skirt, 1.22 * hip, seat + flare, 0.0)
        canvas.shell(
            Part.SKIRT, [(0.40, 0.97 * hip, belly, 0.0), (build.crotch, 1.06 * hip, seat, 0.0), below]
        )


def _add_head(canvas: Rasteriser, build: Build, outfit: Outfit) -> None:
    z = build.stoop
    depth = (1.22 * build.head, 1.12 * build.head)
    canvas.limb(
        Part.HEAD, (0.0, 0.056, z), (0.0, 0.088, z + 0.004), (build.head, 0.86 * build.head), depth=depth
    )
    if outfit.ponytail:
        tail = (0.0, outfit.hair_length, z - 0.085)
        canvas.limb(Part.HAIR, (0.0, 0.055, z - 0.055), tail, (0.020, 0.016))
    elif outfit.hair_length > 0.13:
        wide = 1.12 * build.head
        canvas.shell(
            Part.HAIR,
            [
                (0.02, 0.8 * wide, 0.035, z - 0.030),
                (0.07, wide, 0.045, z - 0.030),
                (outfit.hair_length, 1.15 * wide, 0.035, z - 0.055),
            ],
        )
    if outfit.headwear is Headwear.HOOD_DOWN:
        stations = [
            (0.130, 0.050, 0.030, -0.035),
            (0.155, 0.075, 0.040, -0.045),
            (0.215, 0.045, 0.025, -0.065),
        ]
        canvas.shell(Part.HOOD, stations)
    if outfit.headwear is Headwear.CAP:
        canvas.limb(Part.HOOD, (0.0, 0.040, z), (0.0, 0.046, z + 0.055), (build.head * 1.06, 0.030))


def _add_bag(canvas: Rasteriser, build: Build, outfit: Outfit) -> None:
    size, side = outfit.bag_size, outfit.bag_side
    if outfit.bag is Bag.BACKPACK:
        width, depth = 0.092 * size, 0.048 * size
        z = -(build.chest + outfit.loose + 0.55 * depth)
        bottom = 0.20 + 0.22 * size
        canvas.shell(
            Part.BACKPACK,
            [
                (0.178, 0.60 * width, 0.6 * depth, z + 0.2 * depth),
                (0.205, 0.95 * width, 0.9 * depth, z),
                (bottom - 0.03, width, 1.1 * depth, z),
                (bottom, 0.90 * width, 0.8 * depth, z),
            ],
        )
    hip = build.hip + outfit.loose
    if outfit.bag is Bag.CROSS_BODY:
        top, low = 0.405, 0.405 + 0.10 * size
        stations = [(top, 0.042 * size, 0.060 * size, 0.0), (low, 0.045 * size, 0.065 * size, 0.0)]
        canvas.shell(Part.BAG, stations, x=side * (hip + 0.030 * size))
    if outfit.bag is Bag.TOTE:
        top, low = 0.345, 0.345 + 0.155 * size
        stations = [(top, 0.030, 0.075 * size, -0.01), (low, 0.040, 0.085 * size, -0.01)]
        canvas.shell(Part.BAG, stations, x=side * (build.shoulder + 0.045))
    if outfit.bag is Bag.HAND:
        swing = -side * sin(canvas.view.phase) * canvas.view.energy * build.swing
        top, low = 0.525, 0.525 + 0.13 * size
        stations = [(top, 0.025, 0.055 * size, swing), (low, 0.035, 0.070 * size, swing)]
        canvas.shell(Part.BAG, stations, x=side * (build.shoulder + 0.025))
