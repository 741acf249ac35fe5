import pytest
import torch
from torch import Tensor

from modeling.backbone.slimming import Slimming, SlimTokens
from modeling.seps.sdtps import min_max_normalise

MODALITIES, BATCH, PATCHES, DIM = 3, 2, 10, 8


def make_state(seed: int = 0, patches: int = PATCHES) -> tuple[SlimTokens, Tensor, Tensor]:
    """Random tokens behind a block, the class token's attention, and all images present."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(MODALITIES * BATCH, 1 + patches, DIM, generator=generator)
    attention = torch.rand(MODALITIES * BATCH, patches, generator=generator)
    return SlimTokens.whole(tokens, 1), attention, torch.ones(MODALITIES, BATCH, dtype=torch.bool)


def test_score_by_hand() -> None:
    """One sample, three patches, two modalities present; each says its own of its patch at the place."""
    tokens = torch.zeros(3, 4, DIM)
    state = SlimTokens.whole(tokens, 1)
    attention = torch.tensor([[0.0, 0.2, 0.4], [0.3, 0.3, 0.1], [0.9, 0.0, 0.0]])
    present = torch.tensor([[True], [True], [False]])
    slim = Slimming(2 / 3)(state, attention, present)
    # Stretched: [0, .5, 1], [1, 1, 0], and the missing one, which guides nobody.
    expected = torch.tensor(
        [
            [(0 + 1) / 3, (1 + 1) / 3, (2 + 0) / 3],
            [(2 + 0) / 3, (2 + 0.5) / 3, (0 + 1) / 3],
            [(2 + 0 + 1) / 4, (0 + 0.5 + 1) / 4, (0 + 1 + 0) / 4],
        ]
    )
    torch.testing.assert_close(slim.scores, expected)
    assert slim.indices.tolist() == [[1, 2], [0, 1], [0, 1]]
    own_only = Slimming(2 / 3, cross_modal=False)(state, attention, present)
    torch.testing.assert_close(own_only.scores, min_max_normalise(attention))


def test_extra_token_by_hand() -> None:
    state, attention, present = make_state()
    slim = Slimming(0.5)(state, attention, present)
    for row in range(len(slim.patches)):
        kept = slim.indices[row].tolist()
        dropped = [place for place in range(PATCHES) if place not in kept]
        assert torch.equal(slim.patches[row], state.patches[row, kept])
        shares = slim.scores[row, dropped].softmax(dim=0)
        torch.testing.assert_close(slim.extra[row, 0], shares @ state.patches[row, dropped])
        assert slim.scores[row, kept].min() >= slim.scores[row, dropped].max()


def test_places_are_remembered_over_several_stages() -> None:
    state, _, present = make_state(patches=20)
    original = state.patches
    slimming = Slimming(0.7)
    lengths = []
    for stage in range(3):
        count = state.patches.shape[1] + state.extra.shape[1]
        attention = torch.rand(len(original), count, generator=torch.Generator().manual_seed(stage))
        before = state
        state = slimming(state, attention, present)
        lengths.append(state.patches.shape[1])
        assert state.extra.shape == (len(original), 1, DIM)
        assert torch.equal(state.indices, state.indices.sort(dim=1).values)
        for row in range(len(original)):
            assert set(state.indices[row].tolist()) <= set(before.indices[row].tolist())
            # What has been dropped keeps the score that it was dropped with.
            gone = sorted(set(range(20)) - set(before.indices[row].tolist()))
            assert torch.equal(state.scores[row, gone], before.scores[row, gone])
            assert torch.equal(state.patches[row], original[row, state.indices[row]])
    assert lengths == [14, 10, 7]


def test_a_dropped_patch_of_another_modality_says_nothing() -> None:
    state, attention, present = make_state()
    first = Slimming(0.5)(state, attention, present)
    said = torch.rand(len(attention), first.patches.shape[1] + 1, generator=torch.Generator().manual_seed(1))
    second = Slimming(0.5)(first, said, present)
    own = min_max_normalise(said)[:, :-1]
    maps = torch.zeros(MODALITIES * BATCH, PATCHES).scatter(1, first.indices, own)
    for row in range(MODALITIES * BATCH):
        sample = row % BATCH
        others = sum(maps[other * BATCH + sample] for other in range(MODALITIES) if other != row // BATCH)
        assert isinstance(others, Tensor)
        places = first.indices[row]
        torch.testing.assert_close(second.scores[row, places], (2 * own[row] + others[places]) / 4)


@pytest.mark.parametrize("score", ["attention", "cosine"])
def test_a_missing_modality_does_not_guide_the_others(score: str) -> None:
    state, attention, present = make_state()
    present[1] = False
    slimming = Slimming(0.5, score=score)
    slim = slimming(state, attention, present)
    changed = state._replace(
        prefix=state.prefix.clone().index_fill_(0, torch.arange(BATCH, 2 * BATCH), 3.0),
        patches=state.patches.clone().index_fill_(0, torch.arange(BATCH, 2 * BATCH), 1.0),
    )
    other_attention = attention.clone()
    other_attention[BATCH : 2 * BATCH] = attention[BATCH : 2 * BATCH].flip(1)
    others = slimming(changed, other_attention, present)
    for rows in (slice(0, BATCH), slice(2 * BATCH, None)):
        assert torch.equal(slim.indices[rows], others.indices[rows])
        assert torch.equal(slim.scores[rows], others.scores[rows])
    guided = slimming(changed, other_attention, torch.ones_like(present))
    assert not torch.equal(slim.scores[:BATCH], guided.scores[:BATCH])


def test_cosine_score_by_hand() -> None:
    patches = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    guides = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    tokens = torch.stack([torch.cat([guide[None], patches]) for guide in guides])  # (3, 1 + 3, 2)
    slim = Slimming(2 / 3, score="cosine")(
        SlimTokens.whole(tokens, 1), torch.zeros(3, 3), torch.ones(3, 1, dtype=torch.bool)
    )
    # Cosines with the guides: [1, .6, 0], then twice [0, .8, 1].
    torch.testing.assert_close(slim.scores[0], torch.tensor([2 + 0 + 0, 1.2 + 1.6, 0 + 2]) / 4)
    torch.testing.assert_close(slim.scores[1], torch.tensor([0 + 1 + 0, 1.6 + 0.6 + 0.8, 2 + 0 + 1]) / 4)


def test_keeping_everything_changes_nothing() -> None:
    state, attention, present = make_state()
    slim = Slimming(1.0)(state, attention, present)
    assert torch.equal(slim.joined(), state.joined())
    assert torch.equal(slim.indices, state.indices)


def test_ratio_in_training_and_in_evaluation() -> None:
    state, attention, present = make_state()
    slimming = Slimming(0.5, warmup_epochs=5)
    counts = []
    for epoch in range(1, 8):
        slimming.set_epoch(epoch)
        counts.append(slimming.train()(state, attention, present).patches.shape[1])
        assert slimming.eval()(state, attention, present).patches.shape[1] == 5
    assert counts == [10, 9, 8, 7, 6, 5, 5]
    without = Slimming(0.5)
    without.set_epoch(1)
    assert without.train()(state, attention, present).patches.shape[1] == 5


def test_gumbel_gives_the_scores_a_gradient_and_the_same_values() -> None:
    state, attention, present = make_state()
    attention.requires_grad_()
    plain = Slimming(0.5).train()(state, attention, present)
    assert not plain.joined().requires_grad
    torch.manual_seed(0)
    slim = Slimming(0.5, use_gumbel=True).train()(state, attention, present)
    assert torch.equal(slim.joined(), plain.joined())
    (slim.patches * torch.randn(slim.patches.shape)).sum().backward()
    assert attention.grad is not None
    assert attention.grad.isfinite().all()
    assert (attention.grad != 0).float().mean() > 0.9  # also of patches that were dropped
    evaluated = Slimming(0.5, use_gumbel=True).eval()(state, attention, present)
    assert not evaluated.joined().requires_grad


def test_unknown_score() -> None:
    with pytest.raises(ValueError, match=r"'norm'; choose from \['attention', 'cosine'\]"):
        Slimming(0.5, score="norm")


def test_scores_are_in_full_precision_also_under_autocast() -> None:
    """Patches that half precision cannot tell apart: their scores would be 0 / 0."""
    state, attention, present = make_state()
    nearly_equal = state._replace(patches=1 + 1e-4 * state.patches, prefix=torch.ones_like(state.prefix))
    slimming = Slimming(0.5, score="cosine")
    plain = slimming(nearly_equal, attention, present)
    with torch.autocast("cpu", torch.float16):
        slim = slimming(nearly_equal, attention, present)
    assert slim.scores.isfinite().all()
    assert torch.equal(slim.indices, plain.indices)
