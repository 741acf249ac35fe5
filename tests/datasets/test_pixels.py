"""Every pixel format that JPEG and PNG files have, read from disk as the data set reads it."""

import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.check import check_file, count_pixel_formats
from datasets.dataset import DatasetError, Scan, read_images
from datasets.pixels import convert_to
from structures import ImageRecord, PerModality

RED, GREEN = (200, 10, 20), (0, 180, 40)


def record_of(path: Path) -> ImageRecord:
    return ImageRecord(PerModality(path, path, path), person_id=0, camera_id=0)


def pixels_of(path: Path) -> np.ndarray:
    image = read_images(record_of(path)).rgb
    assert image is not None
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.fixture
def png(tmp_path: Path) -> Path:
    return tmp_path / "image.png"


def test_16_bit_grey_keeps_its_range(png: Path) -> None:
    """By hand: 128 / 257 rounds to 0, 129 / 257 to 1, 32768 / 257 = 127.502 to 128."""
    values = np.array([[0, 128, 129, 257], [32767, 32768, 65406, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(png)
    expected = [[0, 0, 1, 1], [127, 128, 254, 255]]
    for channel in range(3):
        assert pixels_of(png)[..., channel].tolist() == expected
    with Image.open(png) as image:
        assert np.asarray(convert_to(image, "L")).tolist() == expected, "masks are read so"
    assert check_file(png).pixels == "16-bit grey"


def test_16_bit_grey_as_older_versions_of_pillow_read_it() -> None:
    values = np.array([[0, 65535]], dtype=np.int32)
    assert np.asarray(convert_to(Image.fromarray(values), "L")).tolist() == [[0, 255]]


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_8_bit_images_stay_as_they_are(png: Path, mode: str) -> None:
    shape = (6, 4, 3) if mode == "RGB" else (6, 4)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(png)
    assert np.array_equal(pixels_of(png), pixels if mode == "RGB" else np.stack([pixels] * 3, axis=-1))


def save_palette(path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *GREEN])
    image.putpixel((1, 0), 1)
    image.save(path, transparency=bytes([0, 128]))


def save_with_alpha(path: Path) -> None:
    image = Image.new("RGBA", (2, 1), (*RED, 0))
    image.putpixel((1, 0), (*GREEN, 128))
    image.save(path)


def save_grey_with_alpha(path: Path) -> None:
    image = Image.new("LA", (2, 1), (70, 0))
    image.putpixel((1, 0), (90, 255))
    image.save(path)


def save_one_bit(path: Path) -> None:
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    image.save(path)


FORMATS: dict[str, tuple[Callable[[Path], None], list[tuple[int, ...]]]] = {
    "palette": (save_palette, [RED, GREEN]),
    "8-bit colour with alpha": (save_with_alpha, [RED, GREEN]),
    "8-bit grey with alpha": (save_grey_with_alpha, [(70,) * 3, (90,) * 3]),
    "1-bit": (save_one_bit, [(0,) * 3, (255,) * 3]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_other_formats_keep_their_colours_without_transparency(png: Path, name: str) -> None:
    save, expected = FORMATS[name]
    save(png)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [tuple(pixel) for pixel in pixels_of(png)[0].tolist()] == expected
    assert check_file(png).pixels == name


def test_the_image_of_the_caller_keeps_its_transparency(png: Path) -> None:
    save_palette(png)
    with Image.open(png) as image:
        convert_to(image, "RGB")
        assert image.info["transparency"] == bytes([0, 128])


def test_cmyk_is_read_as_colour(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("RGB", (8, 8), (0, 0, 255)).convert("CMYK").save(path)
    assert np.abs(pixels_of(path).astype(int) - (0, 0, 255)).max() <= 2
    assert check_file(path).pixels == "8-bit CMYK"


def test_16_bit_colour_is_told_apart(png: Path) -> None:
    Image.new("RGB", (1, 1), RED).save(png)
    content = bytearray(png.read_bytes())
    assert content[24] == 8, "where check_file looks for the depth"

    # Pillow does not write 16-bit colour, so the file is put together here: one pixel of 6 bytes.
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    data = zlib.compress(b"\0" + struct.pack(">HHH", 65535, 256, 255))
    png.write_bytes(bytes(content[:8]) + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))
    assert pixels_of(png).tolist() == [[[255, 1, 0]]], "the upper byte"
    assert check_file(png).pixels == "16-bit colour"


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (Image.new("F", (2, 2)), "its pixel format F is not supported"),
        (Image.new("I", (2, 2), 65536), "it has more than 16 bits per pixel"),
    ],
)
def test_other_depths_are_refused(
    png: Path, image: Image.Image, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No JPEG or PNG file has them; if a version of Pillow reads one so, it must not be clipped."""
    png.write_bytes(b"anything")
    monkeypatch.setattr(Image, "open", lambda *_, **__: image.copy())
    with pytest.raises(DatasetError, match=rf"cannot read the RGB image .*image.png \({reason}; save"):
        read_images(record_of(png))
    problem = check_file(png).problem
    assert problem is not None
    assert problem[0] == "unreadable"
    assert reason in problem[1]


def upright() -> np.ndarray:
    """2 x 3 pixels, all different."""
    return np.arange(6, dtype=np.uint8).reshape(2, 3) * 40


STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a),  # the camera was turned; the viewer turns the picture clockwise
    7: lambda a: a[::-1, ::-1].T,
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("flag", STORED)
def test_rotated_photographs_are_upright(png: Path, flag: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = flag
    Image.fromarray(np.ascontiguousarray(STORED[flag](upright()))).save(png, exif=exif)
    assert np.array_equal(pixels_of(png)[..., 0], upright())
    assert check_file(png).size == (2, 3)
    assert check_file(png).turned == (flag != 1)


def test_damaged_exif_data_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("L", (8, 16), 90).save(path, exif=b"Exif\0\0no header of TIFF")
    assert pixels_of(path).shape == (16, 8, 3)
    assert not check_file(path).turned


def test_a_rotated_strip_is_cut_when_it_is_upright(png: Path) -> None:
    strip = np.repeat(np.array([10, 20, 30], dtype=np.uint8), 4)[None].repeat(4, axis=0)  # 4 x 12
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.ascontiguousarray(np.rot90(strip))).save(png, exif=exif)
    images = read_images(replace(record_of(png), is_strip=True))
    assert [np.unique(np.asarray(image)).tolist() for image in images] == [[10], [20], [30]]


def test_formats_are_counted_by_modality(tmp_path: Path) -> None:
    colour, near, heat = paths = [tmp_path / f"{name}.png" for name in ("colour", "near", "heat")]
    Image.new("RGB", (2, 2)).save(colour)
    Image.new("L", (2, 2)).save(near)
    Image.fromarray(np.zeros((2, 2), dtype=np.uint16)).save(heat)
    mask = tmp_path / "mask.png"
    save_one_bit(mask)
    record = ImageRecord(PerModality(*paths), person_id=0, camera_id=0, mask_path=mask)
    scan = Scan(tmp_path, "", (record,), (), (), ())
    assert count_pixel_formats(scan, {path: check_file(path) for path in (*paths, mask)}) == {
        "RGB": {"8-bit colour": 1},
        "NI": {"8-bit grey": 1},
        "TI": {"16-bit grey": 1},
        "masks": {"1-bit": 1},
    }
