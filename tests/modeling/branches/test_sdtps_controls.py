"""The controls of token selection, and guidance by class tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import SMALL_MODEL
from modeling.backbone.attention import recorded_attention
from modeling.branches.controls import AllPatches, RandomSparse
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.seps.sdtps import MultiModalSDTPS, min_max_normalise
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
    model = MultiModalSDTPS(16, 20, selectors=[RandomSparse(seed=seed) for seed in range(3)])
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


@pytest.mark.parametrize("select", ["random", "all"])
def test_controls_train_every_parameter_that_they_have(select: str, make_batch: MakeBatch) -> None:
    # A parameter without gradient would stop training with several processes.
    model = build("MODEL.SDTPS_SELECT", select).train()
    output = model(make_batch([0, 0, 1, 1], SIZE))
    torch.stack([head.logits.square().sum() for head in output.heads]).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_guide_class_compares_with_the_class_tokens_before_pife(make_batch: MakeBatch) -> None:
    scores = []
    for guide in ("reduced", "class"):
        model = build("MODEL.SDTPS_GUIDE", guide).eval()
        batch = make_batch([0, 1], SIZE)
        tokens = model.encode(batch)
        output = model.fuse(tokens)
        assert output.selection is not None
        scores.append(output.selection.scores.rgb)
    assert not torch.equal(scores[0], scores[1])
    select = model.get_submodule("branches.sdtps.select")
    expected = select(tokens.patches, tokens.class_tokens)[0].scores
    assert torch.equal(scores[1], expected)


def test_guide_attention_scores_by_what_the_class_token_attends_to(make_batch: MakeBatch) -> None:
    options = ("MODEL.SDTPS_GUIDE", "attention", "MODEL.SDTPS_BETA", "0.5")
    model = build(*options).eval()
    batch = make_batch([0, 1], SIZE)
    with recorded_attention(model.backbone.vit) as attentions:
        selection = model(batch).selection
    assert selection is not None
    rgb, ni, ti = attentions[math.ceil(0.75 * len(attentions)) - 1][:, 0, 1:].chunk(3)
    expected = 0.5 * (2 * min_max_normalise(rgb) + min_max_normalise(ni) + min_max_normalise(ti))
    assert torch.allclose(selection.scores.rgb, expected, atol=1e-6)
    # Without a modality, its tokens and its attention are those of a missing image.
    missing = model.forward_conditions(batch, {"t": [Modality.TI]})["t"].selection
    assert missing is not None
    alone = model(batch.without([Modality.TI])).selection
    assert alone is not None
    assert torch.allclose(missing.scores.rgb, alone.scores.rgb, atol=1e-6)


@pytest.mark.parametrize(
    ("beta", "names"),
    [("0.25", ["learned", "own", "ni", "ti"]), ("0.5", ["own", "ni", "ti"]), ("0.0", ["learned"])],
)
def test_sources_without_weight_are_left_out_of_the_selection(
    beta: str, names: list[str], make_batch: MakeBatch
) -> None:
    selection = build("MODEL.SDTPS_BETA", beta).eval()(make_batch([0, 1], SIZE)).selection
    assert selection is not None
    assert list(selection.sources.rgb) == names
