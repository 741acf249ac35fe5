from __future__ import annotations

import pytest
import torch
from torch import Tensor

from errors import UserError
from modeling.branches.demo import ATMoE

BATCH, FEATURES, DIM, HEADS = 5, 7, 16, 4
WIDTH = DIM // HEADS


@pytest.fixture
def features() -> Tensor:
    return torch.randn(BATCH, FEATURES, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> ATMoE:
    """An ATMoE whose BatchNorms have seen something, so that they are not the identity."""
    torch.manual_seed(0)
    model = ATMoE(DIM, num_features=FEATURES, num_heads=HEADS).train()
    model(3 * torch.randn(32, FEATURES, DIM) + 1)
    return model.eval()


def naive_gates(model: ATMoE, features: Tensor) -> Tensor:
    gates = torch.zeros(BATCH, HEADS, FEATURES)
    queries = model.to_query(model.summary(torch.cat([features[:, e] for e in range(FEATURES)], dim=1)))
    for h in range(HEADS):
        channels = slice(h * WIDTH, (h + 1) * WIDTH)
        for e in range(FEATURES):
            key = model.to_key(features[:, e])
            gates[:, h, e] = (queries[:, channels] * key[:, channels]).sum(dim=1) / WIDTH**0.5
    return gates.softmax(dim=2)


def test_gates_sum_to_one_over_the_features(model: ATMoE, features: Tensor) -> None:
    gates = model.gates(features)
    assert gates.shape == (BATCH, HEADS, FEATURES)
    torch.testing.assert_close(gates.sum(dim=-1), torch.ones(BATCH, HEADS))


def test_equals_a_naive_loop(model: ATMoE, features: Tensor) -> None:
    gates = naive_gates(model, features)
    torch.testing.assert_close(model.gates(features), gates)
    expected = torch.zeros(BATCH, FEATURES * DIM)
    for e in range(FEATURES):
        for h in range(HEADS):
            chunk = features[:, e, h * WIDTH : (h + 1) * WIDTH]
            start = e * DIM + h * WIDTH
            answer = model.experts[f"head{h}_feature{e}"](chunk)
            expected[:, start : start + WIDTH] = gates[:, h, e].unsqueeze(1) * answer
    torch.testing.assert_close(model(features), expected)


def test_each_expert_is_used_once(model: ATMoE, features: Tensor) -> None:
    assert len(model.experts) == FEATURES * HEADS
    model(features).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_queries_and_keys_have_no_bias(model: ATMoE) -> None:
    assert model.to_query.bias is None
    assert model.to_key.bias is None


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(
        UserError, match=r"MODEL.HEAD \(3\) must divide the token width of the backbone \(16\)"
    ):
        ATMoE(16, num_features=7, num_heads=3)
