from __future__ import annotations

import pytest
import torch

from modeling.heads import BNNeckHead
from modeling.layers import QuickGELU
from structures import Role


def test_features_pass_and_the_neck_normalises_them() -> None:
    head = BNNeckHead("ori", 12, 5, role=Role.ORIGINAL).train()
    features = 3 * torch.randn(64, 12, generator=torch.Generator().manual_seed(0)) + 2
    output = head(features)
    assert (output.name, output.role) == ("ori", Role.ORIGINAL)
    assert torch.equal(output.features, features)
    torch.testing.assert_close(output.neck_features.mean(dim=0), torch.zeros(12), atol=1e-5, rtol=0)
    torch.testing.assert_close(output.neck_features.std(dim=0, correction=0), torch.ones(12))
    torch.testing.assert_close(output.logits, output.neck_features @ head.classifier.weight.T)


def test_bias_of_the_neck_is_zero_and_frozen() -> None:
    head = BNNeckHead("ori", 12, 5, role=Role.ORIGINAL)
    assert head.neck.bias.eq(0).all()
    assert [name for name, p in head.named_parameters() if not p.requires_grad] == ["neck.bias"]
    assert head.classifier.bias is None


def test_classifier_starts_small() -> None:
    torch.manual_seed(0)
    weight = BNNeckHead("moe", 512, 200, role=Role.FUSED).classifier.weight
    assert weight.std().item() == pytest.approx(0.001, rel=0.02)


def test_quick_gelu_by_hand() -> None:
    # sigmoid(1.702 x) is 3/4 at x = ln 3 / 1.702.
    x = torch.tensor(3.0).log() / 1.702
    torch.testing.assert_close(QuickGELU()(torch.stack([x, -x])), torch.stack([0.75 * x, -0.25 * x]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_quick_gelu_and_its_gradient_are_those_of_the_formula(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    x = torch.cat([3 * torch.randn(500), torch.tensor([-200.0, -30.0, 0.0, 30.0, 200.0])]).to(dtype)
    weights = torch.randn(len(x)).to(dtype)
    results, gradients = [], []
    for way in (QuickGELU(), lambda x: x * (1.702 * x).sigmoid()):
        leaf = x.clone().requires_grad_()
        result = way(leaf)
        (gradient,) = torch.autograd.grad(result, leaf, weights)
        results.append(result.detach())
        gradients.append(gradient)
    assert torch.equal(*results), "bit for bit"
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)


def test_gradient_of_quick_gelu_by_finite_differences() -> None:
    x = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(QuickGELU(), (x,))
