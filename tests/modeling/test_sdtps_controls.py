"""The controls of token selection, and the modalities' vote."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import SMALL_MODEL
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.sdtps import AllPatches, MultiModalSDTPS, RandomSparse, TokenSparse, vote_loss
from structures import ModalBatch, Modality

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


def voting_model(beta: float = 0.5) -> MultiModalSDTPS:
    torch.manual_seed(0)
    return MultiModalSDTPS(16, 20, beta=beta, voting=True)


def predictions(model: MultiModalSDTPS, patches: list[Tensor]) -> list[Tensor]:
    found = []
    for selector, tokens in zip(model.selectors, patches, strict=True):
        assert isinstance(selector, TokenSparse)
        found.append(selector.predict(tokens))
    return found


def test_the_modalities_vote_with_their_learned_scores_at_the_same_place() -> None:
    patches, guides = random_tokens()
    model = voting_model()
    learned = predictions(model, patches)
    for index, result in enumerate(model(patches, guides)):
        others = [learned[m] for m in range(3) if m != index]
        # With beta 0.5 the published formula is own + half of the others.
        torch.testing.assert_close(result.scores, learned[index] + 0.5 * (others[0] + others[1]))
        torch.testing.assert_close(
            result.sources, torch.stack([learned[index], learned[index], *others], dim=1)
        )
    again = model(patches, [torch.zeros_like(guide) for guide in guides])
    assert torch.equal(again[0].scores, model(patches, guides)[0].scores)  # guides do not count


def test_votes_meet_at_their_places_when_patches_were_dropped() -> None:
    # Of six places, each modality has three left.
    places = [torch.tensor([[0, 2, 5]]), torch.tensor([[2, 3, 5]]), torch.tensor([[0, 1, 2]])]
    patches = [torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(m)) for m in range(3)]
    model = voting_model()
    votes = predictions(model, patches)
    rgb = model(patches, patches, places)[0].sources[0].detach()
    zero = torch.zeros(())
    torch.testing.assert_close(rgb[1], votes[0][0].detach())
    torch.testing.assert_close(rgb[2], torch.stack([zero, votes[1][0, 0], votes[1][0, 2]]).detach())
    torch.testing.assert_close(rgb[3], torch.stack([votes[2][0, 0], votes[2][0, 2], zero]).detach())


def test_vote_loss_by_hand() -> None:
    # Stretched to [0, 1]: 0 .5 1 0, 0 1 0 0 and 0 1 0 0; their sum 0 2.5 1 0: the second and third are right.
    attention = [
        torch.tensor([[0.1, 0.2, 0.3, 0.1]]),
        torch.tensor([[0.0, 0.4, 0.0, 0.0]]),
        torch.tensor([[0.2, 0.6, 0.2, 0.2]]),
    ]
    learned = [torch.full((1, 4), 0.5)] * 2 + [torch.tensor([[0.2, 0.8, 0.5, 0.2]])]
    expected = -(9 * math.log(0.5) + 3 * math.log(0.8)) / 12
    torch.testing.assert_close(vote_loss(learned, attention, 0.5), torch.tensor([expected]))
    # Two patches are left in each modality, at places 2 (right) and 0 (wrong).
    left = [torch.tensor([[0.9, 0.9]])] * 3
    expected = -(math.log(0.9) + math.log(0.1)) / 2
    found = vote_loss(left, attention, 0.5, [torch.tensor([[2, 0]])] * 3)
    torch.testing.assert_close(found, torch.tensor([expected]))


def test_vote_loss_works_in_mixed_precision() -> None:
    scores = [torch.tensor([[0.0, 1.0]], requires_grad=True)] * 3  # as wrong as can be
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = vote_loss(scores, [torch.tensor([[0.9, 0.1]])] * 3, 0.5)
    assert loss.dtype == torch.float32
    loss.sum().backward()
    assert loss.isfinite().all()


@pytest.mark.parametrize("slimming", [[], ["MODEL.SLIM_LAYERS", "[2, 3]"]])
def test_the_vote_is_taught_by_the_backbones_attention(slimming: list[str], make_batch: MakeBatch) -> None:
    model = build("MODEL.SDTPS_GUIDE", "vote", *slimming).train()
    batch = make_batch([0, 0, 1, 1], SIZE)
    attention = model.encode(batch).attention
    assert attention is not None
    for modality in Modality:
        seen = attention.of(modality)
        assert seen.shape == (4, 128)
        assert not seen.requires_grad
        # The rest is what the class token, and with slimming the extra token, get.
        assert (seen.sum(dim=1) > 0.2).all()
        assert (seen.sum(dim=1) < 1).all()
    output = model(batch)
    assert list(output.aux_losses) == ["sdtps/vote"]
    output.aux_losses["sdtps/vote"].backward()
    assert model.sdtps is not None
    taught = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    # The scores, and nothing else: the backbone does not change so that voting gets easier.
    assert taught == {name for name, _ in model.named_parameters() if name.startswith("sdtps.selectors")}


def test_learning_the_vote_lowers_its_loss(make_batch: MakeBatch) -> None:
    model = build("MODEL.SDTPS_GUIDE", "vote").train()
    batch = make_batch([0, 1], SIZE)
    assert model.sdtps is not None
    optimizer = torch.optim.Adam(model.sdtps.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        loss = model(batch).aux_losses["sdtps/vote"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(later < earlier for earlier, later in pairwise(losses))


@pytest.mark.parametrize("select", ["random", "all"])
def test_controls_train_every_parameter_that_they_have(select: str, make_batch: MakeBatch) -> None:
    # A parameter without gradient would stop training with several processes.
    model = build("MODEL.SDTPS_SELECT", select).train()
    output = model(make_batch([0, 0, 1, 1], SIZE))
    assert output.aux_losses == {}
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
