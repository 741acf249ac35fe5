"""What a set of drawings is: how much of it there is, and how one sample of it is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import NamedTuple

from structures import PerModality


@dataclass(frozen=True)
class Triple:
    """One drawn sample.

    Attributes:
        images: bytes, (H, W, 3) in colour or (H, W) in grey.
        mask: True where the person is and nothing covers it, (H, W).
    """

    images: PerModality[np.ndarray]
    mask: np.ndarray


class ShotKey(NamedTuple):
    """The numbers that name a sample; all but `shot` count from 1."""

    person_id: int
    camera: int
    shot: int

    @property
    def stem(self) -> str:
        """The file name without its ending, as RGBNT201 has it."""
        return f"{self.person_id:06d}_cam{self.camera}_0_{self.shot:02d}"


@dataclass(frozen=True)
class DrawnSpec(ABC):
    """How much is drawn, and how hard it is.

    Attributes:
        train_ids: training identities, numbered from 1.
        test_ids: test identities, numbered after the training ones.
        cameras: at most 9, since a file name has one digit for them.
        train_shots: triples of each training identity under each camera.
        test_shots: triples of each test identity under each camera.
        height: of the images, in pixels.
        width: of the images, in pixels.
        occluder_share: share of the samples with something in front of the person.
        spoiled_share: share of the samples in which one modality is spoiled.
    """

    generator: ClassVar[int]
    """The version of what is drawn: a cached set of another version is drawn anew."""
    jpeg_quality: ClassVar[int]

    train_ids: int = 64
    test_ids: int = 32
    cameras: int = 4
    train_shots: int = 3
    test_shots: int = 2
    height: int = 128
    width: int = 64
    occluder_share: float = 0.25
    spoiled_share: float = 0.30

    def __post_init__(self) -> None:
        for name in ("train_ids", "test_ids", "cameras", "train_shots", "test_shots", "height", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("occluder_share", "spoiled_share"):
            self._check_share(name)
        if self.cameras > 9:
            raise ValueError(
                f"cameras must be at most 9, not {self.cameras}: file names have one digit for it"
            )

    def _check_share(self, name: str) -> None:
        if not 0.0 <= getattr(self, name) <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], not {getattr(self, name)}")

    @abstractmethod
    def draw(self, seed: int, key: ShotKey) -> Triple:
        """Draw one sample; the same arguments give the same pixels."""

    def samples(self) -> Iterator[tuple[str, ShotKey]]:
        """The folder of the split and the key of every sample, in the order of the file names."""
        test_start = self.train_ids + 1
        for split, person_ids, shots in (
            ("train_171", range(1, test_start), self.train_shots),
            ("test", range(test_start, test_start + self.test_ids), self.test_shots),
        ):
            for person_id in person_ids:
                for camera in range(1, self.cameras + 1):
                    for shot in range(shots):
                        yield split, ShotKey(person_id, camera, shot)
