"""From the images of a triple to normalised tensors, in two steps.

`resize` is the part that never changes: an image of any size → (3, H, W) bytes; `datasets/cache.py` keeps its
result. A call of the transform does the rest on the bytes of the whole triple. Each step touches a pixel as
seldom as it can, and gives, bit for bit, what torchvision's transforms give one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from structures import Modality

ERASED_SHARE = (0.02, 1 / 3)
"""Least and largest share of the image that random erasing replaces."""

ERASED_ASPECT = (0.3, 3.3)
"""Least and largest height / width of what it replaces."""

_LOG_ASPECT = torch.log(torch.tensor(ERASED_ASPECT)).tolist()
_ERASING_ATTEMPTS = 10  # a rectangle that does not fit into the image is drawn again


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
        self.size = size
        self._flip_prob = _as_drawn(flip_prob)
        self._padding = padding
        self._erase_prob = _as_drawn(erase_prob)
        self._normalisation = _per_channel(mean), _per_channel(std)
        self._shared = shared

    def resize(self, image: Image.Image) -> Tensor:
        """An RGB image of any size, resized bicubically to (3, H, W) bytes."""
        return _to_bytes(_resize(image, self.size, Image.Resampling.BICUBIC))

    def __call__(self, images: Tensor, out: Tensor) -> None:
        """Augment and normalise.

        Args:
            images: what `resize` gave for each modality, (3, 3, H, W), bytes; not changed.
            out: is filled with the result, (3, 3, H, W) floats.
        """
        if self._shared:
            placements = [self._draw_placement()] * len(Modality)
        else:
            placements = [self._draw_placement() for _ in Modality]
        placed = torch.zeros_like(images)  # the padding is black
        for target, image, placement in zip(placed, images, placements, strict=True):
            _place(target, image, *placement)
        _normalise(placed, *self._normalisation, out)
        for target in out:
            self._erase(target)

    def _draw_placement(self) -> tuple[bool, int, int]:
        """Whether an image is flipped, and by how many pixels the crop is shifted down and right."""
        flip = torch.rand(1).item() < self._flip_prob
        if not self._padding:
            return flip, 0, 0
        down, right = torch.randint(0, 2 * self._padding + 1, size=(2,)).tolist()
        return flip, down - self._padding, right - self._padding

    def _erase(self, image: Tensor) -> None:
        """With the probability of erasing, put noise into a rectangle of a (C, H, W) image."""
        if torch.rand(1).item() >= self._erase_prob:
            return
        channels, height, width = image.shape
        for _ in range(_ERASING_ATTEMPTS):
            area = height * width * torch.empty(1).uniform_(*ERASED_SHARE).item()
            aspect = torch.exp(torch.empty(1).uniform_(*_LOG_ASPECT)).item()
            rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if rows < height and columns < width:
                noise = torch.empty(channels, rows, columns).normal_()
                top = int(torch.randint(0, height - rows + 1, size=(1,)))
                left = int(torch.randint(0, width - columns + 1, size=(1,)))
                image[:, top : top + rows, left : left + columns] = noise
                return


class TestTransform:
    """Resize and normalise; nothing is random."""

    def __init__(self, *, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> None:
        """Set up the steps.

        Args:
            size: height and width of the result.
            mean: of each channel, for values in [0, 1].
            std: of each channel, for values in [0, 1].
        """
        self.size = size
        self._normalisation = _per_channel(mean), _per_channel(std)

    def resize(self, image: Image.Image) -> Tensor:
        """An RGB image of any size, resized bilinearly to (3, H, W) bytes."""
        return _to_bytes(_resize(image, self.size, Image.Resampling.BILINEAR))

    def __call__(self, images: Tensor, out: Tensor) -> None:
        """Normalise.

        Args:
            images: what `resize` gave for each modality, (3, 3, H, W), bytes; not changed.
            out: is filled with the result, (3, 3, H, W) floats.
        """
        _normalise(images, *self._normalisation, out)

    def mask(self, image: Image.Image) -> Tensor:
        """Transform a grey-scale mask to (H, W) in [0, 1], at the same places as the images."""
        grey = _resize(image, self.size, Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(grey)).float().mul_(1 / 255)


def _resize(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Image.Image:
    height, width = size
    return image if image.size == (width, height) else image.resize((width, height), method)


def _to_bytes(image: Image.Image) -> Tensor:
    """(3, H, W), contiguous."""
    return torch.from_numpy(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))


def _as_drawn(probability: float) -> float:
    """The probability, rounded like the random numbers that it is compared with."""
    return torch.tensor(probability, dtype=torch.float32).item()


def _per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float32).view(-1, 1, 1)


def _place(target: Tensor, image: Tensor, flip: bool, down: int, right: int) -> None:
    """Copy into `target` (C, H, W) what a window sees that is moved `down` and `right` over the image."""
    height, width = image.shape[1:]
    seen_rows, rows = _overlap(height, down)
    seen_columns, columns = _overlap(width, right)
    target[:, rows, columns] = (image.flip(2) if flip else image)[:, seen_rows, seen_columns]


def _overlap(length: int, shift: int) -> tuple[slice, slice]:
    """Of a line and a window as long, shifted: what is seen of the line, and where in the window."""
    seen = max(length - abs(shift), 0)
    return slice(max(shift, 0), max(shift, 0) + seen), slice(max(-shift, 0), max(-shift, 0) + seen)


def _normalise(images: Tensor, mean: Tensor, std: Tensor, out: Tensor) -> None:
    """From bytes to normalised floats."""
    out.copy_(images).mul_(1 / 255).sub_(mean).div_(std)
