"""Pictures of patches, by hand on images of one colour."""

import pytest
import torch
from matplotlib import colormaps

from reporting.pictures import (
    ATTENTION_STRENGTH,
    TOKEN_STRENGTH,
    VEIL,
    VEIL_STRENGTH,
    attention_maps,
    colour_by_token,
    denormalise,
    selection_maps,
    spread_over_pixels,
    strongest_token,
    token_colours,
    veil_discarded,
    without_absent,
)
from structures import PerModality, Selection

GRID = (2, 3)
SIZE = (4, 6)  # two by two pixels for each patch


def test_denormalise_undoes_the_normalisation() -> None:
    images = torch.rand(2, 3, 4, 4)
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.4, 0.3]
    normalised = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(denormalise(normalised, mean, std), images)


def test_each_pixel_has_the_value_of_its_patch() -> None:
    pixels = spread_over_pixels(torch.arange(6.0)[None], GRID, torch.empty(1, 3, *SIZE))
    expected = [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5], [3, 3, 4, 4, 5, 5]]
    assert pixels[0, 0].tolist() == expected


def test_kept_patches_stay_and_others_are_veiled() -> None:
    images = torch.rand(1, 3, *SIZE)
    veiled = veil_discarded(images, torch.tensor([[True, False, False, False, False, True]]), GRID)
    assert torch.equal(veiled[..., :2, :2], images[..., :2, :2])
    assert torch.equal(veiled[..., 2:, 4:], images[..., 2:, 4:])
    one_pixel = VEIL_STRENGTH * torch.tensor(VEIL) + (1 - VEIL_STRENGTH) * images[0, :, 0, 2]
    torch.testing.assert_close(veiled[0, :, 0, 2], one_pixel)


def test_strongest_token_by_hand() -> None:
    kept = torch.tensor([[1, 4]])
    weights = torch.tensor([[[0.7, 0.3], [0.1, 0.9], [0.8, 0.2]]])  # three tokens, each of two patches
    assert strongest_token(kept, weights, 6).tolist() == [[-1, 2, -1, -1, 1, -1]]


def test_patches_have_the_colour_of_their_token_and_the_others_fade() -> None:
    images = torch.full((1, 3, *SIZE), 0.5)
    coloured = colour_by_token(images, torch.tensor([[0, 0, 1, -1, -1, -1]]), GRID)
    first, second = token_colours(2)
    torch.testing.assert_close(coloured[0, :, 0, 3], TOKEN_STRENGTH * first + (1 - TOKEN_STRENGTH) * 0.5)
    torch.testing.assert_close(coloured[0, :, 0, 5], TOKEN_STRENGTH * second + (1 - TOKEN_STRENGTH) * 0.5)
    torch.testing.assert_close(coloured[0, :, 3, 3], torch.full((3,), TOKEN_STRENGTH + 0.1))


def test_colours_of_tokens_can_be_told_apart() -> None:
    colours = token_colours(25)
    distances = torch.cdist(colours, colours) + torch.eye(25)
    assert distances.min() > 0.08
    assert ((colours >= 0) & (colours <= 1)).all()
    assert (colours.amin(dim=1) < 0.5).all()  # none is taken for the white of a discarded patch


@pytest.fixture
def images() -> PerModality[torch.Tensor]:
    torch.manual_seed(0)
    return PerModality.build(lambda _: torch.rand(2, 3, *SIZE))


def test_scores_have_one_scale_for_all_images(images: PerModality[torch.Tensor]) -> None:
    scores = PerModality.build(lambda _: torch.full((2, 6), 0.5))
    scores.rgb[1, 2], scores.ti[0, 3] = 0.25, 1.25
    kept = PerModality.build(lambda _: torch.tensor([[0, 1]] * 2))
    weights = PerModality.build(lambda _: torch.rand(2, 3, 2))
    maps = selection_maps(images, Selection(kept, scores, GRID, weights=weights))
    assert maps.pictures.shape == (2, 3, 4, *SIZE, 3)
    assert maps.ends == ("0.25", "1.25")
    index = maps.views.index("score")
    colour_map = colormaps[maps.colours]
    assert maps.pictures[1, 0, index, 0, 4].tolist() == pytest.approx(colour_map(0.0)[:3])
    assert maps.pictures[0, 2, index, 3, 0].tolist() == pytest.approx(colour_map(1.0)[:3])
    assert maps.pictures[0, 1, index, 0, 0].tolist() == pytest.approx(colour_map(0.25)[:3])
    assert (maps.pictures[1, 2, 0] == images.ti[1].permute(1, 2, 0).numpy()).all()


def test_attention_goes_from_the_least_to_the_most_of_each_image(images: PerModality[torch.Tensor]) -> None:
    shares = torch.tensor([[0.0, 0.0, 0.1, 0.0, 0.0, 0.0], [0.2, 0.3, 0.3, 0.3, 0.3, 0.4]])
    maps = attention_maps(images, PerModality(shares, shares, shares), GRID)
    assert maps.pictures.shape == (2, 3, 2, *SIZE, 3)
    corner = torch.tensor(colormaps[maps.colours](1.0)[:3])
    own = images.ni[0, :, 0, 5]
    expected = ATTENTION_STRENGTH * corner + (1 - ATTENTION_STRENGTH) * own
    assert maps.pictures[0, 1, 1, 0, 5].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_absent_image_and_its_maps_are_white(images: PerModality[torch.Tensor]) -> None:
    shares = torch.rand(2, GRID[0] * GRID[1])
    maps = attention_maps(images, PerModality(shares, shares, shares), GRID)
    present = PerModality(*torch.tensor([[True, True], [True, False], [True, True]]))
    shown = without_absent(maps, present).pictures
    assert (shown[1, 1] == 1).all()
    expected = maps.pictures.copy()
    expected[1, 1] = 1
    assert (shown == expected).all()


def test_equal_attention_is_drawn_without_a_division_by_zero(images: PerModality[torch.Tensor]) -> None:
    shares = torch.full((2, 6), 0.1)
    maps = attention_maps(images, PerModality(shares, shares, shares), GRID)
    assert torch.from_numpy(maps.pictures).isfinite().all()
