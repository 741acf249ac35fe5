import pytest
import torch
from torch import Tensor

from modeling.backbone.slimming import STEP, Slimming, SlimTokens, add_places, lattice_order, match
from modeling.backbone.trunk import create_vit, make_trunk


def make_state(values: list[list[float]], order: list[int] | None = None) -> SlimTokens:
    """Patches of one channel, without prefix tokens, in this order of the lattice; by default their own."""
    patches = torch.tensor(values).unsqueeze(2)
    lattice = torch.arange(patches.shape[1]) if order is None else torch.tensor(order)
    return SlimTokens.whole(patches, 0, lattice)


def random_state(count: int = 2, patches: int = 20, prefix: int = 1) -> SlimTokens:
    tokens = torch.randn(count, prefix + patches, 8, generator=torch.Generator().manual_seed(0))
    return SlimTokens.whole(tokens, prefix, lattice_order((patches // 4, 4)))


class TestLattice:
    @pytest.mark.parametrize("grid", [(16, 8), (5, 3), (1, 1), (1, 7)])
    def test_every_patch_once(self, grid: tuple[int, int]) -> None:
        assert sorted(lattice_order(grid).tolist()) == list(range(grid[0] * grid[1]))

    def test_by_hand(self) -> None:
        """Fractions of row · 0.7549 + column · 0.5698: 0, .5698, .1397 / .7549, .3247, .8946."""
        assert lattice_order((2, 3)).tolist() == [0, 2, 4, 1, 3, 5]

    def test_the_first_ones_are_in_every_part_of_the_image(self) -> None:
        for count in (16, 32, 64):
            chosen = torch.zeros(128).index_fill(0, lattice_order((16, 8))[:count], 1.0).view(16, 8)
            quarters = chosen.view(4, 4, 2, 4).sum(dim=(1, 3))  # of 16 patches each
            assert (quarters - count / 8).abs().max() <= 1


class TestMatch:
    def test_by_hand(self) -> None:
        """Targets 0 and 10; of 4, 9, 1 and 30 the nearest are 9 and 1, at distance 1 each, then 4."""
        tokens = torch.tensor([[0.0, 10.0, 4.0, 9.0, 1.0, 30.0]]).unsqueeze(2)
        joining, staying, targets = match(tokens, num_targets=2, num_joining=3)
        assert joining.tolist() == [[3, 4, 2]]
        assert targets.tolist() == [[1, 0, 0]]
        assert staying.tolist() == [[5]]

    def test_ties_go_by_order(self) -> None:
        joining, staying, targets = match(torch.zeros(1, 5, 3), num_targets=2, num_joining=2)
        assert (joining.tolist(), staying.tolist(), targets.tolist()) == ([[2, 3]], [[4]], [[0, 0]])


def test_places_add_to_the_distance() -> None:
    """Two channels of variances 1 and 4; the patches 1 and 5 of 3 columns are a row and a column apart."""
    tokens = torch.tensor([[[0.0, 0.0], [2.0, 4.0]]])
    found = add_places(tokens, torch.tensor([[1, 5]]), columns=3)
    squared = (found[0, 0] - found[0, 1]).square().sum()
    torch.testing.assert_close(squared, torch.tensor(4.0 + 16.0 + STEP * 5.0 * 2))


@torch.no_grad()
def test_tokens_without_position_join_their_neighbours() -> None:
    """The patches differ at random, so that their targets lie anywhere unless places count."""
    tokens = torch.randn(50, 32, 4, generator=torch.Generator().manual_seed(0))
    steps = {}
    for columns in (None, 4):
        few = Slimming(0.5)(SlimTokens.whole(tokens, 0, lattice_order((8, 4))), columns)
        patches, leads = torch.arange(32), few.leads.gather(1, few.owners)
        apart = (leads // 4 - patches // 4).abs() + (leads % 4 - patches % 4).abs()
        steps[columns] = apart.float().mean().item()
    assert steps[4] < 0.9 * steps[None]


class TestMerging:
    def test_by_hand(self) -> None:
        """Five patches, three tokens: two targets, 0 and 10, and one that stays alone."""
        state = Slimming(0.6)(make_state([[0.0, 10.0, 1.0, 5.0, 2.0]]))
        assert state.merged.flatten().tolist() == [1.0, 10.0, 5.0]  # (0 + 1 + 2) / 3
        assert state.sizes.tolist() == [[3.0, 1.0, 1.0]]
        assert state.leads.tolist() == [[0, 1, 3]]
        assert state.owners.tolist() == [[0, 1, 0, 2, 0]]
        assert state.spread(state.merged).flatten().tolist() == [1.0, 10.0, 1.0, 5.0, 1.0]
        bias = state.bias()
        assert bias is not None
        torch.testing.assert_close(bias, torch.tensor([3.0, 1.0, 1.0]).log().view(1, 1, 1, 3))

    def test_a_second_stage_weighs_by_size(self) -> None:
        first = Slimming(0.6)(make_state([[0.0, 10.0, 1.0, 5.0, 2.0]]))  # 1 (three patches), 10, 5
        second = Slimming(0.4)(first)  # two tokens and two targets: 5 joins 1
        assert second.merged.flatten().tolist() == [2.0, 10.0]  # (3 · 1 + 5) / 4
        assert second.sizes.tolist() == [[4.0, 1.0]]
        assert second.owners.tolist() == [[0, 1, 0, 0, 0]]

    def test_patches_in_the_order_of_the_lattice(self) -> None:
        """Targets are the patches 4 and 1, in the lattice's order; their neighbours join them."""
        state = Slimming(0.6)(make_state([[0.0, 10.0, 1.0, 5.0, 2.0]], order=[4, 1, 3, 0, 2]))
        assert state.merged.flatten().tolist() == [1.0, 10.0, 5.0]
        assert state.leads.tolist() == [[4, 1, 3]]
        assert state.owners.tolist() == [[0, 1, 0, 2, 0]]

    def test_the_sum_over_all_patches_stays(self) -> None:
        whole = state = random_state()
        for _ in range(3):
            state = Slimming(0.7)(state)
            total = (state.merged * state.sizes.unsqueeze(2)).sum(dim=1)
            torch.testing.assert_close(total, whole.merged.sum(dim=1))
            torch.testing.assert_close(state.spread(state.merged).sum(dim=1), total)
        assert state.merged.shape[1] == 7  # 20, 14, 10, 7
        for row in range(2):
            assert state.sizes[row].tolist() == state.owners[row].bincount(minlength=7).tolist()
            assert state.owners[row, state.leads[row]].tolist() == list(range(7))

    def test_equal_patches_are_merged_first_and_change_nothing(self) -> None:
        tokens = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
        state = SlimTokens.whole(tokens[:, [0, 1, 2, 3, 0, 1, 2, 3]], 0, torch.arange(8))
        merged = Slimming(0.75)(state)  # six tokens, four of them targets
        assert torch.equal(merged.spread(merged.merged), tokens[:, [0, 1, 2, 3, 0, 1, 2, 3]])

    def test_keeping_all(self) -> None:
        state = random_state()
        assert Slimming(1.0)(state) is state
        assert state.bias() is None

    def test_the_share_is_rounded_up_and_one_token_is_the_least(self) -> None:
        assert Slimming(0.7)(random_state(patches=4)).merged.shape[1] == 3
        assert Slimming(0.01)(random_state()).merged.shape[1] == 1

    def test_means_carry_a_gradient(self) -> None:
        patches = torch.tensor([[[0.0], [10.0], [1.0], [5.0], [2.0]]], requires_grad=True)
        state = Slimming(0.6)(SlimTokens.whole(patches, 0, torch.arange(5)))
        state.merged[0, 0].backward()
        assert patches.grad is not None
        torch.testing.assert_close(patches.grad.flatten(), torch.tensor([1 / 3, 0, 1 / 3, 0, 1 / 3]))

    def test_what_reports_get(self) -> None:
        slimmed = Slimming(0.6)(make_state([[0.0, 10.0, 1.0, 5.0, 2.0]], order=[4, 1, 3, 0, 2])).describe()
        assert slimmed.indices.tolist() == [[1, 3, 4]]
        torch.testing.assert_close(slimmed.scores, torch.tensor([[1 / 3, 1, 1 / 3, 1, 1 / 3]]))


@pytest.mark.parametrize("name", ["vit_tiny_stem_patch8", "vit_small_patch16_dinov3"])
@torch.no_grad()
def test_a_block_on_merged_equal_patches_gives_what_it_gives_on_all_of_them(name: str) -> None:
    torch.manual_seed(0)
    sizes = {"depth": 1} if name != "vit_tiny_stem_patch8" else {}
    step = (8, 8) if name == "vit_tiny_stem_patch8" else (16, 16)
    trunk = make_trunk(create_vit(name, img_size=(64, 64), stride=step, **sizes).eval())
    tokens = torch.randn(1, trunk.num_prefix + 3, trunk.width)
    prefix, patches = tokens.tensor_split([trunk.num_prefix], dim=1)
    state = SlimTokens.whole(
        torch.cat([prefix, patches[:, [0, 1, 2, 0, 0]]], dim=1), trunk.num_prefix, torch.arange(5)
    )
    whole: Tensor = trunk.run_block(0, state.joined(), None)
    few = Slimming(0.6)(state)
    few = few.updated(trunk.run_block(0, few.joined(), None, few.bias()))
    torch.testing.assert_close(few.prefix, whole[:, : trunk.num_prefix], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(few.spread(few.merged), whole[:, trunk.num_prefix :], atol=1e-5, rtol=1e-5)
