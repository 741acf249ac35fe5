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
    return PerModality(*transform(torch.stack([transform.resize(image) for image in images])))


def expected(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Tensor:
    """What Pillow gives, scaled from [0, 255] to [-1, 1]."""
    pixels = np.asarray(image.resize(size[::-1], method), dtype=np.float32)
    return torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1)


def test_evaluation_is_bilinear_resize_and_normalisation() -> None:
    images = PerModality(noise_image(50, 30, 0), noise_image(24, 12, 1), noise_image(10, 10, 2))
    result = apply(transforms.EvalTransform(size=(24, 12), **HALF), images)
    for image, tensor in zip(images, result, strict=True):
        assert type(tensor) is Tensor
        torch.testing.assert_close(tensor, expected(image, (24, 12), Image.Resampling.BILINEAR))


def test_each_channel_has_its_own_mean_and_std() -> None:
    images = PerModality(*[Image.new("RGB", (4, 4), (255, 51, 0))] * 3)
    transform = transforms.EvalTransform(size=(4, 4), mean=[0.5, 0.1, 0.3], std=[0.25, 0.5, 0.1])
    result = apply(transform, images)
    torch.testing.assert_close(result.ni[:, 0, 0], torch.tensor([2.0, 0.2, -3.0]))


def test_mask_is_resized_like_the_images_to_the_unit_range() -> None:
    grey = noise_image(48, 24).convert("L")
    mask = transforms.EvalTransform(size=(24, 12), **HALF).mask(grey)
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


def test_an_image_draws_the_same_numbers_shared_or_not() -> None:
    """A triple of equal images is flipped and cropped as one image would be, by the same draws."""
    images = PerModality(*[noise_image(24, 12)] * 3)
    torch.manual_seed(5)
    shared = apply(train_transform(flip_prob=0.5, padding=10, shared=True), images)
    torch.manual_seed(5)
    separate = apply(train_transform(flip_prob=0.5, padding=10), images)
    assert torch.equal(shared.rgb, separate.rgb)


@pytest.mark.parametrize("padding", [0, 10, 40])  # 40: a crop may see nothing of the image
def test_steps_and_draws_are_those_of_torchvision_one_by_one(padding: int) -> None:
    """In DeMo's order, on one image after the other: resize, flip, pad, crop, normalise, erase."""
    size, mean, std = (32, 16), [0.481, 0.458, 0.408], [0.269, 0.261, 0.276]
    options: dict[str, Any] = {"size": size, "padding": padding, "flip_prob": 0.5, "erase_prob": 0.5}
    transform = train_transform(**options, mean=mean, std=std)
    flip_and_crop = [v2.RandomHorizontalFlip(0.5), v2.Pad(padding), v2.RandomCrop(size)]
    move = v2.Compose([v2.Resize(size, v2.InterpolationMode.BICUBIC), *flip_and_crop])
    to_unit_range = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    erase = v2.RandomErasing(0.5, scale=(0.02, 1 / 3), ratio=(0.3, 3.3), value="random")
    finish = v2.Compose([*to_unit_range, v2.Normalize(mean, std), erase])
    images = PerModality(noise_image(50, 30, 0), noise_image(32, 16, 1), noise_image(10, 10, 2))
    for seed in range(20):
        torch.manual_seed(seed)
        expected_images = images.map(move).map(finish)
        torch.manual_seed(seed)
        assert all(map(torch.equal, apply(transform, images), expected_images))


def test_a_transform_leaves_the_bytes_as_they_are() -> None:
    """They may belong to the cache."""
    settings: dict[str, Any] = {"size": (24, 12), **HALF}
    for transform in (
        train_transform(flip_prob=1, padding=2, erase_prob=1),
        transforms.EvalTransform(**settings),
    ):
        images = torch.stack([transform.resize(noise_image(24, 12, seed)) for seed in range(3)])
        before = images.clone()
        transform(images)
        assert images.dtype == torch.uint8
        assert torch.equal(images, before)


def test_jitter_changes_brightness_and_contrast_of_each_modality_by_itself() -> None:
    torch.manual_seed(0)
    grey = torch.full((3, 3, 8, 4), 100, dtype=torch.uint8)
    values = train_transform(size=(8, 4), jitter=0.3)(grey) * 0.5 + 0.5
    per_modality = values.flatten(1)
    assert (per_modality.std(dim=1) < 1e-6).all()  # one factor for the whole image
    factors = per_modality[:, 0] * 255 / 100
    assert len({round(factor, 3) for factor in factors.tolist()}) == 3
    assert ((factors - 1).abs() <= 0.31).all()
