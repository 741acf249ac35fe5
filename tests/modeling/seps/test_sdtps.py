from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import run_away_from_the_project
from modeling.seps import sdtps
from modeling.seps.sdtps import (
    MultiModalSDTPS,
    SparseTokens,
    TokenAggregation,
    TokenSparse,
    guidance_score,
    min_max_normalise,
    num_aggregated,
    num_kept,
)

# Four patches in the plane, worked by hand. Cosines, then min-max over the four:
#   own   (1, 0):   1, 0,  .6, -1  ->  1, .5, .8, 0
#   other (0, 2):   0, 1,  .8,  0  ->  0,  1, .8, 0
#   other (-1, 0): -1, 0, -.6,  1  ->  0, .5, .2, 1
# Learned: sigmoid(ln 3 * second coordinate) = .5, .75, .75, .5.
PATCHES = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.75, 1.0], [-1.0, 0.0]]])
OWN = torch.tensor([[1.0, 0.0]])
OTHERS = [torch.tensor([[0.0, 2.0]]), torch.tensor([[-1.0, 0.0]])]


def planar_selector(sparse_ratio: float = 0.5, beta: float = 0.25) -> TokenSparse:
    selector = TokenSparse(4, sparse_ratio=sparse_ratio, beta=beta)
    learned = nn.Linear(2, 1, bias=False)
    learned.weight.data = torch.tensor([[0.0, math.log(3)]])
    selector.score_predictor = nn.Sequential(learned)
    return selector


def select(selector: TokenSparse, patches: Tensor, own: Tensor, others: list[Tensor]) -> SparseTokens:
    said = [guidance_score(patches, guide) for guide in (own, *others)]
    return selector(patches, selector.predict(patches), said)


def random_inputs(
    batch: int = 3, patches: int = 20, dim: int = 16, seed: int = 0
) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randn(batch, patches, dim, generator=generator) for _ in range(3)]
    guides = [torch.randn(batch, dim, generator=generator) for _ in range(3)]
    return tokens, guides


@pytest.mark.parametrize(
    ("patches", "sparse", "aggr", "kept", "aggregated"),
    [
        (196, 0.5, 0.4, 98, 39),
        (128, 0.5, 0.4, 64, 25),
        (20, 0.5, 0.4, 10, 4),
        (5, 0.5, 0.4, 3, 1),  # ceil of 2.5, floor of 1.0
        (100, 0.07, 1.0, 7, 7),  # 100 * 0.07 is 7.000000000000001
        (100, 0.29, 1.0, 29, 29),  # 100 * 0.29 is 28.999999999999996
        (128, 1.0, 1.0, 128, 128),
        (4, 0.01, 0.1, 1, 1),  # never none
    ],
)
def test_numbers_of_tokens(patches: int, sparse: float, aggr: float, kept: int, aggregated: int) -> None:
    assert num_kept(patches, sparse) == kept
    assert num_aggregated(patches, sparse, aggr) == aggregated


def test_min_max_stretches_each_sample_to_the_unit_interval() -> None:
    scores = torch.tensor([[2.0, 4.0, 3.0], [-1.0, -1.0, 3.0]])
    torch.testing.assert_close(
        min_max_normalise(scores), torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]), atol=1e-7, rtol=0
    )
    assert min_max_normalise(torch.full((1, 4), 0.3)).tolist() == [[0.0] * 4]  # no division by zero


def test_guidance_by_hand() -> None:
    torch.testing.assert_close(guidance_score(PATCHES, OWN), torch.tensor([[1.0, 0.5, 0.8, 0.0]]))
    torch.testing.assert_close(guidance_score(PATCHES, OTHERS[0]), torch.tensor([[0.0, 1.0, 0.8, 0.0]]))


@pytest.mark.parametrize(
    ("beta", "scores"),
    [
        (0.25, [0.75, 1.0, 1.025, 0.5]),  # e.g. the third: .5 * .75 + .25 * (.8 + .2 + 2 * .8)
        (0.1, [0.6, 0.85, 0.86, 0.5]),
        (0.0, [0.5, 0.75, 0.75, 0.5]),
        (0.5, [1.0, 1.25, 1.3, 0.5]),
    ],
)
def test_score_by_hand(beta: float, scores: list[float]) -> None:
    selector = planar_selector(beta=beta)
    result = select(selector, PATCHES, OWN, OTHERS).scores
    torch.testing.assert_close(result, torch.tensor([scores]))


def test_kept_patches_and_extra_token_by_hand() -> None:
    sparse = select(planar_selector(), PATCHES, OWN, OTHERS)
    assert sparse.kept.tolist() == [[1, 2]]
    assert sparse.decision.tolist() == [[0.0, 1.0, 1.0, 0.0]]
    # Discarded: (1, 0) with score .75 and (-1, 0) with score .5.
    first = math.exp(0.75) / (math.exp(0.75) + math.exp(0.5))
    torch.testing.assert_close(sparse.extra, torch.tensor([[[first - (1 - first), 0.0]]]))


def test_equal_scores_keep_the_earlier_patch() -> None:
    same = torch.ones(2, 128, 16)
    sparse = select(TokenSparse(16), same, torch.ones(2, 16), [torch.ones(2, 16)])
    assert sparse.kept.tolist() == [list(range(64))] * 2
    # The first patch and its copy at the end have the third-highest score.
    twice = torch.cat([PATCHES, PATCHES[:, :1]], dim=1)
    sparse = select(planar_selector(sparse_ratio=0.6), twice, OWN, OTHERS)
    assert sparse.kept.tolist() == [[0, 1, 2]]


def test_nothing_discarded_gives_a_zero_extra_token() -> None:
    model = MultiModalSDTPS(16, 20, sparse_ratio=1.0, use_gumbel=True).train()
    tokens, guides = random_inputs()
    tokens = [t.requires_grad_() for t in tokens]
    results = model(tokens, guides)
    torch.cat([r.tokens for r in results]).square().sum().backward()
    for result, token in zip(results, tokens, strict=True):
        assert result.tokens.shape == (3, 9, 16)  # 20 * 0.4 aggregated, and the extra token
        assert result.tokens[:, -1].eq(0).all()
        assert result.kept.tolist() == [list(range(20))] * 3
        assert token.grad is not None
        assert token.grad.isfinite().all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.93])
def test_invariants_of_the_selection(seed: int, ratio: float) -> None:
    tokens, guides = random_inputs(seed=seed)
    sparse = select(TokenSparse(16, sparse_ratio=ratio), tokens[0], guides[0], guides[1:])
    kept = num_kept(20, ratio)
    assert sparse.decision.sum(dim=-1).tolist() == [kept] * 3
    assert torch.equal(sparse.decision.nonzero()[:, 1].view(3, kept), sparse.kept)
    for sample in range(3):
        keep = sparse.decision[sample].bool()
        assert sparse.scores[sample, keep].min() >= sparse.scores[sample, ~keep].max()


def test_cosines_carry_no_gradient() -> None:
    tokens, guides = random_inputs()
    patches = tokens[0].requires_grad_()
    guides = [guide.requires_grad_() for guide in guides]
    selector = TokenSparse(16)
    select(selector, patches, guides[0], guides[1:]).scores.sum().backward()
    assert [guide.grad for guide in guides] == [None] * 3
    assert not guidance_score(patches, guides[0]).requires_grad

    assert patches.grad is not None
    learned = 0.5 * selector.score_predictor(patches).sigmoid().sum()
    torch.testing.assert_close(patches.grad, torch.autograd.grad(learned, patches)[0])


def test_aggregation_weights_are_a_masked_softmax() -> None:
    aggregate = TokenAggregation(16, 5)
    tokens = random_inputs(patches=8)[0][0]
    plain = aggregate.weights(tokens, torch.ones(3, 8))
    torch.testing.assert_close(plain.sum(dim=-1), torch.ones(3, 5))
    torch.testing.assert_close(
        aggregate(tokens, torch.ones(3, 8)), torch.einsum("bak,bkc->bac", plain, tokens)
    )

    decision = torch.tensor([1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 0.0, 1.0]).expand(3, -1)
    by_hand = decision.unsqueeze(1) * plain
    by_hand = by_hand / by_hand.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(aggregate.weights(tokens, decision), by_hand)


def test_aggregated_tokens_are_those_of_a_softmax_over_the_kept_alone() -> None:
    tokens, guides = random_inputs()
    model = MultiModalSDTPS(16, 20)
    for index, result in enumerate(model(tokens, guides)):
        selected = tokens[index].gather(1, result.kept.unsqueeze(-1).expand(-1, -1, 16))
        aggregate = model.aggregators[index]
        assert isinstance(aggregate, TokenAggregation)
        weights = aggregate.logits(selected).softmax(dim=-1)
        torch.testing.assert_close(result.weights, weights)
        torch.testing.assert_close(result.tokens[:, :-1], weights @ selected)


def test_aggregation_with_scale_zero_is_the_mean() -> None:
    aggregate = TokenAggregation(16, 5)
    aggregate.scale.data.zero_()
    tokens = random_inputs()[0][0]
    mean = tokens.mean(dim=1, keepdim=True).expand(-1, 5, -1)
    torch.testing.assert_close(aggregate(tokens, torch.ones(3, 20)), mean)


def test_each_modality_is_guided_by_its_own_and_the_other_globals() -> None:
    tokens, guides = random_inputs()
    model = MultiModalSDTPS(16, 20)
    for index, result in enumerate(model(tokens, guides)):
        others = [guides[other] for other in range(3) if other != index]
        selector = model.selectors[index]
        assert isinstance(selector, TokenSparse)
        sparse = select(selector, tokens[index], guides[index], others)
        assert torch.equal(result.scores, sparse.scores)
        assert torch.equal(result.kept, sparse.kept)
        aggregated = model.aggregators[index](tokens[index], sparse.decision)
        assert torch.equal(result.tokens, torch.cat([aggregated, sparse.extra], dim=1))
        assert torch.equal(result.sources, sparse.sources)
        selected = tokens[index].gather(1, sparse.kept.unsqueeze(-1).expand(-1, -1, 16))
        torch.testing.assert_close(result.weights @ selected, aggregated)
        said = [guidance_score(tokens[index], guide) for guide in (guides[index], *others)]
        assert torch.equal(result.sources[:, 1:], torch.stack(said, dim=1))


def test_the_order_of_the_patches_does_not_matter() -> None:
    tokens, guides = random_inputs()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    model = MultiModalSDTPS(16, 20)
    shuffled = model([t[:, order] for t in tokens], guides)
    for result, other in zip(model(tokens, guides), shuffled, strict=True):
        torch.testing.assert_close(other.tokens, result.tokens)
        assert torch.equal(other.decision, result.decision[:, order])


def test_any_number_of_modalities() -> None:
    tokens, guides = random_inputs()
    results = MultiModalSDTPS(16, 20, num_modalities=2)(tokens[:2], guides[:2])
    assert [result.tokens.shape for result in results] == [(3, 5, 16)] * 2


def test_number_of_parameters() -> None:
    # Per modality: 512*128+128 + 128+1 in the scores, 2*512 + 512*102+102 + 102*25+25 + 1 in the aggregation.
    assert sum(p.numel() for p in MultiModalSDTPS(512, 128).parameters()) == 365_157


def test_scores_stay_in_float32_under_autocast() -> None:
    tokens, guides = random_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = MultiModalSDTPS(16, 20, use_gumbel=True).train()(tokens, guides)
    for result in results:
        assert result.scores.dtype == torch.float32
        assert result.tokens.isfinite().all()


def test_the_file_works_alone_in_another_project(tmp_path: Path) -> None:
    shutil.copy(sdtps.__file__, tmp_path / "borrowed.py")
    program = (
        "import torch, borrowed\n"
        "model = borrowed.MultiModalSDTPS(16, 20)\n"
        "results = model([torch.randn(2, 20, 16)] * 3, [torch.randn(2, 16)] * 3)\n"
        "assert [r.tokens.shape for r in results] == [(2, 5, 16)] * 3\n"
    )
    run_away_from_the_project(program, tmp_path)
