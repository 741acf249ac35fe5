"""From the three images of a triple to three normalised tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from structures import PerModality


class TrainTransform:
    """Resize, flip, pad and crop, normalise, erase. All randomness comes from torch's global generator."""

    def __init__(
        self,
        *,
        size: tuple[int, int],
        flip_prob: float,
        padding: int,
        erase_prob: float,
        mean: Sequence[float],
        std: Sequence[float],
        shared: bool,
    ) -> None:
        """Set up the steps.

        Args:
            size: height and width of the result.
            flip_prob: probability of a horizontal flip.
            padding: black pixels added on each side before a crop of `size` is taken.
            erase_prob: probability that a rectangle is replaced by standard normal noise.
            mean: of each channel, for values in [0, 1].
            std: of each channel, for values in [0, 1].
            shared: flip and crop the three modalities alike, so that a place in one image is the same place
                in the others. Erasing is always drawn for each modality on its own.
        """
        self._shared = shared
        self._place = v2.Compose(
            [
                # First of all: images of different sizes must agree before they can share a crop.
                v2.Resize(size, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
                v2.RandomHorizontalFlip(flip_prob),
                v2.RandomCrop(size, padding=padding),
            ]
        )
        self._finish = v2.Compose(
            [
                _to_normalised(mean, std),
                v2.RandomErasing(erase_prob, scale=(0.02, 1 / 3), ratio=(0.3, 3.3), value="random"),
            ]
        )

    def __call__(self, images: PerModality[Image.Image]) -> PerModality[Tensor]:
        """Transform RGB images of any size to tensors, each (3, H, W)."""
        # A v2 transform draws its parameters once per call, for all the images it is given.
        placed = PerModality(*self._place(*images)) if self._shared else images.map(self._place)
        return placed.map(self._finish)


class TestTransform:
    """Resize and normalise; nothing is random."""

    def __init__(self, *, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> None:
        """Set up the steps.

        Args:
            size: height and width of the result.
            mean: of each channel, for values in [0, 1].
            std: of each channel, for values in [0, 1].
        """
        self._resize = v2.Resize(size, interpolation=v2.InterpolationMode.BILINEAR, antialias=True)
        self._finish = _to_normalised(mean, std)
        self._to_unit_range = _to_unit_range()

    def __call__(self, images: PerModality[Image.Image]) -> PerModality[Tensor]:
        """Transform RGB images of any size to tensors, each (3, H, W)."""
        return images.map(lambda image: self._finish(self._resize(image)))

    def mask(self, image: Image.Image) -> Tensor:
        """Transform a grey-scale mask to (H, W) in [0, 1], at the same places as the images."""
        grey: Tensor = self._to_unit_range(self._resize(image))  # (1, H, W)
        return grey.squeeze(0)


def _to_normalised(mean: Sequence[float], std: Sequence[float]) -> v2.Compose:
    return v2.Compose([_to_unit_range(), v2.Normalize(list(mean), list(std))])


def _to_unit_range() -> v2.Compose:
    """From a PIL image to a plain float tensor with values in [0, 1]."""
    return v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()])
