from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modeling.pife import PIFE
from structures import Modality, PerModality


def test_joins_the_global_with_the_mean_patch() -> None:
    torch.manual_seed(0)
    pife = PIFE(8)
    globals_ = PerModality.build(lambda m: torch.randn(2, 8))
    patches = PerModality.build(lambda m: torch.randn(2, 5, 8))
    joined = pife(globals_, patches)
    for modality in Modality:
        _, linear, _ = pife.reduce[modality.key].children()
        assert isinstance(linear, nn.Linear)
        pair = torch.cat([globals_.of(modality), patches.of(modality).sum(dim=1) / 5], dim=1)
        x = linear(F.layer_norm(pair, (16,)))
        torch.testing.assert_close(joined.of(modality), x / (1 + torch.exp(-1.702 * x)))


@pytest.mark.parametrize("modality", Modality)
def test_each_modality_has_its_own_reduction(modality: Modality) -> None:
    pife = PIFE(8)
    same = PerModality.build(lambda m: torch.ones(1, 8))
    patches = PerModality.build(lambda m: torch.zeros(1, 5, 8))
    before = pife(same, patches)
    for parameter in pife.reduce[modality.key].parameters():
        parameter.data += 0.5

    def changed(m: Modality) -> bool:
        after: Tensor = pife(same, patches).of(m)
        return not torch.equal(after, before.of(m))

    assert [m for m in Modality if changed(m)] == [modality]
