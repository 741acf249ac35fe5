"""Version 1 of the drawn data: daylight colours, everybody upright; a target for transfer, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from datasets.synthetic.spec import DrawnSpec, ShotKey, Triple
from datasets.synthetic.v1.person import Person
from datasets.synthetic.v1.scene import Camera, draw_triple

_PERSON_STREAM, _CAMERA_STREAM, _SAMPLE_STREAM = 1, 2, 3


@dataclass(frozen=True)
class SpecV1(DrawnSpec):
    """See `DrawnSpec`.

    Attributes:
        clutter_boxes: boxes in garment colours behind the person, elsewhere in each modality.
    """

    generator: ClassVar[int] = 1
    jpeg_quality: ClassVar[int] = 95

    clutter_boxes: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clutter_boxes < 0:
            raise ValueError(f"clutter_boxes must not be negative, not {self.clutter_boxes}")

    def draw(self, seed: int, key: ShotKey) -> Triple:
        """See `DrawnSpec.draw`."""
        return draw_triple(
            np.random.default_rng([seed, _SAMPLE_STREAM, *key]),
            Person.draw(np.random.default_rng([seed, _PERSON_STREAM, key.person_id])),
            _camera(seed, key.camera, (self.height, self.width)),
            clutter_boxes=self.clutter_boxes,
            occluder_share=self.occluder_share,
            spoiled_share=self.spoiled_share,
        )


HARD_SPEC_V1 = SpecV1(clutter_boxes=8, occluder_share=0.5)
"""Twice the clutter and occlusion; people, poses and cameras are the same."""


@cache
def _camera(seed: int, number: int, size: tuple[int, int]) -> Camera:
    return Camera.draw(np.random.default_rng([seed, _CAMERA_STREAM, number]), size)
