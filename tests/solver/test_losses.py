from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from solver.losses import ReIDLoss, batch_hard_triplet
from structures import HeadOutput, ModelOutput, Role

LINE = torch.tensor([[0.0], [1.0], [4.0], [6.0]])
LINE_IDS = torch.tensor([0, 0, 1, 1])
# Anchors at 0, 1, 4, 6: hardest positives 1, 1, 2, 2; hardest negatives 4, 3, 3, 5.
LINE_GAPS = (-3.0, -2.0, -1.0, -3.0)


def make_output(seed: int = 0, **losses: Tensor) -> ModelOutput:
    generator = torch.Generator().manual_seed(seed)

    def head(name: str, role: Role) -> HeadOutput:
        features = torch.randn(8, 6, generator=generator)
        return HeadOutput(name, torch.randn(8, 4, generator=generator), features, features, role)

    return ModelOutput((head("ori", Role.ORIGINAL), head("sdtps", Role.FUSED)), losses=losses)


IDS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def test_triplet_by_hand() -> None:
    soft = sum(math.log(1 + math.exp(gap)) for gap in LINE_GAPS) / 4
    assert batch_hard_triplet(LINE, LINE_IDS, None).item() == pytest.approx(soft)
    # Margin 2.5: 0, 0.5, 1.5, 0.
    assert batch_hard_triplet(LINE, LINE_IDS, 2.5).item() == pytest.approx(0.5)


def test_triplet_does_not_depend_on_the_order_of_the_batch() -> None:
    features = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(4).repeat_interleave(4)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    shuffled = batch_hard_triplet(features[order], ids[order], None)
    assert shuffled.item() == pytest.approx(batch_hard_triplet(features, ids, None).item(), rel=1e-6)


def test_triplet_pulls_the_farthest_positive_and_pushes_the_nearest_negative() -> None:
    features = LINE.clone().requires_grad_()
    batch_hard_triplet(features, LINE_IDS, 10.0).backward()
    assert features.grad is not None
    # Gradient of d_ap - d_an: (0, 1, -1, 0), (-1, 2, -1, 0), (0, 1, -2, 1), (0, 1, -1, 0); then the mean.
    assert features.grad[:, 0].tolist() == pytest.approx([-0.25, 1.25, -1.25, 0.25], abs=1e-5)


@pytest.mark.parametrize("margin", [None, 0.3])
@pytest.mark.parametrize("value", [0.0, 1.7])  # squared distances of exactly zero, and zero up to rounding
def test_identical_features_have_a_finite_gradient(value: float, margin: float | None) -> None:
    features = torch.full((8, 64), value, requires_grad=True)
    loss = batch_hard_triplet(features, IDS, margin)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2) if margin is None else margin, abs=1e-2)
    assert features.grad is not None
    assert features.grad.isfinite().all()


def test_triplet_is_computed_in_float32_under_autocast() -> None:
    # Squares of 300 and more overflow in float16; in bfloat16 they keep two digits.
    features = 300 + LINE
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = batch_hard_triplet(features, LINE_IDS, 2.5)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(0.5, abs=1e-2)
    assert batch_hard_triplet(features.half(), LINE_IDS, 2.5).item() == pytest.approx(0.5, abs=1e-2)


def test_a_lone_image_is_its_own_positive() -> None:
    # Anchor at 3 has no partner: distance 0 to itself, 2 to the nearest other.
    loss = batch_hard_triplet(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1]), 3.0)
    assert loss.item() == pytest.approx(((1 - 3 + 3) + (1 - 2 + 3) + (0 - 2 + 3)) / 3, abs=1e-5)


@pytest.mark.parametrize("margin", [None, 0.3])
def test_one_identity_alone_has_no_loss_that_training_accepts(margin: float | None) -> None:
    assert batch_hard_triplet(LINE, torch.zeros(4, dtype=torch.long), margin).isnan()


def test_label_smoothing_is_a_mixture_with_the_uniform_target() -> None:
    output = make_output()
    logits = output.heads[0].logits
    target = 0.9 * F.one_hot(IDS, 4) + 0.1 / 4
    by_hand = -(target * logits.log_softmax(dim=1)).sum(dim=1).mean()
    criterion = ReIDLoss(id_weight=1.0, triplet_weight=1.0, label_smoothing=0.1, margin=None)
    assert criterion(output, IDS)["ori/id"].item() == pytest.approx(by_hand.item(), rel=1e-6)


def test_losses_are_named_and_weighted() -> None:
    output = make_output(ratio=torch.tensor(0.125))
    plain = ReIDLoss(id_weight=1.0, triplet_weight=1.0, label_smoothing=0.0, margin=0.3)(output, IDS)
    weighted = ReIDLoss(
        id_weight=0.25, triplet_weight=2.0, label_smoothing=0.0, margin=0.3, head_weights={"sdtps": 3.0}
    )(output, IDS)
    factors = {"ori/id": 0.25, "ori/triplet": 2.0, "sdtps/id": 0.75, "sdtps/triplet": 6.0, "ratio": 1.0}
    assert list(weighted) == list(factors)
    for name, factor in factors.items():
        assert weighted[name].item() == pytest.approx(factor * plain[name].item(), rel=1e-6)
    by_hand = batch_hard_triplet(output.heads[1].features, IDS, 0.3)
    assert plain["sdtps/triplet"].item() == by_hand.item()


def test_a_weight_for_a_missing_head_is_refused() -> None:
    criterion = ReIDLoss(
        id_weight=1.0, triplet_weight=1.0, label_smoothing=0.0, margin=None, head_weights={"moe": 1.0}
    )
    with pytest.raises(ValueError, match=r"\['moe'\].*choose from \['ori', 'sdtps'\]"):
        criterion(make_output(), IDS)
