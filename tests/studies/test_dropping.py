"""The controls of slimming: patches that are left out."""

import torch

from modeling.backbone.slimming import SlimTokens, lattice_order
from studies.controls.dropping import Dropping


def make_state(count: int = 4) -> SlimTokens:
    tokens = torch.randn(count, 1 + 32, 8, generator=torch.Generator().manual_seed(0))
    return SlimTokens.whole(tokens, 1, lattice_order((8, 4)))


def test_the_same_patches_of_every_image() -> None:
    state = make_state()
    few = Dropping(0.25, at_random=False)(state)
    assert few.leads.tolist() == [lattice_order((8, 4))[:8].tolist()] * 4
    assert torch.equal(few.merged, state.merged[:, :8])
    assert few.sizes.unique().tolist() == [1.0]
    bias = few.bias()
    assert bias is not None
    assert not bias.any()


def test_other_patches_in_each_image() -> None:
    state = make_state()
    few, again = (Dropping(0.25, at_random=True)(state) for _ in range(2))
    assert torch.equal(few.leads, again.leads)
    assert len({tuple(row) for row in few.leads.tolist()}) == 4
    for row in range(4):
        whole = state.spread(state.merged)[row]
        assert torch.equal(few.merged[row], whole[few.leads[row]])
        # A patch that is kept has its own features, another those of the most similar one.
        assert few.owners[row, few.leads[row]].tolist() == list(range(8))
        assert few.owners[row].tolist() == torch.cdist(whole, few.merged[row]).argmin(dim=1).tolist()


def test_keeping_all() -> None:
    state = make_state()
    assert Dropping(1.0, at_random=True)(state) is state
