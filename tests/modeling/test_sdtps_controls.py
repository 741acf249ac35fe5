"""The controls of token selection, and guidance by class tokens and their attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import SMALL_MODEL
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.rollout import recorded_attention
from modeling.sdtps import AllPatches, MultiModalSDTPS, RandomSparse, attention_map
from structures import ModalBatch

MakeBatch = Callable[..., ModalBatch]
SIZE = (128, 64)


def build(*settings: str) -> MultiModalReID:
    """The small model with SDTPS, with the same weights each time."""
    torch.manual_seed(0)
    return make_model(load_config(SMALL_MODEL, settings), 5, 2)


def random_tokens(seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    patches = [torch.randn(3, 20, 16, generator=generator) for _ in range(3)]
    return patches, [torch.randn(3, 16, generator=generator) for _ in range(3)]


def test_random_choice_keeps_other_patches_each_time_in_training_alone() -> None:
    patches, guides = random_tokens()
    model = MultiModalSDTPS(16, 20, at_random=True)
    assert not [name for name, _ in model.named_parameters() if name.startswith("selectors")]
    torch.manual_seed(0)
    draws = [model.train()(patches, guides) for _ in range(2)]
    assert not torch.equal(draws[0][0].kept, draws[1][0].kept)
    state = torch.get_rng_state()
    fixed = [model.eval()(patches, guides) for _ in range(2)]
    assert torch.equal(fixed[0][0].kept, fixed[1][0].kept)
    assert torch.equal(torch.get_rng_state(), state)
    assert fixed[0][0].tokens.shape == (3, 5, 16)
    # Samples of a batch differ, and so do the modalities.
    assert not torch.equal(fixed[0][0].kept[0], fixed[0][0].kept[1])
    assert not torch.equal(fixed[0][0].kept[0], fixed[0][1].kept[0])


def test_random_choice_is_even() -> None:
    torch.manual_seed(0)
    selector = RandomSparse(0.25).train()
    tokens = torch.zeros(20_000, 8, 2)
    kept = selector(tokens, selector.predict(tokens), []).decision.mean(dim=0)
    torch.testing.assert_close(kept, torch.full((8,), 0.25), atol=0.02, rtol=0)


def test_all_patches_are_handed_on_as_they_are() -> None:
    patches, guides = random_tokens()
    for tokens, result in zip(patches, AllPatches()(patches, guides), strict=True):
        assert torch.equal(result.tokens, tokens)
        assert result.kept.tolist() == [list(range(20))] * 3
        assert result.decision.eq(1).all()


def test_attention_map_by_hand() -> None:
    # Two rows of three patches; stretched: 0 .25 1 / 0 0 .5. Each is the sum of its neighbourhood / 9.
    attention = torch.tensor([[-4.0, -3.0, 0.0, -4.0, -4.0, -2.0]])
    expected = torch.tensor([[0.25, 1.75, 1.75, 0.25, 1.75, 1.75]]) / 9
    torch.testing.assert_close(attention_map(attention, (2, 3)), expected)
    assert not attention_map(attention.requires_grad_(), (2, 3)).requires_grad


def test_modalities_judge_patches_by_their_maps_at_the_same_place() -> None:
    patches, guides = random_tokens()
    maps = [torch.rand(3, 20, generator=torch.Generator().manual_seed(m)) for m in range(3)]
    for index, result in enumerate(MultiModalSDTPS(16, 20, beta=0.5)(patches, guides, maps)):
        others = [maps[m] for m in range(3) if m != index]
        # With beta 0.5 the published formula has no learned part.
        torch.testing.assert_close(result.scores, maps[index] + 0.5 * (others[0] + others[1]))
        torch.testing.assert_close(result.sources[:, 1:], torch.stack([maps[index], *others], dim=1))


def test_maps_are_read_at_the_places_of_patches_that_are_left() -> None:
    # Of six places, each modality has three left.
    places = [torch.tensor([[0, 2, 5]]), torch.tensor([[2, 3, 5]]), torch.tensor([[0, 1, 2]])]
    maps = [torch.arange(6.0).unsqueeze(0) / 10 + m for m in range(3)]
    patches = [torch.randn(1, 3, 16) for _ in range(3)]
    for index, result in enumerate(MultiModalSDTPS(16, 6)(patches, patches, maps, places)):
        order = [index, *(m for m in range(3) if m != index)]
        there = places[index].float() / 10
        torch.testing.assert_close(result.sources[:, 1:], torch.stack([there + m for m in order], dim=1))


def test_attention_guides_the_model(make_batch: MakeBatch) -> None:
    model = build("MODEL.SDTPS_GUIDE", "attention").eval()
    batch = make_batch([0, 1], SIZE)
    with recorded_attention(model.backbone.vit) as attentions:
        tokens = model.encode(batch)
    assert tokens.attention is not None
    from_class = torch.stack(attentions)[:, :, 0, 1:].log().mean(dim=0)  # (3B, N)
    for seen, expected in zip(tokens.attention, from_class.chunk(3), strict=True):
        torch.testing.assert_close(seen, expected)
    selection = model.fuse(tokens).selection
    assert selection is not None
    expected = attention_map(tokens.attention.ni, model.backbone.grid)
    torch.testing.assert_close(selection.sources.rgb[:, 2], expected)


def test_a_patch_that_slimming_drops_is_judged_by_the_blocks_it_went_through(make_batch: MakeBatch) -> None:
    batch = make_batch([0, 1], SIZE)
    settings = ["MODEL.SDTPS_GUIDE", "attention", "MODEL.SLIM_KEEP", "0.5", "MODEL.SLIM_LAYERS"]
    slimmed = build(*settings, "[1]").eval().encode(batch)
    whole = build("MODEL.SDTPS_GUIDE", "attention").eval()
    with recorded_attention(whole.backbone.vit) as attentions:
        whole.encode(batch)
    first = attentions[0][:2, 0, 1:].log()  # of RGB in the first block
    assert slimmed.places is not None
    assert slimmed.attention is not None
    left = torch.zeros(2, 128).scatter(1, slimmed.places.rgb.positions, 1.0).bool()
    torch.testing.assert_close(slimmed.attention.rgb[~left], first[~left])
    assert not torch.isclose(slimmed.attention.rgb[left], first[left]).any()


@pytest.mark.parametrize("select", ["random", "all"])
def test_controls_train_every_parameter_that_they_have(select: str, make_batch: MakeBatch) -> None:
    # A parameter without gradient would stop training with several processes.
    model = build("MODEL.SDTPS_SELECT", select).train()
    output = model(make_batch([0, 0, 1, 1], SIZE))
    torch.stack([head.logits.square().sum() for head in output.heads]).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_guide_class_compares_with_the_class_tokens_ahead_of_pife(make_batch: MakeBatch) -> None:
    scores = []
    for guide in ("reduced", "class"):
        model = build("MODEL.SDTPS_GUIDE", guide).eval()
        batch = make_batch([0, 1], SIZE)
        tokens = model.encode(batch)
        output = model.fuse(tokens)
        assert output.selection is not None
        scores.append(output.selection.scores.rgb)
    assert not torch.equal(scores[0], scores[1])
    assert model.sdtps is not None
    expected = model.sdtps(tokens.patches, tokens.globals_)[0].scores
    assert torch.equal(scores[1], expected)
