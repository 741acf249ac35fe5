"""The bodies: a skeleton in three dimensions, posed while walking, seen from any side.

Body coordinates: x to the person's side, y from 0 at the crown to 1 at the soles, z to the front, all in body
heights. Whatever hangs on the back is therefore seen from behind, without a rule for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

Point = tuple[float, float, float]


class Part(IntEnum):
    """What a pixel shows, before clothes decide on the fabric."""

    NOTHING = 0
    HEAD = 1
    HAIR = 2
    NECK = 3
    TORSO = 4
    COAT = 5
    ARM = 6
    HAND = 7
    LEG = 8
    SKIRT = 9
    SHOE = 10
    BACKPACK = 11
    BAG = 12
    HOOD = 13


@dataclass(frozen=True)
class Build:
    """The proportions of one body in body heights, and how it walks.

    Attributes:
        shoulder: half width.
        chest: half depth.
        waist: half width.
        belly: half depth at the waist.
        hip: half width.
        crotch: its y.
        head: half width.
        arm: half width of an arm.
        thigh: half width of a thigh.
        shin: half width of a shin.
        gait: half distance between the feet, sideways.
        stride: how far a foot is set forwards or backwards at most.
        swing: the same for the hands.
        stoop: how far the head is carried forwards.
    """

    shoulder: float
    chest: float
    waist: float
    belly: float
    hip: float
    crotch: float
    head: float
    arm: float
    thigh: float
    shin: float
    gait: float
    stride: float
    swing: float
    stoop: float

    @staticmethod
    def draw(rng: np.random.Generator) -> Build:
        """The proportions of a new person."""
        girth = rng.uniform(0.86, 1.20)
        return Build(
            shoulder=girth**0.6 * rng.uniform(0.112, 0.142),
            chest=girth * rng.uniform(0.066, 0.082),
            waist=girth * rng.uniform(0.082, 0.108),
            belly=girth * rng.uniform(0.060, 0.082),
            hip=girth * rng.uniform(0.092, 0.112),
            crotch=rng.uniform(0.475, 0.535),
            head=rng.uniform(0.046, 0.056),
            arm=girth * rng.uniform(0.026, 0.034),
            thigh=girth * rng.uniform(0.048, 0.060),
            shin=girth * rng.uniform(0.031, 0.042),
            gait=rng.uniform(0.025, 0.060),
            stride=rng.uniform(0.10, 0.20),
            swing=rng.uniform(0.05, 0.16),
            stoop=rng.uniform(0.0, 0.04),
        )


@dataclass(frozen=True)
class View:
    """From where and when a body is seen, and where it falls on the image.

    Attributes:
        yaw: radians by which the body is turned; 0 faces the camera, pi shows the back.
        pitch: radians by which the camera looks down.
        phase: of the gait, in radians.
        energy: factor on stride and swing; 0 stands.
        lean: shift of the crown against the soles, in body heights.
        height: of the body, in pixels.
        top: row of the crown.
        centre: column of the middle of the body.
        stretch: factor on the width. Tight crops of slim boxes make people wider.
    """

    yaw: float
    pitch: float
    phase: float
    energy: float
    lean: float
    height: float
    top: float
    centre: float
    stretch: float


@dataclass(frozen=True)
class Surface:
    """The visible surface of a body; each array is (H, W).

    Attributes:
        part: a `Part`.
        side: whether a limb or bag is the one at positive x.
        along: from 0 at the upper end of a limb to 1 at its lower end.
        angle: around the axis of the part: 0 at its front, positive to its side at positive x.
        lateral: x on the surface, measured from the axis.
        facing: the normal's component towards the camera, from 0 at the outline to 1.
        across: the normal's component to the right of the image.
        y: body coordinate.
        coverage: share of the pixel that the body covers; below 1 at its outline.
    """

    part: np.ndarray
    side: np.ndarray
    along: np.ndarray
    angle: np.ndarray
    lateral: np.ndarray
    facing: np.ndarray
    across: np.ndarray
    y: np.ndarray
    coverage: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """True on the person, (H, W)."""
        return self.coverage >= 0.5


class Rasteriser:
    """Draws solid shapes of body coordinates into a depth buffer: the nearest surface is what is seen."""

    def __init__(self, view: View, size: tuple[int, int]) -> None:
        self.view = view
        self._cos, self._sin = np.cos(view.yaw), np.sin(view.yaw)
        self._pitch = np.sin(view.pitch)
        rows = (np.arange(size[0], dtype=np.float32) + 0.5 - view.top) / view.height
        columns = (np.arange(size[1], dtype=np.float32) + 0.5 - view.centre) / (view.height * view.stretch)
        self._x = columns[None, :] - view.lean * (1.0 - rows[:, None])
        self._y = np.broadcast_to(rows[:, None], size)
        self._depth = np.full(size, -np.inf, dtype=np.float32)
        self._part, self._side = np.zeros(size, np.uint8), np.zeros(size, bool)
        self._fields = np.zeros((5, *size), np.float32)
        self._coverage = np.zeros(size, np.float32)

    def finish(self) -> Surface:
        """What was drawn."""
        along, angle, lateral, facing, across = self._fields
        coverage = self._coverage
        return Surface(self._part, self._side, along, angle, lateral, facing, across, self._y, coverage)

    def limb(
        self,
        part: Part,
        start: Point,
        end: Point,
        width: tuple[float, float],
        *,
        depth: tuple[float, float] | None = None,
        along: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """A solid between two points with rounded ends.

        Args:
            part: what it is.
            start: where its axis starts.
            end: where its axis ends.
            width: half widths at both ends.
            depth: half depths at both ends, if its cross-section is an ellipse.
            along: values of `Surface.along` at both ends.
        """
        (x0, y0, z0), (x1, y1, z1) = self._project(start), self._project(end)
        half = np.array(width), np.array(depth or width)
        seen = np.hypot(half[0] * self._cos, half[1] * self._sin)
        window = self._window(min(x0, x1), max(x0, x1), min(y0, y1), max(y0, y1), float(seen.max()))
        if window is None:
            return
        # Where each pixel lies along the axis and across it.
        dx, dy = x1 - x0, y1 - y0
        across, down = self._x[window] - x0, self._y[window] - y0
        share = np.clip((across * dx + down * dy) / max(dx * dx + dy * dy, 1e-9), 0.0, 1.0)
        radius = seen[0] + (seen[1] - seen[0]) * share
        offset_x, offset_y = across - share * dx, down - share * dy
        distance = np.hypot(offset_x, offset_y) / radius
        axis = z0 + (z1 - z0) * share
        length = max(float(np.hypot(dx, dy)), 1e-9)
        signed = np.clip((offset_x * dy - offset_y * dx) / (length * radius), -1.0, 1.0) * np.sign(dy or 1.0)
        coverage = self._cover(distance, radius)
        shape = tuple(ends[0] + (ends[1] - ends[0]) * share for ends in half)
        values = along[0] + (along[1] - along[0]) * share
        self._put(part, window, coverage, signed, distance, axis, shape, values, start[0] > 0)

    def shell(
        self,
        part: Part,
        stations: Sequence[tuple[float, float, float, float]],
        *,
        x: float = 0.0,
        along: float | None = None,
    ) -> None:
        """An upright solid around a vertical axis.

        Args:
            part: what it is.
            stations: y, half width, half depth and z of its axis, from top to bottom.
            x: of its axis.
            along: one value of `Surface.along` for all of it, in place of 0 to 1 from top to bottom.
        """
        y, a, b, z = np.array(stations).T
        seen = np.hypot(a * self._cos, b * self._sin)
        centre = self._sin * z + self._cos * x
        window = self._window(float(centre.min()), float(centre.max()), y[0], y[-1], float(seen.max()))
        if window is None:
            return
        rows = self._y[window][:, :1]
        radius = np.interp(rows, y, seen).astype(np.float32)
        signed = (self._x[window] - np.interp(rows, y, centre).astype(np.float32)) / radius
        # The lower edge is a curve, since the camera looks down at it.
        bulge = np.sqrt(np.clip(1.0 - signed**2, 0.0, 1.0))
        depth_y = self._pitch * float(b.mean()) * bulge
        inside = (rows >= y[0]) & (rows < y[-1] - self._pitch * b[-1] + depth_y)
        coverage = self._cover(np.abs(signed), radius) * inside
        axis = (self._cos * np.interp(rows, y, z) - self._sin * x).astype(np.float32)
        share = (rows - y[0]) / (y[-1] - y[0]) if along is None else np.full_like(rows, along)
        shape = tuple(np.interp(rows, y, half).astype(np.float32) for half in (a, b))
        distance, signed = np.abs(signed), np.clip(signed, -1.0, 1.0)
        self._put(part, window, coverage, signed, distance, axis, shape, share, x > 0)

    def _project(self, point: Point) -> tuple[float, float, float]:
        """A body point as x and y on the image, in body heights, and its nearness."""
        x, y, z = point
        near = z * self._cos - x * self._sin
        return x * self._cos + z * self._sin, y + near * self._pitch, near

    def _cover(self, distance: np.ndarray, radius: np.ndarray) -> np.ndarray:
        """The share of each pixel that a shape covers; `distance` from its axis is in radii."""
        return np.clip((1.0 - distance) * radius * self.view.height + 0.5, 0.0, 1.0)

    def _window(
        self, left: float, right: float, top: float, bottom: float, margin: float
    ) -> tuple[slice, slice] | None:
        """The rows and columns around a shape; None if it falls outside the image."""
        view, (height, width) = self.view, self._depth.shape
        rows = np.array([top - margin, bottom + margin]) * view.height + view.top
        slant = abs(view.lean) * (1.0 + max(0.0, bottom))
        columns = np.array([left - margin - slant, right + margin + slant])
        columns = columns * view.height * view.stretch + view.centre
        r0, r1 = np.clip([rows[0], rows[1] + 1], 0, height).astype(int)
        c0, c1 = np.clip([columns[0], columns[1] + 1], 0, width).astype(int)
        return None if r0 >= r1 or c0 >= c1 else (slice(r0, r1), slice(c0, c1))

    def _put(
        self,
        part: Part,
        window: tuple[slice, slice],
        coverage: np.ndarray,
        signed: np.ndarray,
        distance: np.ndarray,
        axis: np.ndarray,
        shape: tuple[np.ndarray, ...],
        along: np.ndarray,
        side: bool,
    ) -> None:
        """Write the pixels of a shape that are nearer than what is there.

        Args:
            part: what it is.
            window: rows and columns of the arrays that follow.
            coverage: share of each pixel that the shape covers.
            signed: offset from the axis in radii, from -1 to 1.
            distance: the same, without sign and also beyond the ends.
            axis: nearness of the axis.
            shape: half width and half depth.
            along: see `Surface`.
            side: see `Surface`.
        """
        a, b = shape
        turned = np.arctan2(b * self._sin, a * self._cos)
        angle = np.arcsin(signed) - turned
        facing = np.sqrt(np.clip(1.0 - distance**2, 0.0, 1.0))
        thickness = np.hypot(a * self._sin, b * self._cos)
        nearness = axis + thickness * facing
        # A pixel that is hardly covered shows what lies behind, if there is anything.
        seen = (coverage > 0.0) & (nearness > self._depth[window])
        seen &= (coverage >= 0.5) | (self._coverage[window] < coverage)
        np.maximum(self._coverage[window], coverage, out=self._coverage[window])
        angle = (angle + np.pi) % (2 * np.pi) - np.pi
        values = (along, angle, a * np.sin(angle), facing, signed)
        self._depth[window][seen] = nearness[seen]
        self._part[window][seen] = part
        self._side[window][seen] = side
        for field, value in zip(self._fields, values, strict=True):
            np.copyto(field[window], value, where=seen)
