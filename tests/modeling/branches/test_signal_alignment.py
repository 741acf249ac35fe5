"""GAM and LAM, worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from errors import UserError
from modeling.branches.signal_alignment import (
    GlobalAlignment,
    LocalAlignment,
    PointSampler,
    reference_points,
    sample,
    volumes,
)
from structures import Modality, PerModality


def unit(*values: float) -> list[float]:
    return [value / math.hypot(*values) for value in values]


def test_volume_of_a_box_of_a_slab_and_of_nothing() -> None:
    rgb = torch.tensor([[1.0, 0, 0], [0, 0, 1]])
    ni = torch.tensor([[0.0, 1, 0], [0, 1, 0]])
    ti = torch.tensor([[0.0, 0, 1], unit(0, 1, 1)])
    # Row 0: a cube; a base of 1 x sin 45°. Row 1: rgb is ti of triple 0; it stands in the plane of pair 1.
    expected = torch.tensor([[1.0, math.sqrt(0.5)], [0, 0]])
    torch.testing.assert_close(volumes(PerModality(rgb, ni, ti)), expected, atol=2e-4, rtol=0)


def test_volume_is_the_root_of_the_gram_determinant() -> None:
    torch.manual_seed(0)
    directions = PerModality.build(lambda _: F.normalize(torch.randn(4, 16, dtype=torch.float64), dim=1))
    found = volumes(directions)
    for row in range(4):
        for column in range(4):
            three = torch.stack([directions.rgb[row], directions.ni[column], directions.ti[column]])
            assert found[row, column] == pytest.approx((three @ three.T).det().sqrt().item(), abs=1e-9)


def test_equal_images_have_a_finite_gradient() -> None:
    tokens = torch.randn(3, 8, 16, requires_grad=True)
    module = GlobalAlignment()
    module(module.directions(PerModality(tokens, tokens, tokens))).backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()


def test_gam_by_hand() -> None:
    # Volumes [[1, 0], [0, 1]] / 0.5: the logits of row and column 0 are -2 and 0.
    rgb = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    ni = torch.tensor([[0.0, 1, 0], [1, 0, 0]])
    ti = torch.tensor([[0.0, 0, 1], [0, 0, 1]])
    module = GlobalAlignment()
    torch.nn.init.constant_(module.temperature, 0.5)
    right, wrong = -2 - math.log(math.exp(-2) + 1), 0 - math.log(math.exp(-2) + 1)
    expected = -(0.95 * right + 0.05 * wrong)  # smoothing 0.1 over two columns
    loss = module(torch.stack([rgb, ni, ti], dim=1))
    assert loss.item() == pytest.approx(expected, abs=1e-4)


def test_a_bound_keeps_the_temperature_from_turning_the_loss_around() -> None:
    torch.manual_seed(0)
    directions = F.normalize(torch.randn(4, 3, 16), dim=2)
    losses = {}
    for bound in (0.0, 0.01):
        module = GlobalAlignment(bound)
        torch.nn.init.constant_(module.temperature, -0.01)
        losses[bound] = module(directions)
    at_bound = GlobalAlignment()
    torch.nn.init.constant_(at_bound.temperature, 0.01)
    assert losses[0.01] == at_bound(directions)
    assert losses[0.0] != losses[0.01]


def test_directions_are_those_of_the_mean_patches() -> None:
    patches = PerModality.build(lambda m: torch.tensor([[[3.0, 0], [3, 8]]]) * (1 + len(m.letter)))
    assert torch.allclose(GlobalAlignment.directions(patches), torch.tensor([0.6, 0.8]).expand(1, 3, 2))


def test_reference_points_lie_off_centre() -> None:
    assert reference_points(4).tolist() == pytest.approx([-2 / 3, 0, 2 / 3, 4 / 3])
    assert reference_points(2).tolist() == [0, 2]


def test_sampling_between_patches() -> None:
    image = torch.arange(6.0).view(1, 6, 1)  # rows 0 1 2 and 3 4 5
    y, x = torch.tensor([[-1.0, 1, 0]]), torch.tensor([[-1.0, 1, 0.5]])
    assert sample(image, (2, 3), y, x).flatten().tolist() == [0, 5, 3]  # halfway between 1.5 and 4.5


def test_sampling_and_its_gradient_are_those_of_grid_sample() -> None:
    torch.manual_seed(0)
    patches = torch.randn(2, 32, 5, dtype=torch.float64, requires_grad=True)
    points = (2 * torch.rand(2, 7, 2, dtype=torch.float64) - 1).requires_grad_()

    def plain() -> Tensor:
        image = patches.mT.unflatten(2, (8, 4))
        return F.grid_sample(image, points.flip(2).unsqueeze(1), align_corners=True).squeeze(2).mT

    ours, theirs = sample(patches, (8, 4), points[..., 0], points[..., 1]), plain()
    torch.testing.assert_close(ours, theirs)
    for mine, reference in zip(
        torch.autograd.grad(ours.square().sum(), (patches, points)),
        torch.autograd.grad(theirs.square().sum(), (patches, points)),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference)


def test_one_number_moves_a_point_along_both_axes() -> None:
    sampler = PointSampler(4)
    for parameter in sampler.parameters():
        torch.nn.init.zeros_(parameter)
    y, x = sampler.points(torch.zeros(1, 128, 4), (16, 8))
    assert y[0, :, 0].tolist() == pytest.approx([-2 / 3, 0, 2 / 3, 1])  # the last stops at the border
    assert x[0, 0].tolist() == [0, 1]
    # An offset of -1 before tanh: a step of the rows is 2/3, of the columns 2.
    torch.nn.init.constant_(sampler.get_parameter("offset.2.bias"), 10.0)
    torch.nn.init.constant_(sampler.get_parameter("offset.4.weight"), -1 / 40)
    y, x = sampler.points(torch.zeros(1, 128, 4), (16, 8))
    moved = math.tanh(-1)
    assert y[0, :, 0].tolist() == pytest.approx(
        [max(-1, r + 2 / 3 * moved) for r in (-2 / 3, 0, 2 / 3, 4 / 3)]
    )
    assert x[0, 0].tolist() == pytest.approx([-1, 2 + 2 * moved])


def test_lam_is_zero_for_equal_modalities_and_grows_with_their_distance() -> None:
    torch.manual_seed(0)
    module = LocalAlignment(8, (16, 8))
    state = module.samplers["rgb"].state_dict()
    for modality in Modality:
        module.samplers[modality.key].load_state_dict(state)
    tokens = torch.randn(2, 128, 8)
    assert module(PerModality(tokens, tokens, tokens), (16, 8)).tolist() == [0, 0]
    # Constant images have that value at every point: (1 + 9 + 4) / 3.
    constant = PerModality(*(torch.full((2, 128, 8), value) for value in (0.0, 1.0, 3.0)))
    assert module(constant, (16, 8)).tolist() == pytest.approx([14 / 3] * 2)


def test_a_grid_without_two_cells_along_each_side_is_refused() -> None:
    with pytest.raises(UserError, match=r"the images have 8 x 4 patches; .* SIGNAL.LAM_WEIGHT to 0"):
        LocalAlignment(8, (8, 4))
    assert len(LocalAlignment(8, (8, 8)).samplers) == 3
