"""From the images of a triple to normalised tensors, in two steps, both made of torchvision's transforms.

`resize` is the same for every draw: an image of any size → (3, H, W) bytes, which `datasets/cache.py` keeps.
A call of the transform does the rest on the bytes of the whole triple.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms as T
from torchvision.transforms.v2 import functional as F

ERASED_SHARE = (0.02, 1 / 3)
"""Least and largest share of the image that random erasing replaces."""

ERASED_ASPECT = (0.3, 3.3)
"""Least and largest height / width of what it replaces."""


class EvalTransform:
    """Resize and normalise; nothing is random."""

    interpolation = T.InterpolationMode.BILINEAR

    def __init__(self, *, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> None:
        """`size` is height and width; `mean` and `std` are those of each channel, for values in [0, 1]."""
        self.size = size
        self.mean, self.std = list(mean), list(std)

    def resize(self, image: Image.Image) -> Tensor:
        """An RGB or grey image of any size → (3 or 1, H, W) bytes."""
        return F.pil_to_tensor(F.resize(image, list(self.size), self.interpolation))

    def __call__(self, images: Tensor) -> Tensor:
        """The bytes of a triple, (3, 3, H, W), which are not changed → normalised floats."""
        floats = F.to_dtype(images, torch.float32, scale=True)
        return F.normalize(floats, self.mean, self.std, inplace=True)

    def mask(self, image: Image.Image) -> Tensor:
        """A grey mask → (H, W) in [0, 1], aligned with the images."""
        return F.to_dtype(self.resize(image), torch.float32, scale=True).squeeze(0)


class TrainTransform(EvalTransform):
    """Resize, flip, pad and crop, jitter, normalise, erase, all with torch's global random generator."""

    interpolation = T.InterpolationMode.BICUBIC

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
        jitter: float = 0.0,
    ) -> None:
        """As `EvalTransform`; `padding` adds black pixels on each side before a crop of `size` is taken.

        With `shared`, the three modalities are flipped and cropped alike, so that their pixels stay aligned.
        Erasing, which replaces a rectangle by standard normal noise, is drawn for each on its own, and so is
        jitter: brightness and contrast, each times a factor in 1 ± `jitter`.
        """
        super().__init__(size=size, mean=mean, std=std)
        self._padding = padding
        self._flip_and_crop = T.Compose([T.RandomHorizontalFlip(flip_prob), T.RandomCrop(size)])
        self._erase = T.RandomErasing(erase_prob, ERASED_SHARE, ERASED_ASPECT, value="random", inplace=True)
        self._jitter = T.ColorJitter(brightness=jitter, contrast=jitter) if jitter else None
        self._shared = shared

    def __call__(self, images: Tensor) -> Tensor:
        """The bytes of a triple, (3, 3, H, W), which are not changed → augmented, normalised floats."""
        padded = F.pad(images, [self._padding])
        if self._shared:
            moved = self._flip_and_crop(padded)
        else:
            moved = torch.stack([self._flip_and_crop(image) for image in padded])
        if self._jitter is not None:
            moved = torch.stack([self._jitter(image) for image in moved])
        normalised = super().__call__(moved)
        for image in normalised:
            self._erase(image)
        return normalised
