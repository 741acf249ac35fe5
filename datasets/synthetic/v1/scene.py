"""The cameras of the synthetic data set, and what stands between a person and an image.

One triple is: the camera's background, clutter at other places in each modality, the person, sometimes an
occluder in front, the camera's response, sometimes one spoiled modality, noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from datasets.synthetic.spec import Triple
from datasets.synthetic.v1.body import Pose, pose_body
from datasets.synthetic.v1.person import LOWER_COLOURS, UPPER_COLOURS, Person, jittered_choice
from structures import Modality, PerModality

_CHANNELS = PerModality(rgb=3, ni=1, ti=1)
_LIGHT = PerModality(rgb=0.2, ni=0.2, ti=0.1)
_NOISE = PerModality(rgb=0.03, ni=0.03, ti=0.02)
_GARMENT_COLOURS = np.concatenate([UPPER_COLOURS, LOWER_COLOURS])


def _garment_value(rng: np.random.Generator, modality: Modality) -> np.ndarray:
    """A value that a garment could have in `modality`, (channels,): clutter must not be told by its value."""
    if modality is Modality.RGB:
        return jittered_choice(rng, _GARMENT_COLOURS)
    low, high = (0.12, 0.92) if modality is Modality.NI else (0.25, 0.80)
    return rng.uniform(low, high, 1)


def _box(rng: np.random.Generator, size: tuple[int, int]) -> tuple[slice, slice]:
    """The rows and columns of a box of random size, partly outside the image at times."""
    height, width = size
    box_height, box_width = rng.uniform(0.12, 0.35) * height, rng.uniform(0.15, 0.40) * width
    middle_row, middle_column = rng.uniform(0.0, height), rng.uniform(0.0, width)
    top, left = max(0, round(middle_row - box_height / 2)), max(0, round(middle_column - box_width / 2))
    return slice(top, round(middle_row + box_height / 2)), slice(left, round(middle_column + box_width / 2))


def _smooth_field(rng: np.random.Generator, size: tuple[int, int], cells: tuple[int, int]) -> np.ndarray:
    """Smooth random values in [-1, 1], (H, W); `cells` are the rows and columns of independent values."""
    coarse = Image.fromarray(rng.uniform(-1.0, 1.0, cells).astype(np.float32))
    return np.asarray(coarse.resize((size[1], size[0]), Image.Resampling.BILINEAR))


@dataclass(frozen=True)
class Camera:
    """One camera.

    Attributes:
        backgrounds: what stands behind everybody, each (H, W, channels).
        gains: factor on each channel, each (channels,): the colour cast in RGB.
        gammas: exponent of the response.
    """

    backgrounds: PerModality[np.ndarray]
    gains: PerModality[np.ndarray]
    gammas: PerModality[float]

    @staticmethod
    def draw(rng: np.random.Generator, size: tuple[int, int]) -> Camera:
        """A new camera with images of `size` (height, width)."""
        boxes = [_box(rng, size) for _ in range(4)]

        def background(modality: Modality) -> np.ndarray:
            low, high = (0.15, 0.35) if modality is Modality.TI else (0.3, 0.7)
            top, bottom = rng.uniform(low, high, (2, 1, 1, _CHANNELS.of(modality)))
            slope = np.linspace(0.0, 1.0, size[0])[:, None, None]
            image = np.repeat(top + (bottom - top) * slope, size[1], axis=1)
            image += 0.12 * _smooth_field(rng, size, (8, 4))[..., None]
            for rows, columns in boxes:
                image[rows, columns] = _garment_value(rng, modality)
            return image.astype(np.float32)

        return Camera(
            backgrounds=PerModality.build(background),
            gains=_CHANNELS.map(lambda channels: rng.uniform(0.9, 1.1, channels)),
            gammas=_CHANNELS.map(lambda _: rng.uniform(0.87, 1.15)),
        )


def draw_triple(
    rng: np.random.Generator,
    person: Person,
    camera: Camera,
    *,
    clutter_boxes: int,
    occluder_share: float,
    spoiled_share: float,
) -> Triple:
    """Draw a person as a camera sees it once.

    Clutter, occluder and spoiling each have a source of chance of their own, so that more of one leaves the
    others as they were.

    Args:
        rng: the sample's own source of chance.
        person: who.
        camera: where; it also gives the size.
        clutter_boxes: boxes behind the person, for each modality at other places.
        occluder_share: probability of an occluder, the same one in all modalities.
        spoiled_share: probability that one modality is spoiled.
    """
    height, width = camera.backgrounds.ni.shape[:2]
    size = (height, width)
    pose_rng, clutter_rng, occluder_rng, spoil_rng, exposure_rng = rng.spawn(5)
    body = pose_body(person.build, Pose.draw(pose_rng), size)
    mask = body.mask
    occluder = _occluder(occluder_rng, size) if occluder_rng.random() < occluder_share else None
    if occluder is not None:
        mask[occluder] = False
    spoiled = list(Modality)[spoil_rng.integers(3)] if spoil_rng.random() < spoiled_share else None

    def expose(modality: Modality) -> np.ndarray:
        image = camera.backgrounds.of(modality).copy()
        for _ in range(clutter_boxes):
            image[_box(clutter_rng, size)] = _garment_value(clutter_rng, modality)
        image[mask] = person.surfaces.of(modality).paint(body)[mask]
        if occluder is not None:
            image[occluder] = _garment_value(occluder_rng, modality)
        light = 1.0 + _LIGHT.of(modality) * exposure_rng.uniform(-1.0, 1.0)
        image = (light * camera.gains.of(modality) * image) ** camera.gammas.of(modality)
        if modality is spoiled:
            image = _spoil(spoil_rng, image.clip(0.0, 1.0), modality, mask)
        image = image + _NOISE.of(modality) * exposure_rng.standard_normal(image.shape, dtype=np.float32)
        levels = np.rint(255.0 * image.clip(0.0, 1.0)).astype(np.uint8)
        return levels if modality is Modality.RGB else levels[..., 0]

    return Triple(PerModality.build(expose), mask)


def _occluder(rng: np.random.Generator, size: tuple[int, int]) -> tuple[slice, slice]:
    """The rows and columns of something in front of the person, standing on the lower edge or at one side."""
    height, width = size
    if rng.random() < 0.5:
        return slice(round(rng.uniform(0.65, 0.85) * height), height), slice(0, width)
    reach = round(rng.uniform(0.30, 0.45) * width)
    columns = slice(0, reach) if rng.random() < 0.5 else slice(width - reach, width)
    return slice(round(rng.uniform(0.0, 0.5) * height), height), columns


def _spoil(rng: np.random.Generator, image: np.ndarray, modality: Modality, mask: np.ndarray) -> np.ndarray:
    """Hide most of `image` (H, W, channels), in one of the ways in which its sensor fails."""
    size = (image.shape[0], image.shape[1])
    kind = rng.choice(["typical", "washed out", "striped"], p=[0.6, 0.2, 0.2])
    if kind == "washed out":
        return rng.uniform(0.6, 0.8) + 0.12 * image
    if kind == "striped":
        stripes = np.repeat(rng.uniform(-0.6, 0.6, (size[0] + 3) // 4), 4)[: size[0]]
        return 0.4 * image + 0.3 + stripes[:, None, None]
    if modality is Modality.RGB:
        return rng.uniform(0.05, 0.12) * image
    if modality is Modality.NI:
        rows = np.linspace(0.0, 1.0, size[0])[:, None] - rng.uniform(0.2, 0.6)
        columns = np.linspace(-0.25, 0.25, size[1])[None, :] - rng.uniform(-0.15, 0.15)
        glare = np.exp(-(rows**2 + columns**2) / rng.uniform(0.25, 0.40) ** 2)
        return 0.5 * image + 1.2 * glare[..., None]
    hot = rng.uniform(0.65, 0.85) + 0.15 * _smooth_field(rng, size, (8, 4))[..., None]
    return np.where(mask[..., None], 0.65 + 0.35 * (image - 0.5), hot)
