"""What stands around people at night: ground, trees, buildings, lamps and road marks, in each modality."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from structures import PerModality

_BANK = 24
"""Noise fields that are made once and cropped at random afterwards."""


@cache
def _noise_bank(exponent: float, size: tuple[int, int]) -> np.ndarray:
    """Fields of noise whose amplitude falls with frequency as f^-exponent, with mean 0 and deviation 1."""
    rng = np.random.default_rng([size[0], size[1], round(100 * exponent)])
    rows, columns = np.fft.fftfreq(size[0]), np.fft.rfftfreq(size[1])
    frequency = np.hypot(rows[:, None], columns[None, :])
    frequency[0, 0] = np.inf
    white = np.fft.rfft2(rng.standard_normal((_BANK, *size)))
    fields = np.fft.irfft2(white * np.maximum(frequency, 2.0 / size[0]) ** -exponent, s=size)
    fields /= fields.std(axis=(1, 2), keepdims=True)
    return fields.astype(np.float32)


def noise(rng: np.random.Generator, size: tuple[int, int], exponent: float = 1.5) -> np.ndarray:
    """Noise as natural surfaces have it, with mean 0 and deviation 1, (H, W)."""
    bank = _noise_bank(exponent, (size[0] + size[0] // 2, size[1] + size[1] // 2))
    field = bank[rng.integers(len(bank))]
    top, left = rng.integers(field.shape[0] - size[0] + 1), rng.integers(field.shape[1] - size[1] + 1)
    field = field[top : top + size[0], left : left + size[1]]
    return field[:, ::-1] if rng.random() < 0.5 else field


@dataclass(frozen=True)
class Scene:
    """One background, larger than an image.

    Attributes:
        layers: values in [0, 1], each (H, W); light before the exposure, or heat.
        lamp: direction of the light that falls on people, see `Light`.
    """

    layers: PerModality[np.ndarray]
    lamp: tuple[float, float]


class _Stage:
    """A scene under construction: what is put later covers what was put earlier."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng, self.size = rng, size
        self.y = np.linspace(0.0, 1.0, size[0], dtype=np.float32)[:, None]
        self.x = np.linspace(0.0, size[1] / size[0], size[1], dtype=np.float32)[None, :]
        self.width = size[1] / size[0]
        self.layers = [np.zeros(size, np.float32) for _ in range(3)]

    def put(
        self, where: np.ndarray, levels: tuple[float, float, float], rough: tuple[float, float, float]
    ) -> None:
        """Cover `where` (weights in [0, 1]) with something of the given levels and relative roughness."""
        grain = noise(self.rng, self.size, 1.3)
        for layer, level, depth in zip(self.layers, levels, rough, strict=True):
            own = 0.7 * grain + 0.7 * noise(self.rng, self.size, 1.6)
            value = level * np.clip(1.0 + depth * own, 0.1, 2.5)
            layer += np.broadcast_to(where, self.size) * (value - layer)

    def below(self, line: np.ndarray | float, softness: float = 0.004) -> np.ndarray:
        """Weights of what lies below a line."""
        return np.clip((self.y - line) / softness + 0.5, 0.0, 1.0)

    def between(self, values: np.ndarray, low: float, high: float, softness: float = 0.004) -> np.ndarray:
        """Weights of where `values` lie between two bounds."""
        rising = np.clip((values - low) / softness + 0.5, 0.0, 1.0)
        return rising * np.clip((high - values) / softness + 0.5, 0.0, 1.0)


def draw_scene(rng: np.random.Generator, size: tuple[int, int], *, lamps: bool) -> Scene:
    """A new background.

    Args:
        rng: source of chance.
        size: its height and width in pixels.
        lamps: a lit street with lamps and road marks, or a dark path without.
    """
    stage = _Stage(rng, size)
    horizon = rng.uniform(0.05, 0.60)
    _put_distance(stage, horizon)
    _put_ground(stage, horizon, lamps=lamps)
    for _ in range(rng.integers(0, 3)):
        _put_upright(stage, horizon)
    lamp_x = rng.uniform(-0.9, 0.9)
    # Pools of light on the ground and in the air.
    light = np.full(size, rng.uniform(0.35, 0.7), np.float32)
    for _ in range(rng.integers(1, 4)):
        x, y, radius = rng.uniform(-0.2, stage.width + 0.2), rng.uniform(0.0, 1.1), rng.uniform(0.15, 0.5)
        pool = np.exp(-(((stage.x - x) / radius) ** 2) - ((stage.y - y) / radius) ** 2)
        light += rng.uniform(0.3, 1.1) * pool
    stage.layers[0] *= light
    stage.layers[1] *= 0.6 + 0.4 * light / light.mean()
    if lamps:
        for _ in range(rng.integers(0, 4)):
            _put_lamp(stage)
    return Scene(PerModality(*stage.layers), (lamp_x, float(np.sqrt(1.0 - lamp_x**2))))


def _put_distance(stage: _Stage, horizon: float) -> None:
    """Sky, trees or a building above the ground."""
    rng = stage.rng
    everything = np.ones(stage.size, np.float32)
    stage.put(
        everything, (rng.uniform(0.02, 0.10), rng.uniform(0.02, 0.10), rng.uniform(0.02, 0.08)), (0.2,) * 3
    )
    if rng.random() < 0.45:
        levels = rng.uniform(0.12, 0.45), rng.uniform(0.20, 0.50), rng.uniform(0.16, 0.30)
        stage.put(stage.below(rng.uniform(-0.4, 0.2)), levels, (0.15, 0.15, 0.06))
        pitch, phase = rng.uniform(0.10, 0.25), rng.uniform(0.0, 1.0)
        window = stage.between(np.mod(stage.x / pitch + phase, 1.0), 0.25, 0.75, 0.05)
        window = window * stage.between(np.mod(stage.y / pitch / 1.2 + phase, 1.0), 0.25, 0.75, 0.05)
        lit = float(rng.choice([0.03, 0.8]))
        stage.put(window, (lit, 0.5 * lit + 0.05, rng.uniform(0.08, 0.18)), (0.2, 0.2, 0.1))
    if rng.random() < 0.75:
        crown = horizon - rng.uniform(0.05, 0.5) + 0.05 * noise(rng, stage.size, 1.5)
        levels = rng.uniform(0.03, 0.16), rng.uniform(0.30, 0.70), rng.uniform(0.05, 0.18)
        stage.put(stage.below(crown, 0.02), levels, (0.55, 0.45, 0.22))


def _put_ground(stage: _Stage, horizon: float, *, lamps: bool) -> None:
    rng = stage.rng
    edge = horizon + rng.uniform(-0.15, 0.15) * (stage.x - 0.5 * stage.width)
    levels = rng.uniform(0.22, 0.60), rng.uniform(0.22, 0.50), rng.uniform(0.22, 0.38)
    stage.put(stage.below(edge), levels, (0.10, 0.10, 0.04))
    stage.layers[2] += 0.12 * stage.below(edge) * (stage.y - edge)  # the nearer, the warmer
    if rng.random() < 0.5:  # a kerb with grass or pavement behind it
        kerb = edge + rng.uniform(0.05, 0.35)
        levels = rng.uniform(0.10, 0.45), rng.uniform(0.25, 0.60), rng.uniform(0.22, 0.38)
        stage.put(stage.below(edge) * (1.0 - stage.below(kerb)), levels, (0.30, 0.25, 0.10))
        stage.put(stage.between(stage.y - kerb, 0.0, 0.012), (0.60, 0.50, 0.34), (0.1, 0.1, 0.04))
    if lamps and rng.random() < 0.75:
        for _ in range(rng.integers(1, 4)):  # marks that run towards a vanishing point
            foot, vanishing = rng.uniform(-0.5, stage.width + 0.5), rng.uniform(0.0, stage.width)
            depth = np.clip((stage.y - horizon) / (1.0 - horizon + 1e-6), 0.0, None)
            line = vanishing + (foot - vanishing) * depth
            width = rng.uniform(0.015, 0.05) * depth + 1e-4
            mark = np.clip((width - np.abs(stage.x - line)) / 0.004 + 0.5, 0.0, 1.0) * stage.below(edge)
            if rng.random() < 0.4:
                mark = mark * (np.mod(6.0 * depth**0.5 + rng.random(), 1.0) < 0.6)
            stage.put(mark, (rng.uniform(0.75, 1.0), rng.uniform(0.6, 0.9), 0.33), (0.12, 0.1, 0.04))


def _put_upright(stage: _Stage, horizon: float) -> None:
    """A pole, a trunk, a bush or a parked car."""
    rng = stage.rng
    x, foot = rng.uniform(0.0, stage.width), horizon + rng.uniform(0.0, 0.45)
    if rng.random() < 0.5:
        half = rng.uniform(0.006, 0.03)
        where = stage.between(stage.x - x, -half, half) * (1.0 - stage.below(foot))
        levels = rng.uniform(0.05, 0.5), rng.uniform(0.1, 0.6), rng.uniform(0.12, 0.30)
        stage.put(where, levels, (0.15, 0.15, 0.06))
        return
    half, height = rng.uniform(0.08, 0.3), rng.uniform(0.08, 0.30)
    leafy = rng.random() < 0.6
    ragged = 0.18 * noise(rng, stage.size, 1.4) if leafy else 0.0
    distance = np.hypot((stage.x - x) / half, (stage.y - foot + 0.5 * height) / height) + ragged
    where = np.clip((0.8 - distance) / 0.06 + 0.5, 0.0, 1.0)
    if leafy:
        levels = rng.uniform(0.05, 0.25), rng.uniform(0.40, 0.80), rng.uniform(0.10, 0.24)
    else:
        levels = rng.uniform(0.05, 0.8), rng.uniform(0.1, 0.6), rng.uniform(0.10, 0.40)
    stage.put(where, levels, (0.45, 0.40, 0.20) if leafy else (0.15, 0.15, 0.10))


def _put_lamp(stage: _Stage) -> None:
    rng = stage.rng
    x, y = rng.uniform(0.0, stage.width), rng.uniform(0.0, 0.45)
    radius = rng.uniform(0.008, 0.035)
    distance = np.hypot(stage.x - x, stage.y - y)
    disc = np.clip((radius - distance) / 0.006 + 0.5, 0.0, 1.0)
    halo = np.exp(-distance / rng.uniform(0.03, 0.12))
    for layer, bright, glow in zip(stage.layers, (1.6, 1.2, 0.55), (0.5, 0.35, 0.0), strict=True):
        layer += disc * (bright - layer) + glow * halo
