from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from datasets import transforms
from datasets.dataset import Transform
from structures import PerModality

HALF = {"mean": [0.5] * 3, "std": [0.5] * 3}


def noise_image(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def grey_images(value: int, *sizes: tuple[int, int]) -> PerModality[Image.Image]:
    return PerModality(*(Image.new("RGB", (width, height), (value,) * 3) for height, width in sizes))


def train_transform(**changes: Any) -> transforms.TrainTransform:
    """A transform that only resizes and normalises, apart from `changes`."""
    plain: dict[str, Any] = {"size": (24, 12), "flip_prob": 0, "padding": 0, "erase_prob": 0, "shared": False}
    return transforms.TrainTransform(**(plain | HALF | changes))


def apply(transform: Transform, images: PerModality[Image.Image]) -> PerModality[Tensor]:
    result = torch.full((3, 3, *transform.size), torch.nan)
    transform(torch.stack([transform.resize(image) for image in images]), result)
    return PerModality(*result)


def expected(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Tensor:
    """What Pillow gives, scaled from [0, 255] to [-1, 1]."""
    pixels = np.asarray(image.resize(size[::-1], method), dtype=np.float32)
    return torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1)


def test_test_transform_is_bilinear_resize_and_normalisation() -> None:
    images = PerModality(noise_image(50, 30, 0), noise_image(24, 12, 1), noise_image(10, 10, 2))
    result = apply(transforms.TestTransform(size=(24, 12), **HALF), images)
    for image, tensor in zip(images, result, strict=True):
        assert type(tensor) is Tensor
        torch.testing.assert_close(tensor, expected(image, (24, 12), Image.Resampling.BILINEAR))


def test_each_channel_has_its_own_mean_and_std() -> None:
    images = PerModality(*[Image.new("RGB", (4, 4), (255, 51, 0))] * 3)
    transform = transforms.TestTransform(size=(4, 4), mean=[0.5, 0.1, 0.3], std=[0.25, 0.5, 0.1])
    result = apply(transform, images)
    torch.testing.assert_close(result.ni[:, 0, 0], torch.tensor([2.0, 0.2, -3.0]))


def test_mask_is_resized_like_the_images_to_the_unit_range() -> None:
    grey = noise_image(48, 24).convert("L")
    mask = transforms.TestTransform(size=(24, 12), **HALF).mask(grey)
    pixels = np.asarray(grey.resize((12, 24), Image.Resampling.BILINEAR), dtype=np.float32)
    assert type(mask) is Tensor
    torch.testing.assert_close(mask, torch.from_numpy(pixels / 255))


def test_train_transform_resizes_bicubically_and_flips() -> None:
    images = PerModality(noise_image(50, 30, 0), noise_image(24, 12, 1), noise_image(10, 10, 2))
    straight = apply(train_transform(), images)
    flipped = apply(train_transform(flip_prob=1), images)
    for image, tensor, mirror in zip(images, straight, flipped, strict=True):
        assert type(tensor) is Tensor
        torch.testing.assert_close(tensor, expected(image, (24, 12), Image.Resampling.BICUBIC))
        torch.testing.assert_close(mirror, tensor.flip(2))


def test_crop_pads_with_black_and_reaches_every_offset() -> None:
    torch.manual_seed(0)
    transform = train_transform(padding=2)
    images = PerModality(*[noise_image(24, 12)] * 3)
    padded = torch.nn.functional.pad(apply(train_transform(), images).rgb, (2, 2, 2, 2), value=-1)
    seen = set()
    for _ in range(300):
        crop = apply(transform, images).rgb
        places = [
            (y, x) for y in range(5) for x in range(5) if torch.equal(crop, padded[:, y : y + 24, x : x + 12])
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) == 25


@pytest.mark.parametrize("shared", [True, False])
def test_flip_and_crop_are_shared_on_demand(shared: bool) -> None:
    torch.manual_seed(0)
    transform = train_transform(flip_prob=0.5, padding=3, shared=shared)
    images = PerModality(*[noise_image(24, 12)] * 3)
    results = [apply(transform, images) for _ in range(50)]
    agreeing = sum(torch.equal(r.rgb, r.ni) and torch.equal(r.rgb, r.ti) for r in results)
    assert agreeing == 50 if shared else agreeing < 5
    assert not all(torch.equal(r.rgb, results[0].rgb) for r in results)


def test_shared_crop_corresponds_for_images_of_different_sizes() -> None:
    torch.manual_seed(0)
    transform = train_transform(padding=3, shared=True)
    for _ in range(20):
        result = apply(transform, grey_images(255, (48, 24), (24, 12), (30, 40)))
        assert torch.equal(result.rgb, result.ni)
        assert torch.equal(result.rgb, result.ti)


@pytest.mark.parametrize("shared", [True, False])
def test_erasing_puts_noise_in_a_rectangle_of_each_modality(shared: bool) -> None:
    torch.manual_seed(0)
    height, width = 64, 32
    transform = train_transform(size=(height, width), erase_prob=1, shared=shared)
    images = grey_images(255, *[(height, width)] * 3)
    shares, aspects, noise = [], [], []
    for _ in range(150):
        result = apply(transform, images)
        masks = result.map(lambda tensor: (tensor != 1).all(dim=0))
        assert not torch.equal(masks.rgb, masks.ni)
        assert not torch.equal(masks.rgb, masks.ti)
        image, erased = result.ti, masks.ti
        rows, columns = erased.any(dim=1).sum().item(), erased.any(dim=0).sum().item()
        assert erased.sum() == rows * columns, "not a rectangle"
        shares.append(rows * columns / (height * width))
        aspects.append(rows / columns)
        noise.append(image[:, erased].flatten())
    assert 0.015 < min(shares) < 0.06
    assert 0.25 < max(shares) < 0.35
    assert 0.25 < min(aspects) < 0.5
    assert 2 < max(aspects) < 3.8
    values = torch.cat(noise)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert noise[0].unique().numel() > 0.9 * noise[0].numel(), "each pixel and channel has its own noise"


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_erasing_happens_with_its_probability(probability: float) -> None:
    torch.manual_seed(0)
    transform = train_transform(erase_prob=probability)
    images = grey_images(255, *[(24, 12)] * 3)
    erased = [bool((tensor != 1).any()) for _ in range(200) for tensor in apply(transform, images)]
    assert np.mean(erased) == pytest.approx(probability, abs=0.07 if probability else 0)


class PlainTrainTransform:
    """The same steps as torchvision's transforms, one image and one step after the other."""

    def __init__(
        self,
        *,
        size: tuple[int, int],
        flip_prob: float,
        padding: int,
        erase_prob: float,
        mean: list[float],
        std: list[float],
        shared: bool,
    ) -> None:
        self.shared = shared
        self.place = v2.Compose(
            [
                v2.Resize(size, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
                v2.RandomHorizontalFlip(flip_prob),
                v2.RandomCrop(size, padding=padding),
            ]
        )
        self.finish = v2.Compose(
            [
                *plain_normalisation(mean, std),
                v2.RandomErasing(erase_prob, scale=(0.02, 1 / 3), ratio=(0.3, 3.3), value="random"),
            ]
        )

    def __call__(self, images: PerModality[Image.Image]) -> PerModality[Tensor]:
        placed = PerModality(*self.place(*images)) if self.shared else images.map(self.place)
        return placed.map(self.finish)


def plain_normalisation(mean: list[float], std: list[float]) -> list[v2.Transform]:
    to_unit_range = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    return [*to_unit_range, v2.Normalize(mean, std)]


CLIP_LIKE = {"mean": [0.481, 0.458, 0.408], "std": [0.269, 0.261, 0.276]}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"padding": 0},
        {"padding": 40},  # wider than the image: a crop may see nothing of it
        {"flip_prob": 1, "erase_prob": 1},
        {"flip_prob": 0, "erase_prob": 0.3},
        {"size": (16, 64)},  # an erased rectangle often does not fit
    ],
)
def test_training_gives_what_torchvision_gives_bit_for_bit(shared: bool, changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"size": (32, 16), "flip_prob": 0.5, "padding": 10, "erase_prob": 0.5}
    settings |= {"shared": shared} | CLIP_LIKE | changes
    fast, plain = transforms.TrainTransform(**settings), PlainTrainTransform(**settings)
    images = PerModality(noise_image(50, 30, 0), noise_image(32, 16, 1), noise_image(10, 10, 2))
    for seed in range(30):
        torch.manual_seed(seed)
        wanted = plain(images)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        result = apply(fast, images)
        assert all(torch.equal(a, b) for a, b in zip(result, wanted, strict=True))
        assert torch.equal(torch.get_rng_state(), state), "as many random numbers are drawn"


def test_testing_gives_what_torchvision_gives_bit_for_bit() -> None:
    resize = v2.Resize((24, 12), interpolation=v2.InterpolationMode.BILINEAR, antialias=True)
    plain = v2.Compose([resize, *plain_normalisation(**CLIP_LIKE)])
    fast = transforms.TestTransform(size=(24, 12), **CLIP_LIKE)
    images = PerModality(noise_image(50, 30, 0), noise_image(24, 12, 1), noise_image(10, 10, 2))
    assert all(torch.equal(a, plain(b)) for a, b in zip(apply(fast, images), images, strict=True))
    grey = images.rgb.convert("L")
    to_unit_range = v2.Compose([resize, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    assert torch.equal(fast.mask(grey), to_unit_range(grey).squeeze(0))


def test_a_transform_leaves_the_bytes_as_they_are() -> None:
    """They may belong to the cache."""
    settings: dict[str, Any] = {"size": (24, 12), **HALF}
    for transform in (
        train_transform(flip_prob=1, padding=2, erase_prob=1),
        transforms.TestTransform(**settings),
    ):
        images = torch.stack([transform.resize(noise_image(24, 12, seed)) for seed in range(3)])
        before = images.clone()
        transform(images, torch.empty(images.shape))
        assert images.dtype == torch.uint8
        assert torch.equal(images, before)
