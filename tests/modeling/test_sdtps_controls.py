"""The controls of token selection, and guidance by class tokens or by evidence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import SMALL_MODEL
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.sdtps import AllPatches, MultiModalSDTPS, RandomSparse
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


def test_evidence_takes_the_place_of_all_similarities() -> None:
    patches, guides = random_tokens()
    evidence = torch.rand(3, 20, generator=torch.Generator().manual_seed(0))
    for result in MultiModalSDTPS(16, 20, beta=0.5)(patches, guides, evidence):
        torch.testing.assert_close(result.scores, evidence)  # with beta 0.5 there is no learned part
    for result in MultiModalSDTPS(16, 20, beta=0.1)(patches, guides, evidence):
        learned, seen = result.sources.unbind(dim=1)
        assert torch.equal(seen, evidence)
        torch.testing.assert_close(result.scores, 0.8 * learned + 0.2 * evidence)


def test_evidence_is_read_at_the_places_of_patches_that_are_left() -> None:
    # Of six places, each modality has three left.
    places = [torch.tensor([[0, 2, 5]]), torch.tensor([[2, 3, 5]]), torch.tensor([[0, 1, 2]])]
    patches = [torch.randn(1, 3, 16) for _ in range(3)]
    results = MultiModalSDTPS(16, 6)(patches, patches, torch.arange(6.0).unsqueeze(0), places)
    for left, result in zip(places, results, strict=True):
        assert torch.equal(result.sources[:, 1], left.float())


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
