"""Version 2 of the drawn data: people who walk through the night, seen by two families of cameras.

Every identity, scene and sample has a generator of its own, derived from the seed and its numbers alone: the
same seed gives the same files, however many processes draw them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from datasets.synthetic.body import Build, View
from datasets.synthetic.camera import CameraFamily, develop, expose, family_of, glare, spoil, take
from datasets.synthetic.clothes import Outfit
from datasets.synthetic.figure import pose_figure
from datasets.synthetic.paint import Light, fabric_map, paint_heat, paint_light
from datasets.synthetic.scene import Scene, draw_scene, noise
from datasets.synthetic.spec import DrawnSpec, ShotKey, Triple
from structures import Modality, PerModality

_PERSON_STREAM, _SCENE_STREAM, _SAMPLE_STREAM = 21, 22, 23
_SCENES = 24
"""Backgrounds of each camera; a sample shows a part of one of them."""
_MARGIN = 1 / 32
"""By how much the canvas exceeds the image on each side, as a share of its height: crops differ."""


@dataclass(frozen=True)
class SyntheticSpec(DrawnSpec):
    """See `DrawnSpec`.

    Attributes:
        company_share: share of the samples with a second person at the border.
        placement_noise: where people are in the image: 0 as in RGBNT201 (size ±10 %, the centre between 0.37
            and 0.62 of the width), 1 anywhere and of any size, also cut off by the border.
    """

    generator: ClassVar[int] = 2
    jpeg_quality: ClassVar[int] = 88

    train_ids: int = 256
    test_ids: int = 80
    cameras: int = 2
    train_shots: int = 4
    test_shots: int = 4
    height: int = 256
    width: int = 128
    occluder_share: float = 0.12
    spoiled_share: float = 0.10
    company_share: float = 0.25
    placement_noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("company_share", "placement_noise"):
            self._check_share(name)

    def draw(self, seed: int, key: ShotKey) -> Triple:
        """See `DrawnSpec.draw`."""
        rng = np.random.default_rng([seed, _SAMPLE_STREAM, *key])
        return _Sample(rng, self, seed, key).draw()


ANYWHERE_SPEC = SyntheticSpec(placement_noise=1.0)
"""People are shifted and scaled so much that fixed patch indices do not find them."""

TRUNK_SPEC = SyntheticSpec(train_ids=1024, train_shots=2, test_ids=40, test_shots=2)
"""Many people with few images each, to pre-train a trunk."""


@dataclass(frozen=True)
class Person:
    """One identity.

    Attributes:
        build: the body.
        outfit: clothes and belongings.
        heading: angle at which the person mostly walks past odd and even cameras, 0 towards the camera.
    """

    build: Build
    outfit: Outfit
    heading: tuple[float, float]

    @staticmethod
    def draw(rng: np.random.Generator) -> Person:
        """A new person; mostly seen from the front by one family and from behind by the other."""
        first = float(rng.choice([0.0, np.pi]))
        second = np.pi - first if rng.random() < 0.75 else first
        return Person(Build.draw(rng), Outfit.draw(rng), (first, second))


@cache
def _scene(seed: int, camera: int, number: int, size: tuple[int, int]) -> Scene:
    rng = np.random.default_rng([seed, _SCENE_STREAM, camera, number])
    return draw_scene(rng, size, lamps=family_of(camera).lamps)


class _Sample:
    """One sample while it is drawn.

    Pose, scene, company, occluder, spoiling and exposure each have a source of chance of their own, so that
    more of one leaves the others as they were.
    """

    def __init__(self, rng: np.random.Generator, spec: SyntheticSpec, seed: int, key: ShotKey) -> None:
        self.spec, self.key = spec, key
        self.person = Person.draw(np.random.default_rng([seed, _PERSON_STREAM, key.person_id]))
        self.family: CameraFamily = family_of(key.camera)
        self.margin = max(1, round(_MARGIN * spec.height))
        self.size = (spec.height + 2 * self.margin, spec.width + 2 * self.margin)
        self.pose_rng, self.scene_rng, self.company_rng, self.occluder_rng, self.spoil_rng, self.rng = (
            rng.spawn(6)
        )
        scene_size = (self.size[0] * 5 // 4, self.size[1] * 3 // 2)
        self.scene = _scene(seed, key.camera, int(self.scene_rng.integers(_SCENES)), scene_size)
        self.layers = self._crop_scene()
        self.mask = np.zeros(self.size, bool)

    def draw(self) -> Triple:
        """All three images and the mask."""
        company = self.company_rng.random() < self.spec.company_share
        in_front = self.company_rng.random() < 0.2
        if company and not in_front:
            self._add_company()
        self.mask = self._add_person(self.person, self._view(), self.pose_rng)
        if company and in_front:
            self.mask &= ~self._add_company()
        if self.occluder_rng.random() < self.spec.occluder_share:
            self.mask &= ~self._add_occluder()

        spoiled = self.spoil_rng.random() < self.spec.spoiled_share
        kind = list(Modality)[self.spoil_rng.integers(3)] if spoiled else None
        images = PerModality.build(lambda modality: self._photograph(modality, spoiled=modality is kind))
        inner = slice(self.margin, -self.margin)
        return Triple(images, self.mask[inner, inner])

    def _crop_scene(self) -> list[np.ndarray]:
        """A part of the background for each modality; RGB has three channels."""
        rng, (height, width) = self.scene_rng, self.size
        full = self.scene.layers.rgb.shape
        top, left = rng.integers(full[0] - height + 1), rng.integers(full[1] - width + 1)
        step = -1 if rng.random() < 0.5 else 1
        rgb, ni, ti = (
            layer[top : top + height, left : left + width][:, ::step].copy() for layer in self.scene.layers
        )
        return [np.repeat(rgb[..., None], 3, axis=-1), ni, ti]

    def _view(self) -> View:
        """How the person is seen in this sample."""
        rng, spec = self.pose_rng, self.spec
        heading = self.person.heading[(self.key.camera + 1) % 2]
        turn = rng.choice([0.0, np.pi, 0.5 * np.pi, -0.5 * np.pi], p=[0.74, 0.10, 0.08, 0.08])
        share = spec.placement_noise

        def between(usual: tuple[float, float], anywhere: tuple[float, float]) -> float:
            low, high = (
                (1.0 - share) * near + share * far for near, far in zip(usual, anywhere, strict=True)
            )
            return float(rng.uniform(low, high))

        height = between((0.86, 1.01), (0.80, 1.65))
        centre = between((0.40, 0.60), (-0.03, 1.03))
        middle = between((0.485, 0.515), (0.06, 0.94))
        return View(
            yaw=heading + turn + rng.normal(0.0, 0.35),
            pitch=rng.uniform(*self.family.pitch),
            phase=rng.uniform(0.0, 2.0 * np.pi),
            energy=rng.uniform(0.55, 1.15) if rng.random() < 0.92 else 0.1,
            lean=rng.uniform(-0.03, 0.03),
            height=height * spec.height,
            top=(middle - 0.5 * height) * spec.height + self.margin,
            centre=centre * spec.width + self.margin,
            stretch=rng.uniform(1.15, 1.45),
        )

    def _add_person(self, person: Person, view: View, rng: np.random.Generator) -> np.ndarray:
        """Paint a person over the layers; returns where it is."""
        surface = pose_figure(person.build, person.outfit, view, self.size)
        fabrics = fabric_map(surface, person.outfit)
        light = Light(
            lamp=self.scene.lamp,
            ambient=rng.uniform(0.25, 0.55),
            folds=0.09 * noise(rng, self.size, 1.3),
            blotches=0.03 * noise(rng, self.size, 1.6),
            hands=rng.uniform(0.0, 0.25),
            wear=rng.uniform(-0.05, 0.05),
        )
        rgb, ni = paint_light(surface, fabrics, person.outfit, light)
        heat = paint_heat(surface, fabrics, person.outfit, light)
        self._shade_ground(view)
        coverage = surface.coverage
        for layer, paint in zip(
            self.layers, (rng.uniform(0.55, 1.1) * rgb, rng.uniform(0.8, 1.1) * ni, heat), strict=True
        ):
            layer += (coverage if layer.ndim == 2 else coverage[..., None]) * (paint - layer)
        return surface.mask

    def _shade_ground(self, view: View) -> None:
        """Darken the ground under the feet, where light does not reach."""
        rows = (np.arange(self.size[0], dtype=np.float32) - view.top - view.height) / (0.05 * view.height)
        columns = (np.arange(self.size[1], dtype=np.float32) - view.centre) / (0.16 * view.height)
        shade = 1.0 - 0.5 * np.exp(-(rows[:, None] ** 2) - columns[None, :] ** 2)
        self.layers[0] *= shade[..., None]
        self.layers[1] *= shade

    def _add_company(self) -> np.ndarray:
        """Paint somebody else at the left or right border; returns where."""
        rng, spec = self.company_rng, self.spec
        height = rng.uniform(0.75, 1.1)
        beyond = rng.uniform(-0.02, 0.16)
        centre = -beyond if rng.random() < 0.5 else 1.0 + beyond
        view = View(
            yaw=rng.uniform(-np.pi, np.pi),
            pitch=rng.uniform(*self.family.pitch),
            phase=rng.uniform(0.0, 2.0 * np.pi),
            energy=rng.uniform(0.2, 1.1),
            lean=0.0,
            height=height * spec.height,
            top=(rng.uniform(0.45, 0.55) - 0.5 * height) * spec.height + self.margin,
            centre=centre * spec.width + self.margin,
            stretch=rng.uniform(1.15, 1.45),
        )
        return self._add_person(Person.draw(rng), view, rng)

    def _add_occluder(self) -> np.ndarray:
        """Paint something in front of the person, on the lower edge or at one side; returns where."""
        rng, (height, width) = self.occluder_rng, self.size
        rows = np.linspace(0.0, 1.0, height, dtype=np.float32)[:, None]
        columns = np.linspace(0.0, 1.0, width, dtype=np.float32)[None, :]
        ragged = rng.choice([0.0, 0.05]) * noise(rng, self.size, 2.0)
        if rng.random() < 0.5:
            where = rows + ragged > rng.uniform(0.68, 0.85)
        else:
            reach = rng.uniform(0.22, 0.38)
            columns = columns if rng.random() < 0.5 else 1.0 - columns
            where = (columns + ragged < reach) & (rows > rng.uniform(0.0, 0.5))
        levels = rng.uniform(0.05, 0.6), rng.uniform(0.1, 0.8), rng.uniform(0.10, 0.40)
        for layer, level in zip(self.layers, levels, strict=True):
            value = level * (1.0 + 0.25 * noise(rng, self.size, 1.3))
            layer[where] = value[where] if layer.ndim == 2 else value[where][:, None]
        return where

    def _photograph(self, modality: Modality, *, spoiled: bool) -> np.ndarray:
        """Expose, spoil and crop one modality; returns its bytes."""
        rng = self.rng
        layer = self.layers[list(Modality).index(modality)]
        if modality is Modality.NI and rng.random() < 0.25:
            layer = layer + rng.uniform(0.4, 1.0) * glare(rng, self.size, (0.03, 0.10))
        if modality is Modality.RGB:
            layer = self._tint(layer)
        image = expose(rng, layer, self.family, modality)
        if spoiled:
            image = spoil(self.spoil_rng, image, modality, self.mask).clip(0.0, 1.0)
        image = take(
            rng,
            image,
            self.family.optics.of(modality),
            (self.spec.height, self.spec.width),
            self._box(modality),
        )
        return develop(image, modality)

    def _tint(self, layer: np.ndarray) -> np.ndarray:
        """Take most of the colour away, as a camera does in the dark, and add the cast of the lamps."""
        grey = layer.mean(axis=-1, keepdims=True)
        cast = 1.0 + self.rng.uniform(0.02, 0.10) * np.array([1.0, self.rng.uniform(-0.3, 0.6), -1.0])
        return (grey + self.rng.uniform(0.2, 0.7) * (layer - grey)) * cast.astype(np.float32)

    def _box(self, modality: Modality) -> tuple[float, float, float, float]:
        """Which part of the canvas a modality shows: RGB that of the mask, the others slightly elsewhere."""
        margin, spec, rng = self.margin, self.spec, self.rng
        left = top = float(margin)
        right, low = margin + float(spec.width), margin + float(spec.height)
        if modality is not Modality.RGB:
            moved = 0.4 * margin * rng.uniform(-1.0, 1.0, 2)
            grown = 0.5 * margin * rng.uniform(-1.0, 1.0, 2)
            left, right = left + moved[0] - grown[0], right + moved[0] + grown[0]
            top, low = top + moved[1] - grown[1], low + moved[1] + grown[1]
        return left, top, right, low
