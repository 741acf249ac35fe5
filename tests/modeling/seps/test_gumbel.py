"""Straight-through Gumbel: the forward pass of a hard choice, with a gradient of the right size.

`softmax_with_1e10` is the masking that others use; it is here, and in a study, to show what it does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from modeling.heads import BNNeckHead
from modeling.seps import sdtps
from modeling.seps.sdtps import (
    AggregatedTokens,
    MultiModalSDTPS,
    SparseTokens,
    TokenSparse,
    choose,
    guidance_score,
    masked_softmax,
    straight_through_gumbel,
)
from structures import Role

BATCH, PATCHES, MODALITIES = 8, 128, 3
IDS = torch.arange(BATCH) // 2


def softmax_with_1e10(logits: Tensor, decision: Tensor) -> Tensor:
    return (logits - (1 - decision).unsqueeze(-2) * 1e10).softmax(dim=-1)


class GradientNorms(NamedTuple):
    score_mlp: float
    tokens: float


def make_inputs(dim: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    patches = [torch.randn(BATCH, PATCHES, dim, generator=generator) for _ in range(MODALITIES)]
    guides = [torch.randn(BATCH, dim, generator=generator) for _ in range(MODALITIES)]
    return patches, guides


def select(selector: TokenSparse, patches: list[Tensor], guides: list[Tensor]) -> SparseTokens:
    """Of the patches of the first modality."""
    said = [guidance_score(patches[0], guide) for guide in guides]
    return selector(patches[0], selector.predict(patches[0]), said)


def run(dim: int, seed: int, *, use_gumbel: bool, train: bool = True) -> list[AggregatedTokens]:
    torch.manual_seed(seed)
    model = MultiModalSDTPS(dim, PATCHES, use_gumbel=use_gumbel).train(train)
    return model(*make_inputs(dim, seed))


def gradient_norms(dim: int, seed: int, *, use_gumbel: bool) -> GradientNorms:
    """Gradients of what the model trains SDTPS by: the mean token of each modality, BNNeck, cross-entropy.

    All tokens count alike in the mean. So the extra token, through which the scores are trained without
    Gumbel, and the aggregated tokens, through which Gumbel trains them, have the shares of real training.
    """
    torch.manual_seed(seed)
    model = MultiModalSDTPS(dim, PATCHES, use_gumbel=use_gumbel).train()
    head = BNNeckHead(MODALITIES * dim, 20)
    patches, guides = make_inputs(dim, seed)
    patches = [patch.requires_grad_() for patch in patches]
    results = model(patches, guides)
    features = torch.cat([result.tokens.mean(dim=1) for result in results], dim=1)
    F.cross_entropy(head(features, "sdtps", Role.FUSED).logits, IDS).backward()
    score_mlp = [p.grad for p in model.selectors.parameters() if p.grad is not None]
    tokens = [p.grad for p in patches if p.grad is not None]
    assert len(score_mlp) == 4 * MODALITIES
    assert len(tokens) == MODALITIES
    return GradientNorms(
        *(torch.cat([g.flatten() for g in grads]).norm().item() for grads in (score_mlp, tokens))
    )


def ratios(dim: int, seed: int) -> GradientNorms:
    """Gradient norms with Gumbel on, relative to Gumbel off."""
    off, on = (gradient_norms(dim, seed, use_gumbel=use) for use in (False, True))
    return GradientNorms(*(a / b for a, b in zip(on, off, strict=True)))


@pytest.mark.parametrize(("dim", "seed"), [(64, 0), (64, 1), (64, 2), (64, 3), (512, 0)])
def test_gradients_have_the_size_they_have_without_gumbel(dim: int, seed: int) -> None:
    for ratio in ratios(dim, seed):
        assert 1 / 3 < ratio < 3


@pytest.mark.parametrize(("dim", "seed"), [(64, 0), (512, 0)])
def test_the_1e10_form_fails_that_check_although_its_forward_is_right(
    dim: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = run(dim, seed, use_gumbel=True)
    monkeypatch.setattr(sdtps, "masked_softmax", softmax_with_1e10)
    theirs = run(dim, seed, use_gumbel=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.tokens, b.tokens, atol=1e-6, rtol=0)
    assert min(ratios(dim, seed)) > 1e3


@pytest.mark.parametrize("train", [True, False])
def test_forward_is_bit_identical_to_gumbel_off(train: bool) -> None:
    on, off = (run(64, 0, use_gumbel=use, train=train) for use in (True, False))
    for a, b in zip(on, off, strict=True):
        for field in AggregatedTokens._fields:
            assert torch.equal(getattr(a, field), getattr(b, field)), field


def test_evaluation_is_deterministic_and_draws_nothing() -> None:
    patches, guides = make_inputs(64, 0)
    model = MultiModalSDTPS(64, PATCHES, use_gumbel=True).eval()
    state = torch.get_rng_state()
    first, second = model(patches, guides), model(patches, guides)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.tokens, b.tokens)


def test_training_draws_new_noise_each_time() -> None:
    patches, guides = make_inputs(16, 0)
    selector = TokenSparse(16, use_gumbel=True).train()

    def gradient() -> Tensor:
        sparse = select(selector, patches, guides)
        weights = torch.linspace(0, 1, PATCHES)
        return torch.autograd.grad(
            (sparse.decision * weights).sum(), next(selector.score_predictor.parameters())
        )[0]

    assert not torch.equal(gradient(), gradient())


def test_decision_is_the_hard_mask_and_has_a_gradient() -> None:
    patches, guides = make_inputs(64, 0)
    selector = TokenSparse(64, use_gumbel=True).train()
    on = select(selector, patches, guides)
    off = select(copy.deepcopy(selector).eval(), patches, guides)
    assert torch.equal(on.decision, off.decision)
    assert set(on.decision.unique().tolist()) == {0.0, 1.0}
    assert on.decision.gather(1, on.kept).eq(1).all()
    assert on.decision.requires_grad
    assert not off.decision.requires_grad


@pytest.mark.parametrize("use_gumbel", [True, False])
def test_only_gumbel_lets_the_aggregated_tokens_train_the_scores(use_gumbel: bool) -> None:
    torch.manual_seed(0)
    model = MultiModalSDTPS(64, PATCHES, use_gumbel=use_gumbel).train()
    results = model(*make_inputs(64, 0))
    sum(result.tokens[:, :-1].square().sum() for result in results).backward()
    gradients = [p.grad for p in model.selectors.parameters()]
    reached = [gradient is not None and gradient.abs().max().item() > 0 for gradient in gradients]
    assert all(reached) if use_gumbel else not any(reached)


def jacobian(weights: Callable[[Tensor], Tensor], decision: Tensor) -> Tensor:
    """Row i, column j: how W_i changes with D_j."""
    size = decision.shape[-1]
    return torch.autograd.functional.jacobian(weights, decision).reshape(size, size)


@pytest.mark.parametrize(
    ("softmax", "factor"),
    [pytest.param(masked_softmax, 1.0, id="ours"), pytest.param(softmax_with_1e10, 1e10, id="1e10")],
)
def test_gradient_where_all_are_kept_by_hand(
    softmax: Callable[[Tensor, Tensor], Tensor], factor: float
) -> None:
    # e^l = 1, 2, 3, so W = 1/6, 2/6, 3/6, and where D = 1, dW_i/dD_j = W_i (1[i=j] - W_j).
    logits = torch.tensor([[[1.0, 2.0, 3.0]]], dtype=torch.float64).log()
    decision = torch.ones(1, 3, dtype=torch.float64)
    torch.testing.assert_close(softmax(logits, decision) * 6, logits.exp())
    by_hand = (
        torch.tensor([[5.0, -2.0, -3.0], [-2.0, 8.0, -6.0], [-3.0, -6.0, 9.0]], dtype=torch.float64) / 36
    )
    torch.testing.assert_close(jacobian(partial(softmax, logits), decision) / factor, by_hand)


def test_a_discarded_token_has_a_gradient_by_hand() -> None:
    # e^l = 1, 2, 4 and the third is discarded: W = 1/3, 2/3, 0. With S = sum of D_k e^{l_k} = 3,
    # dW_i/dD_j = e^{l_j} (1[i=j] - W_i) / S: for the third (0 - 1/3, 0 - 2/3, 1) * 4/3.
    logits = torch.tensor([[[1.0, 2.0, 4.0]]], dtype=torch.float64).log()
    decision = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[[1 / 3, 2 / 3, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(masked_softmax(logits, decision), weights)
    by_hand = torch.tensor([[2.0, -2.0, -4.0], [-2.0, 2.0, -8.0], [0.0, 0.0, 12.0]], dtype=torch.float64) / 9
    torch.testing.assert_close(jacobian(partial(masked_softmax, logits), decision), by_hand)
    # The usual mask says nothing of it.
    assert jacobian(partial(softmax_with_1e10, logits), decision)[:, 2].abs().max() == 0


def test_what_is_discarded_does_not_change_the_weights_however_large_its_logit() -> None:
    logits = torch.tensor([[[1.0, 2.0, 500.0]]], requires_grad=True)
    decision = torch.tensor([[1.0, 1.0, 0.0]], requires_grad=True)
    weights = masked_softmax(logits, decision)
    torch.testing.assert_close(weights[0, 0, :2], torch.tensor([1.0, 2.0]).softmax(dim=0))
    assert weights[0, 0, 2] == 0
    weights.square().sum().backward()
    assert logits.grad is not None
    assert decision.grad is not None
    assert logits.grad.isfinite().all()
    assert decision.grad.isfinite().all()


@pytest.mark.parametrize("kept", [False, True])
def test_gumbel_lets_discarded_patches_train_their_score(kept: bool) -> None:
    # One token, nearly all weight on patch 0; the loss wants it to be like patch 1.
    patches = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    scores = torch.tensor([[0.0, 1.0] if kept else [1.0, 0.0]], requires_grad=True)
    torch.manual_seed(0)
    decision = choose(scores, 0.5, gumbel_tau=1.0).decision
    token = masked_softmax(torch.zeros(1, 1, 2), decision) @ patches
    (token - patches[:, 1:]).square().sum().backward()
    assert scores.grad is not None
    assert (scores.grad[0, 1] == 0) if kept else (scores.grad[0, 1] < 0)


@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0])
def test_gradient_of_the_decision_is_that_of_the_soft_choice(tau: float) -> None:
    scores = torch.tensor([[0.2, 0.9, 0.5, 0.1]], dtype=torch.float64)
    hard = torch.tensor([[0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)

    def decide(s: Tensor) -> Tensor:
        torch.manual_seed(0)
        return straight_through_gumbel(s, hard, tau)

    torch.manual_seed(0)
    noise = -torch.empty_like(scores).exponential_().log()
    soft = ((scores + noise) / tau).softmax(dim=-1)[0]
    found = jacobian(decide, scores)
    assert torch.equal(decide(scores), hard)
    torch.testing.assert_close(found, (soft.diag() - soft.outer(soft)) / tau)


def test_the_noise_is_gumbel() -> None:
    # With Gumbel noise, the softer choice p prefers patch 0 to patch 1 with probability sigmoid(s_0 - s_1).
    # The gradients tell p: dD_0/ds_2 = -p_0 p_2 and dD_1/ds_2 = -p_1 p_2.
    torch.manual_seed(0)
    scores = torch.tensor([math.log(3), 0.0, 0.0], dtype=torch.float64).repeat(20_000, 1).requires_grad_()
    decision = straight_through_gumbel(scores, torch.zeros_like(scores), tau=1.0)
    first, second = (
        torch.autograd.grad(decision[:, i].sum(), scores, retain_graph=True)[0][:, 2] for i in (0, 1)
    )
    assert (first < second).double().mean().item() == pytest.approx(0.75, abs=0.015)
