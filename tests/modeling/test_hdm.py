from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from modeling.hdm import HDM, SUBSETS, QueryAttention
from structures import Modality, PerModality, UserError


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


def test_attention_equals_that_of_torch() -> None:
    torch.manual_seed(0)
    ours = QueryAttention(128, 2, dropout=0.1).eval()
    torchs = nn.MultiheadAttention(128, 2, dropout=0.1, batch_first=True).eval()
    for bias in (ours.in_proj.bias, ours.out_proj.bias):
        nn.init.normal_(bias)
    torchs.load_state_dict(
        {
            "in_proj_weight": ours.in_proj.weight,
            "in_proj_bias": ours.in_proj.bias,
            "out_proj.weight": ours.out_proj.weight,
            "out_proj.bias": ours.out_proj.bias,
        }
    )
    tokens = torch.randn(3, 9, 128)
    expected = torchs(ours.query.expand(3, -1, -1), tokens, tokens, need_weights=False)[0]
    torch.testing.assert_close(ours(tokens), expected.squeeze(1))


def test_initial_query_has_unit_length_on_average() -> None:
    torch.manual_seed(0)
    queries = torch.stack([QueryAttention(512, 8, dropout=0.1).query for _ in range(7)])
    assert queries.norm(dim=-1).mean().item() == pytest.approx(1.0, abs=0.05)


def test_dropout_acts_in_training_only() -> None:
    attention = QueryAttention(64, 1, dropout=0.5)
    tokens = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(attention(tokens), attention(tokens))
    attention.eval()
    assert torch.equal(attention(tokens), attention(tokens))


def test_one_feature_per_subset() -> None:
    hdm = HDM(128).eval()
    globals_, patches = random_tokens()
    features = hdm(globals_, patches)
    assert features.shape == (2, 7, 128)
    # The fifth feature is RGB and TI: their class tokens and patches, in this order.
    tokens = torch.cat([globals_.rgb.unsqueeze(1), patches.rgb, globals_.ti.unsqueeze(1), patches.ti], dim=1)
    assert torch.equal(features[:, 4], hdm.attentions["rt"](tokens))


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
    with pytest.raises(UserError, match="multiple of 64, not 96"):
        HDM(96)
