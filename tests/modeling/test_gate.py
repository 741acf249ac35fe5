"""The gate of each modality."""

from __future__ import annotations

import torch
from torch import nn

from config import load_config
from conftest import SMALL_MODEL
from modeling.cost import count_multiply_adds
from modeling.gate import ModalityGate
from modeling.make_model import make_model
from structures import Modality, ModalTokens, PerModality


def make_tokens() -> ModalTokens:
    generator = torch.Generator().manual_seed(0)
    globals_ = PerModality.build(lambda _: torch.randn(2, 4, generator=generator))
    patches = PerModality.build(lambda _: torch.randn(2, 6, 4, generator=generator))
    return ModalTokens(globals_, patches, globals_, (3, 2))


def test_gates_are_open_at_first_and_close_by_the_own_tokens() -> None:
    tokens, gate = make_tokens(), ModalityGate(4)
    before = gate(tokens)
    assert torch.equal(before.globals_.ti, tokens.globals_.ti)
    assert torch.equal(before.patches.ni, tokens.patches.ni)
    linear = next(m for m in gate.score["ni"].modules() if isinstance(m, nn.Linear))
    with torch.no_grad():
        linear.bias.fill_(-2.0)  # 2 * sigmoid(-2) = 0.2384
    after = gate(tokens)
    torch.testing.assert_close(after.globals_.ni, 0.238406 * tokens.globals_.ni)
    torch.testing.assert_close(after.patches.ni, 0.238406 * tokens.patches.ni)
    assert torch.equal(after.globals_.rgb, tokens.globals_.rgb)
    assert after.class_tokens is tokens.class_tokens
    with torch.no_grad():
        linear.weight.fill_(1.0)
    gates = gate.gates(tokens)
    assert gates.ni[0] != gates.ni[1], "each image has its own"
    assert gates.rgb.tolist() == [[1.0], [1.0]]


def test_a_gate_in_the_model_learns_and_is_counted() -> None:
    options = ["MODEL.MODALITY_GATE", "True", "INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]"]
    two = (Modality.RGB, Modality.TI)
    model = make_model(load_config(SMALL_MODEL, options), 6, 2, modalities=two)
    assert model.gate is not None
    assert set(model.gate.score) == {"rgb", "ti"}
    assert count_multiply_adds(model)["gate"] > 0
