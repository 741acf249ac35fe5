"""Figures of images worked by hand."""

import numpy as np
import pytest

from datasets.statistics import (
    OCTAVES,
    Percentiles,
    SetFigures,
    compare,
    describe_image,
    describe_placement,
    describe_set,
)


def test_a_flat_grey_image() -> None:
    figures = describe_image(np.full((256, 128), 51, np.uint8))
    assert figures.brightness == pytest.approx(0.2, abs=1e-6)
    assert figures.contrast == pytest.approx(0.0, abs=1e-6)
    assert (figures.saturation, figures.sharpness) == (0.0, pytest.approx(0.0, abs=1e-6))


def test_colour_counts_by_luminance_and_by_its_largest_difference() -> None:
    figures = describe_image(np.full((256, 128, 3), [255, 0, 51], np.uint8))
    assert figures.brightness == pytest.approx(0.299 + 0.2 * 0.114, abs=1e-5)
    assert figures.saturation == pytest.approx(1.0)


def test_sharpness_of_stripes() -> None:
    """Columns of 0 and 1 in turn: the Laplacian is +2 and -2, its variance 4."""
    stripes = np.tile(np.array([0, 255], np.uint8), (256, 64))
    assert describe_image(stripes).sharpness == pytest.approx(4e4, rel=1e-4)


@pytest.mark.parametrize(("cycles", "octave"), [(8, 1), (20, 2), (80, 4)])
def test_a_wave_has_its_power_in_its_octave(cycles: int, octave: int) -> None:
    """A weak wave beside a strong one of 5 cycles in 256 pixels, in the first octave."""
    rows = np.arange(256)
    wave = 0.3 * np.sin(2 * np.pi * 5 * rows / 256) + 0.15 * np.sin(2 * np.pi * cycles * rows / 256)
    image = np.repeat(np.rint(255 * (0.5 + wave))[:, None], 128, axis=1).astype(np.uint8)
    power = describe_image(image).octaves
    assert OCTAVES[octave] <= cycles / 256 < OCTAVES[octave + 1]
    assert power[0] == 1.0
    assert power[1:].argmax() + 1 == octave


def test_sharpness_is_kept_apart_by_camera() -> None:
    flat, stripes = np.zeros((256, 128), np.uint8), np.tile(np.array([0, 255], np.uint8), (256, 64))
    figures = describe_set([("cam1", describe_image(flat)), ("cam2", describe_image(stripes))])
    assert figures.sharpness["cam1"].median == 0.0
    assert figures.sharpness["cam2"].median == pytest.approx(4e4, rel=1e-4)
    assert figures.brightness.median == pytest.approx(0.25, abs=1e-4)


def figures(median: float, power: float) -> SetFigures:
    points = Percentiles(0.9 * median, median, 2.0 * median)
    return SetFigures(points, points, points, {"cam1": points}, (1.0, power, power, power, power))


def test_close_means_inside_the_band_or_within_a_factor_of_one_and_a_half() -> None:
    real = figures(1.0, 0.1)
    for median, close in [(1.0, True), (1.9, True), (2.1, False), (0.7, True), (0.6, False)]:
        rows = {row.what: row.close for row in compare(figures(median, 0.1), real)}
        assert rows["brightness"] is close
        assert rows["sharpness cam1"] is close
        assert rows["power to 0.06"] is True
    assert not any(row.close for row in compare(figures(1.0, 0.2), real) if row.what.startswith("power"))


def test_placement_by_hand() -> None:
    """Two images of 2 x 2 patches: the upper row is on the person in both, one lower patch in one."""
    first, second = np.zeros((4, 4), bool), np.zeros((4, 4), bool)
    first[:2] = second[:2] = True
    second[2:, :2] = True
    placement = describe_placement([first, second], grid=(2, 2))
    assert placement == (5 / 8, 1.0, 1.0)
    moved = describe_placement([first, ~first], grid=(2, 2))
    assert moved == (0.5, 0.5, 1.0)
