"""The two camera families: from light and heat on a canvas to the bytes of an image."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from datasets.synthetic.palette import colour_of_heat
from datasets.synthetic.scene import noise
from structures import Modality, PerModality


@dataclass(frozen=True)
class Optics:
    """How sharp one modality of a camera is.

    Attributes:
        height: range of rows of the crop before it is enlarged, as shares of the rows of the image.
        blur: range of the blur after that, in pixels of an image of 256 rows.
        motion: longest motion blur before that, in pixels of the crop.
        quality: of JPEG compression before the crop is enlarged; 0 without.
    """

    height: tuple[float, float]
    blur: tuple[float, float]
    motion: int = 0
    quality: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class CameraFamily:
    """What cameras of one kind have in common.

    Attributes:
        lamps: whether they look at a lit street.
        pitch: range of radians by which they look down.
        optics: of each modality.
        brightness: median and spread (of the logarithm) of the mean of an image.
        contrast: the same for the standard deviation.
    """

    lamps: bool
    pitch: tuple[float, float]
    optics: PerModality[Optics]
    brightness: PerModality[tuple[float, float]]
    contrast: PerModality[tuple[float, float]]


SHARP = CameraFamily(
    lamps=True,
    pitch=(0.05, 0.25),
    optics=PerModality(
        Optics((0.85, 1.0), (0.35, 0.75)), Optics((0.55, 0.85), (0.5, 1.0)), Optics((0.5, 0.8), (0.72, 1.32))
    ),
    brightness=PerModality((0.28, 0.28), (0.37, 0.22), (0.47, 0.12)),
    contrast=PerModality((0.19, 0.25), (0.17, 0.22), (0.27, 0.10)),
)
DARK = CameraFamily(
    lamps=False,
    pitch=(0.10, 0.35),
    optics=PerModality(
        Optics((0.30, 0.52), (0.8, 1.4), 3, (35, 75)),
        Optics((0.36, 0.62), (0.8, 1.4), 3, (40, 80)),
        Optics((0.50, 0.75), (0.72, 1.42)),
    ),
    brightness=PerModality((0.21, 0.25), (0.34, 0.25), (0.47, 0.12)),
    contrast=PerModality((0.15, 0.30), (0.155, 0.25), (0.27, 0.10)),
)


def family_of(camera: int) -> CameraFamily:
    """The family of a camera, by its number on disk: odd ones are sharp, even ones dark."""
    return SHARP if camera % 2 else DARK


def expose(
    rng: np.random.Generator, image: np.ndarray, family: CameraFamily, modality: Modality
) -> np.ndarray:
    """Adjust gain and offset as an automatic exposure does, to the family's brightness and contrast.

    Args:
        rng: source of chance.
        image: light or heat, (H, W) or (H, W, 3).
        family: of the camera.
        modality: of the image.

    Returns:
        values in [0, 1].
    """
    (mean, mean_spread), (deviation, spread) = family.brightness.of(modality), family.contrast.of(modality)
    mean *= np.exp(mean_spread * np.clip(rng.standard_normal(), -2.0, 2.0))
    deviation *= np.exp(spread * np.clip(rng.standard_normal(), -2.0, 2.0))
    # Lamps are brighter than the range; the exposure does not follow them.
    grey = np.minimum(image if image.ndim == 2 else image.mean(axis=-1), 0.9)
    gain = deviation / max(float(grey.std()), 1e-3)
    if modality is Modality.TI:  # a thermal camera shows a fixed range of temperatures, give or take a little
        gain = float(np.clip(gain, 1.05, 1.45))
        mean = float(np.clip(mean, grey.mean() - 0.06, grey.mean() + 0.06))
    return ((image - grey.mean()) * gain + mean).clip(0.0, 1.0)


def take(
    rng: np.random.Generator,
    canvas: np.ndarray,
    optics: Optics,
    size: tuple[int, int],
    box: tuple[float, float, float, float],
) -> np.ndarray:
    """Photograph a part of the canvas.

    Args:
        rng: source of chance.
        canvas: values in [0, 1], (H, W) or (H, W, 3).
        optics: of the camera.
        size: height and width of the image.
        box: left, top, right and lower edge of the part, in pixels of the canvas.

    Returns:
        bytes of the same number of channels.
    """
    image = Image.fromarray(np.rint(255.0 * canvas).astype(np.uint8))
    height, width = size
    share = rng.uniform(*optics.height)
    small = max(4, round(share * width)), max(8, round(share * height))
    image = image.resize(small, Image.Resampling.BICUBIC, box=box)
    if optics.motion:
        image = _move(image, int(rng.integers(1, optics.motion + 1)), upright=bool(rng.random() < 0.25))
    if optics.quality[1]:
        buffer = io.BytesIO()
        image.save(buffer, "jpeg", quality=int(rng.integers(*optics.quality)))
        image = Image.open(buffer)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(*optics.blur) * height / 256))
    return np.asarray(image)


def _move(image: Image.Image, pixels: int, *, upright: bool) -> Image.Image:
    """Motion blur over some pixels."""
    values = np.asarray(image, dtype=np.float32)
    axis = 0 if upright else 1
    mean = sum(np.roll(values, shift, axis) for shift in range(pixels)) / pixels
    return Image.fromarray(np.rint(mean).astype(np.uint8))


def spoil(rng: np.random.Generator, image: np.ndarray, modality: Modality, mask: np.ndarray) -> np.ndarray:
    """Hide most of an image in one of the ways in which its sensor fails.

    Args:
        rng: source of chance.
        image: values in [0, 1], (H, W) or (H, W, 3).
        modality: of the image.
        mask: where the person is, (H, W).
    """
    size = (image.shape[0], image.shape[1])
    kind = rng.choice(["typical", "washed out", "striped"], p=[0.6, 0.2, 0.2])
    if kind == "washed out":
        return rng.uniform(0.35, 0.6) + 0.18 * image
    if kind == "striped":
        rows = np.repeat(rng.uniform(-0.4, 0.4, size[0] // 8 + 1), 8)[: size[0]].astype(np.float32)
        return 0.5 * image + 0.2 + rows.reshape(-1, *[1] * (image.ndim - 1))
    if modality is Modality.RGB:
        return rng.uniform(0.08, 0.2) * image
    if modality is Modality.NI:
        return 0.5 * image + 1.2 * glare(rng, size, (0.25, 0.40))
    hot = rng.uniform(0.60, 0.80) + 0.06 * noise(rng, size)
    return np.where(mask, 0.6 + 0.4 * (image - 0.5), hot)


def glare(rng: np.random.Generator, size: tuple[int, int], radius: tuple[float, float]) -> np.ndarray:
    """A spot of light from 1 in its middle to 0, (H, W); its radius is a share of the height."""
    rows = np.linspace(0.0, 1.0, size[0], dtype=np.float32)[:, None] - rng.uniform(0.1, 0.8)
    columns = np.linspace(-0.25, 0.25, size[1], dtype=np.float32)[None, :] - rng.uniform(-0.2, 0.2)
    return np.exp(-(rows**2 + columns**2) / rng.uniform(*radius) ** 2)


def develop(image: np.ndarray, modality: Modality) -> np.ndarray:
    """The bytes as they are stored: heat through the palette, (H, W, 3); the others as they are."""
    return colour_of_heat(image.astype(np.float32) / 255.0) if modality is Modality.TI else image
