from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.baselines import PlainHDM
from errors import UserError
from modeling.branches.demo import HDM, SUBSETS
from structures import Modality, PerModality


def random_tokens(
    batch: int = 2, patches: int = 6, dim: int = 128
) -> tuple[PerModality[Tensor], PerModality[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return (
        PerModality.build(lambda m: torch.randn(batch, dim, generator=generator)),
        PerModality.build(lambda m: torch.randn(batch, patches, dim, generator=generator)),
    )


def test_order_of_the_subsets() -> None:
    assert list(SUBSETS) == ["r", "n", "t", "rn", "rt", "nt", "rnt"]
    assert SUBSETS["rt"] == (Modality.RGB, Modality.TI)


@pytest.fixture
def both_ways() -> tuple[HDM, PlainHDM]:
    torch.manual_seed(0)
    hdm = HDM(128, dropout=0.3)
    for name, parameter in hdm.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    assert {(part.num_heads, part.dropout) for part in hdm.attentions.values()} == {(2, 0.3)}
    return hdm, PlainHDM(hdm)


@pytest.mark.parametrize("training", [False, True])
def test_features_and_gradients_equal_those_of_torchs_attention(
    both_ways: tuple[HDM, PlainHDM], training: bool
) -> None:
    """Also in training, where dropout must draw the same random numbers."""
    outputs, token_gradients = [], []
    for model in both_ways:
        globals_, patches = random_tokens()
        for tensor in (*globals_, *patches):
            tensor.requires_grad_()
        torch.manual_seed(1)
        output = model.train(training)(globals_, patches)
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        outputs.append(output)
        token_gradients.append([tensor.grad for tensor in (*globals_, *patches)])
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(token_gradients[0], token_gradients[1])

    hdm, plain = both_ways
    for name in SUBSETS:
        ours = dict(hdm.attentions[name].named_parameters())
        theirs = {"query": plain.queries[name], **dict(plain.attentions[name].named_parameters())}
        for key, parameter in ours.items():
            expected = theirs[key.replace("in_proj.", "in_proj_")].grad
            torch.testing.assert_close(parameter.grad, expected, msg=f"gradient of {key}")
        bias_gradient = ours["in_proj.bias"].grad
        assert bias_gradient is not None
        assert not bias_gradient.chunk(3)[
            1
        ].any()  # of the keys; rounding noise in torch, which Adam blows up


def test_modalities_may_have_different_numbers_of_tokens(both_ways: tuple[HDM, PlainHDM]) -> None:
    globals_, patches = random_tokens()
    uneven = PerModality(patches.rgb, patches.ni[:, :4], patches.ti[:, :1])
    ours, expected = (model.eval()(globals_, uneven) for model in both_ways)
    torch.testing.assert_close(ours, expected)


def test_initial_query_has_unit_length_on_average() -> None:
    torch.manual_seed(0)
    queries = torch.stack([p for name, p in HDM(512).named_parameters() if name.endswith("query")])
    assert queries.norm(dim=-1).mean().item() == pytest.approx(1.0, abs=0.05)


def test_dropout_acts_in_training_only() -> None:
    hdm = HDM(64, dropout=0.5)
    tokens = random_tokens(dim=64)
    assert not torch.equal(hdm(*tokens), hdm(*tokens))
    hdm.eval()
    assert torch.equal(hdm(*tokens), hdm(*tokens))


@pytest.mark.parametrize("modality", Modality)
@pytest.mark.parametrize("part", ["global", "patches"])
def test_each_feature_depends_on_its_subset_alone(modality: Modality, part: str) -> None:
    hdm = HDM(128).eval()
    globals_, patches = random_tokens()
    before = hdm(globals_, patches)

    def disturb(tokens: PerModality[Tensor]) -> PerModality[Tensor]:
        return PerModality.build(lambda m: tokens.of(m) + (m is modality))

    after = hdm(disturb(globals_), patches) if part == "global" else hdm(globals_, disturb(patches))
    changed = [
        name for index, name in enumerate(SUBSETS) if not torch.equal(before[:, index], after[:, index])
    ]
    assert changed == [name for name in SUBSETS if modality.letter in name]


def test_width_must_be_a_multiple_of_the_head_width() -> None:
    with pytest.raises(UserError, match="multiple of 64, but that of this backbone is 96"):
        HDM(96)
