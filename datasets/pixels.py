"""Decoded images of any pixel format → upright, 8 bits per channel."""

from __future__ import annotations

import numpy as np
from PIL import ExifTags, Image, ImageOps

PIXEL_FORMATS = {
    "1": "1-bit",
    "L": "8-bit grey",
    "LA": "8-bit grey with alpha",
    "P": "palette",
    "RGB": "8-bit colour",
    "RGBA": "8-bit colour with alpha",
    "CMYK": "8-bit CMYK",
    "I": "16-bit grey",  # older versions of Pillow; newer ones say I;16
    "I;16": "16-bit grey",
    "I;16B": "16-bit grey",
}
"""What is read, by Pillow's mode, in words. Of 16-bit colour Pillow keeps the upper byte by itself."""

_MAX_16_BIT = 65535
_STEP = 257  # 65535 / 255


def is_turned(image: Image.Image) -> bool:
    """Whether an EXIF flag says that the image has to be turned or mirrored to be upright."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    except Exception:  # damaged EXIF data raise all kinds of errors; the pixels are whole
        return False


def make_upright(image: Image.Image) -> Image.Image:
    """Turn and mirror the image as its EXIF flag says; without such a flag it is returned as it is."""
    return ImageOps.exif_transpose(image) if is_turned(image) else image


def convert_to(image: Image.Image, mode: str) -> Image.Image:
    """The image as `L` or `RGB` with 8 bits per channel; transparency is left out.

    16-bit grey is divided by 257 and rounded, the same for every image: 0 stays 0 and 65535 becomes 255.

    Raises:
        ValueError: the pixel format is none of `PIXEL_FORMATS`.
    """
    if image.mode == mode:
        return image
    if image.mode not in PIXEL_FORMATS:
        raise ValueError(f"its pixel format {image.mode} is not supported; save it with 8 or 16 bits")
    if PIXEL_FORMATS[image.mode] == "16-bit grey":
        image = _to_eight_bits(image)
    if "transparency" in image.info:
        # Pillow would warn of it in a palette, and `convert` drops it as it should.
        image = image.copy()  # the caller keeps his own
        del image.info["transparency"]
    return image.convert(mode)


def highest_value(image: Image.Image) -> int:
    """Of a grey image."""
    return int(np.asarray(image).max(initial=0))


def _to_eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.uint32)  # 32 bits: the sum below exceeds 16
    if highest_value(image) > _MAX_16_BIT:
        raise ValueError("it has more than 16 bits per pixel; save it with 8 or 16 bits")
    return Image.fromarray(((values + _STEP // 2) // _STEP).astype(np.uint8))
