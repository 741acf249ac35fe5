from __future__ import annotations

import pytest
import torch

from modeling.heads import BNNeckHead
from structures import Role


def test_features_pass_and_the_neck_normalises_them() -> None:
    head = BNNeckHead(12, 5).train()
    features = 3 * torch.randn(64, 12, generator=torch.Generator().manual_seed(0)) + 2
    output = head(features, "ori", Role.ORIGINAL)
    assert (output.name, output.role) == ("ori", Role.ORIGINAL)
    assert torch.equal(output.features, features)
    torch.testing.assert_close(output.neck_features.mean(dim=0), torch.zeros(12), atol=1e-5, rtol=0)
    torch.testing.assert_close(output.neck_features.std(dim=0, correction=0), torch.ones(12))
    torch.testing.assert_close(output.logits, output.neck_features @ head.classifier.weight.T)


def test_bias_of_the_neck_is_zero_and_frozen_unless_it_is_to_learn() -> None:
    head = BNNeckHead(12, 5)
    assert head.neck.bias.eq(0).all()
    assert [name for name, p in head.named_parameters() if not p.requires_grad] == ["neck.bias"]
    assert head.classifier.bias is None
    assert BNNeckHead(12, 5, train_neck_bias=True).neck.bias.requires_grad


def test_classifier_starts_small() -> None:
    torch.manual_seed(0)
    weight = BNNeckHead(512, 200).classifier.weight
    assert weight.std().item() == pytest.approx(0.001, rel=0.02)
