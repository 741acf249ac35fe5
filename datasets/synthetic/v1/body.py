"""The bodies of the synthetic data set: proportions, poses, and the map of parts that they make on an image.

Places on a body are given in body coordinates: y from 0 at the crown to 1 at the soles, x in the same unit,
0 on the middle line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Part(IntEnum):
    """The labels of a part map."""

    BACKGROUND = 0
    SKIN = 1
    HAIR = 2
    TORSO = 3
    SLEEVES = 4
    THIGHS = 5
    SHINS = 6
    SHOES = 7
    BAG = 8


@dataclass(frozen=True)
class Build:
    """The proportions of one body, in body coordinates."""

    head_width: float
    shoulder: float
    waist: float
    hip: float
    crotch: float
    arm: float
    thigh: float
    shin: float
    short_sleeves: bool
    bare_shins: bool
    long_hair: bool
    shoulder_bag: bool
    backpack: bool

    @staticmethod
    def draw(rng: np.random.Generator) -> Build:
        """The proportions of a new person."""
        girth = rng.uniform(0.88, 1.10)
        bag = rng.integers(4)
        return Build(
            head_width=rng.uniform(0.056, 0.068),
            shoulder=girth * rng.uniform(0.115, 0.140),
            waist=girth * rng.uniform(0.090, 0.115),
            hip=girth * rng.uniform(0.105, 0.125),
            crotch=rng.uniform(0.48, 0.54),
            arm=girth * rng.uniform(0.032, 0.040),
            thigh=girth * rng.uniform(0.058, 0.068),
            shin=girth * rng.uniform(0.042, 0.052),
            short_sleeves=bool(rng.random() < 0.5),
            bare_shins=bool(rng.random() < 0.25),
            long_hair=bool(rng.random() < 0.4),
            shoulder_bag=bool(bag == 1),
            backpack=bool(bag == 2),
        )


@dataclass(frozen=True)
class Pose:
    """How a person stands in one image.

    Attributes:
        height: of the body, as a share of the image's height.
        crown: distance from the upper edge to the crown, as a share of the image's height.
        shift: of the body to the right, as a share of the image's width.
        flipped: left and right exchanged.
        from_behind: the back of the head and a backpack are seen, the face is not.
        stride: how far each foot is set outwards, in body coordinates.
        swing: how far each hand is held outwards.
        lean: shift of the crown against the soles.
    """

    height: float
    crown: float
    shift: float
    flipped: bool
    from_behind: bool
    stride: float
    swing: float
    lean: float

    @staticmethod
    def draw(rng: np.random.Generator) -> Pose:
        """A new pose."""
        return Pose(
            height=0.95 * rng.uniform(0.95, 1.05),
            crown=0.025 + rng.uniform(-0.025, 0.025),
            shift=rng.uniform(-0.025, 0.025),
            flipped=bool(rng.random() < 0.5),
            from_behind=bool(rng.random() < 0.5),
            stride=rng.uniform(-0.01, 0.05),
            swing=rng.uniform(-0.03, 0.02),
            lean=rng.uniform(-0.03, 0.03),
        )


@dataclass(frozen=True)
class PosedBody:
    """A body as it falls on the image.

    Attributes:
        parts: a `Part` for each pixel, (H, W).
        x: body coordinate of each pixel, (H, W).
        y: body coordinate of each pixel, (H, W).
    """

    parts: np.ndarray
    x: np.ndarray
    y: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """True on the person, (H, W)."""
        return self.parts != Part.BACKGROUND


class _Canvas:
    """A part map under construction; what is drawn later covers what was drawn earlier."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y
        self.parts = np.zeros(x.shape, dtype=np.uint8)

    def limb(
        self, part: Part, start: tuple[float, float], end: tuple[float, float], width: tuple[float, float]
    ) -> None:
        """A rounded stroke whose half width goes from `width[0]` at `start` to `width[1]` at `end`."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        across, down = self.x - start[0], self.y - start[1]
        along = np.clip((across * dx + down * dy) / (dx * dx + dy * dy), 0.0, 1.0)
        half_width = width[0] + (width[1] - width[0]) * along
        self.parts[(across - along * dx) ** 2 + (down - along * dy) ** 2 < half_width**2] = part

    def ellipse(self, part: Part, centre: tuple[float, float], radii: tuple[float, float]) -> None:
        """A filled ellipse with its axes upright."""
        across, down = (self.x - centre[0]) / radii[0], (self.y - centre[1]) / radii[1]
        self.parts[across**2 + down**2 < 1.0] = part

    def outline(self, part: Part, heights: list[float], half_widths: list[float]) -> None:
        """A shape that is symmetric about the middle line, with straight edges between the given heights."""
        inside = (self.y >= heights[0]) & (self.y < heights[-1])
        self.parts[inside & (np.abs(self.x) < np.interp(self.y, heights, half_widths))] = part

    def box(self, part: Part, left: float, right: float, top: float, bottom: float) -> None:
        """An upright rectangle."""
        self.parts[(self.x > left) & (self.x < right) & (self.y > top) & (self.y < bottom)] = part


def pose_body(build: Build, pose: Pose, size: tuple[int, int]) -> PosedBody:
    """Draw the part map of a body in a pose.

    Args:
        build: the body.
        pose: how it stands.
        size: height and width of the image in pixels.

    Returns:
        the posed body, with arrays of shape `size`.
    """
    height, width = size
    rows = (np.arange(height, dtype=np.float32) + 0.5) / height
    columns = ((np.arange(width, dtype=np.float32) + 0.5) / width - 0.5 - pose.shift) * (width / height)
    y = np.repeat(((rows - pose.crown) / pose.height)[:, None], width, axis=1)
    x = (columns / pose.height)[None, :] - pose.lean * (1.0 - y)
    x = -x if pose.flipped else x

    canvas = _Canvas(x, y)
    if build.long_hair:
        canvas.ellipse(Part.HAIR, (0.0, 0.12), (1.25 * build.head_width, 0.12))
    _draw_legs(canvas, build, pose)
    _draw_upper_body(canvas, build, pose)
    _draw_head(canvas, build, pose)
    _draw_bag(canvas, build, pose)
    return PosedBody(canvas.parts, x, y)


def _draw_legs(canvas: _Canvas, build: Build, pose: Pose) -> None:
    for side in (-1.0, 1.0):
        hip = (side * (build.hip - build.thigh), build.crotch - 0.03)
        knee = (side * (build.hip - build.thigh + 0.5 * pose.stride), 0.73)
        ankle = (side * (build.hip - build.thigh + pose.stride), 0.95)
        lower_leg = Part.SKIN if build.bare_shins else Part.SHINS
        canvas.limb(lower_leg, knee, ankle, (1.1 * build.shin, build.shin))
        canvas.limb(Part.THIGHS, hip, knee, (build.thigh, 1.1 * build.shin))
        canvas.ellipse(Part.SHOES, (ankle[0] + 0.01 * side, 0.975), (1.2 * build.shin, 0.028))


def _draw_upper_body(canvas: _Canvas, build: Build, pose: Pose) -> None:
    for side in (-1.0, 1.0):
        shoulder = (side * (build.shoulder - 0.3 * build.arm), 0.165 + build.arm)
        elbow = (side * (build.shoulder + 0.025 + 0.5 * pose.swing), 0.34)
        wrist = (side * (build.shoulder + 0.030 + pose.swing), 0.47)
        forearm = Part.SKIN if build.short_sleeves else Part.SLEEVES
        canvas.ellipse(Part.SKIN, (wrist[0], wrist[1] + 0.03), (0.85 * build.arm, 0.035))
        canvas.limb(forearm, elbow, wrist, (0.9 * build.arm, 0.8 * build.arm))
        canvas.limb(Part.SLEEVES, shoulder, elbow, (1.1 * build.arm, build.arm))
    canvas.outline(
        Part.TORSO,
        [0.145, 0.175, 0.36, build.crotch],
        [0.4 * build.shoulder, build.shoulder, build.waist, build.hip],
    )


def _draw_head(canvas: _Canvas, build: Build, pose: Pose) -> None:
    canvas.limb(Part.SKIN, (0.0, 0.12), (0.0, 0.155), (0.035, 0.035))
    canvas.ellipse(Part.HAIR, (0.0, 0.070), (1.08 * build.head_width, 0.072))
    if not pose.from_behind:
        canvas.ellipse(Part.SKIN, (0.0, 0.088), (0.9 * build.head_width, 0.055))
    elif build.long_hair:
        canvas.ellipse(Part.HAIR, (0.0, 0.13), (1.1 * build.head_width, 0.10))


def _draw_bag(canvas: _Canvas, build: Build, pose: Pose) -> None:
    if build.shoulder_bag:
        canvas.limb(Part.BAG, (-0.7 * build.shoulder, 0.16), (build.hip, 0.42), (0.010, 0.010))
        canvas.box(Part.BAG, build.hip - 0.02, build.hip + 0.09, 0.40, 0.53)
    if build.backpack and pose.from_behind:
        canvas.box(Part.BAG, -0.75 * build.shoulder, 0.75 * build.shoulder, 0.18, 0.40)
    elif build.backpack:
        for side in (-1.0, 1.0):
            strap = side * 0.6 * build.shoulder
            canvas.limb(Part.BAG, (strap, 0.165), (strap, 0.34), (0.014, 0.014))
