"""SEPS: by hand, and against the one-text-at-a-time way."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.seps import Inputs, make_inputs, one_text_at_a_time
from conftest import ROOT
from modeling import seps
from modeling.seps import (
    HRPA,
    ContrastiveLoss,
    CrossSparseAggrNet,
    DualTokenAggregation,
    RatioLoss,
    SEPSLoss,
    TokenAggregation,
    TokenSparse,
    create_seps_model,
    mask_xattn_one_text,
    sdtps,
)

SWITCHES = ("score", "dense", "aggregation", "alignment", "similarity", "decision", "ratio_loss")
COMBINATIONS = list(itertools.product(("code", "paper"), repeat=7))
both_versions = pytest.mark.parametrize("paper", [False, True], ids=["code", "paper"])


def small_inputs() -> Inputs:
    """Three images, five pairs of texts, the shorter ones of 2 to 4 words: fewer than `top_k`."""
    torch.manual_seed(0)
    return make_inputs(3, 5, 17, 16, words=4, long_words=8, device="cpu")


def small_model(**settings: Any) -> CrossSparseAggrNet:
    torch.manual_seed(1)
    return create_seps_model(16, 16, 0.5, 0.5, **settings).train()


def without_noise(scores: Tensor, hard: Tensor, tau: float) -> Tensor:
    """In place of `straight_through_gumbel`, so that two ways of drawing can be compared."""
    soft = (scores / tau).softmax(dim=-1)
    return hard + (soft - soft.detach())


# --- Names, counts, switches ---


def test_names_people_know() -> None:
    assert seps.SDTPS is CrossSparseAggrNet
    assert seps.HRPA_function is mask_xattn_one_text
    assert seps.TokenAggregation is sdtps.TokenAggregation
    assert isinstance(create_seps_model(), CrossSparseAggrNet)


def test_number_of_parameters() -> None:
    def count(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    code = create_seps_model(32, 16, 0.5, 0.5)
    paper = create_seps_model(32, 16, 0.5, 0.5, use_paper_version=True)
    assert (count(code), count(paper)) == (291, 1198)
    assert count(code.aggr_net) == 291
    parts = (paper.sparse_net_cap, paper.sparse_net_long, paper.aggr_net, paper.hrpa)
    assert [count(part) for part in parts] == [273, 273, 581, 71]


@both_versions
def test_tokens_of_vit_base(paper: bool) -> None:
    """196 patches -> 98 kept -> 39 aggregated, and the extra token; the class token is another one."""
    model = create_seps_model(32, 196, use_paper_version=paper, ratio_loss="paper")
    seen: list[tuple[torch.Size, torch.Size]] = []
    model.hrpa.register_forward_pre_hook(lambda _, args: seen.append((args[0].shape, args[3].shape)))
    for tokens, class_tokens in ((196, 0), (197, 1)):
        seen.clear()
        _, masks = model(torch.randn(2, tokens, 32), torch.randn(3, 4, 32), [4, 2, 3])
        assert seen == [((2, 3, 39 + 1, 32), (2, class_tokens, 32))]
        assert masks[0].shape == (3, 2, 196)
        assert masks[0].sum(dim=-1).eq(98).all()


@both_versions
def test_use_paper_version_sets_all_seven(paper: bool) -> None:
    model = small_model(use_paper_version=paper)
    assert model.versions == dict.fromkeys(SWITCHES, "paper" if paper else "code")
    assert all(f"{name}=" in repr(model) for name in SWITCHES)


@both_versions
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_can_be_set_alone(switch: str, paper: bool) -> None:
    other = "code" if paper else "paper"
    model = small_model(use_paper_version=paper, **{switch: other})
    assert [name for name, version in model.versions.items() if version == other] == [switch]
    with pytest.raises(ValueError, match=rf"unknown {switch} 'both'; choose from \['code', 'paper'\]"):
        small_model(**{switch: "both"})


def test_older_name_of_the_decision() -> None:
    assert small_model(use_gumbel_softmax=True).versions["decision"] == "paper"
    assert small_model(use_paper_version=True, use_gumbel_softmax=False).versions["decision"] == "code"
    with pytest.raises(ValueError, match="contradicts decision='code'"):
        small_model(use_gumbel_softmax=True, decision="code")


# --- All combinations ---


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "".join(version[0] for version in c))
def test_every_combination_equals_one_text_at_a_time(
    combination: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, with finite gradients for everything that the combination creates."""
    monkeypatch.setattr(sdtps, "straight_through_gumbel", without_noise)
    switches: dict[str, Any] = dict(zip(SWITCHES, combination, strict=True))
    model = small_model(**switches, text_chunk=2)
    inputs = small_inputs()
    leaves = [inputs.img_embs, inputs.cap_embs, inputs.long_cap_embs]
    names = ["images", "words", "long words", *dict(model.named_parameters())]
    direction, ratio_loss = torch.randn(3, 5), RatioLoss(target_ratio=0.3)

    def gradients(similarities: Tensor, masks: Any) -> tuple[Tensor | None, ...]:
        # Not the contrastive loss: it does not see what all similarities share, as the last bias of the MLP.
        loss = (similarities * direction).sum() + ratio_loss(masks)
        return torch.autograd.grad(loss, [*leaves, *model.parameters()], allow_unused=True)

    for leaf in leaves:
        leaf.requires_grad_()
    similarities, masks = model(*inputs)
    expected, (sparse, dense) = one_text_at_a_time(model, inputs)
    expected_masks = (sparse, dense) if switches["ratio_loss"] == "paper" else sparse + dense
    torch.testing.assert_close(similarities, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(masks, expected_masks)

    found, wanted = gradients(similarities, masks), gradients(expected, expected_masks)
    for name, gradient, other in zip(names, found, wanted, strict=True):
        if name == "long words" and switches["dense"] == "paper":
            assert gradient is None  # the dense text only guides the choice
            continue
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        torch.testing.assert_close(gradient, other, atol=2e-6, rtol=1e-4, msg=f"gradient of {name}")
        # A softmax over the patches does not see a bias that all patches share.
        if not re.search(r"weight(_\w+)?\.3\.bias", name):
            assert gradient.abs().max() > 1e-8, name


@both_versions
def test_without_dense_texts(paper: bool) -> None:
    model = small_model(use_paper_version=paper)
    inputs = small_inputs()
    similarities, masks = model(*inputs[:3])
    assert similarities.shape == (3, 5)
    (mask,) = masks if paper else (masks,)
    assert mask.shape == (5, 3, 16)
    assert mask.sum(dim=-1).eq(8).all()
    assert SEPSLoss(target_ratio=0.5)(similarities[:, :3], masks).ratio.item() == 0
    if not paper:  # the second branch adds its similarity to that of the first
        together = model(*inputs)[0]
        long_only = model(inputs.img_embs, inputs.long_cap_embs, inputs.long_cap_lens)[0]
        torch.testing.assert_close(together, similarities + long_only)


# --- All pairs at once ---


@both_versions
def test_chunks_do_not_change_the_result(paper: bool) -> None:
    inputs = small_inputs()
    model = small_model(use_paper_version=paper, ratio_loss="paper", text_chunk=100)
    similarities, masks = model(*inputs)
    for text_chunk in (1, 2, 3, 5):
        model.text_chunk = text_chunk
        again, again_masks = model(*inputs)
        torch.testing.assert_close(again, similarities, atol=1e-6, rtol=0)
        assert all(torch.equal(a, b) for a, b in zip(again_masks, masks, strict=True))
    with pytest.raises(ValueError, match="text_chunk must be at least 1, not 0"):
        small_model(text_chunk=0)


@both_versions
def test_what_does_not_depend_on_the_text_is_done_once(paper: bool) -> None:
    model = small_model(use_paper_version=paper, text_chunk=1)
    networks = [
        m for m in model.modules() if isinstance(m, nn.Sequential) and m is not model.hrpa.relevance_mlp
    ]
    calls: list[nn.Module] = []
    for network in networks:
        network.register_forward_hook(lambda module, *_: calls.append(module))
    model(*small_inputs())
    assert len(networks) == (4 if paper else 1)
    assert sorted(map(id, calls)) == sorted(map(id, networks))


@both_versions
def test_padding_and_order_do_not_matter(paper: bool) -> None:
    inputs = small_inputs()
    model = small_model(use_paper_version=paper).eval()
    similarities = model(*inputs)

    def with_noise(words: Tensor, lengths: list[int]) -> Tensor:
        noisy = F.pad(words, (0, 0, 0, 3), value=7.0)
        for text, length in zip(noisy, lengths, strict=True):
            text[length:] = 100 * torch.randn_like(text[length:])
        return noisy

    padded = model(
        inputs.img_embs,
        with_noise(inputs.cap_embs, inputs.cap_lens),
        inputs.cap_lens,
        with_noise(inputs.long_cap_embs, inputs.long_cap_lens),
        torch.tensor(inputs.long_cap_lens),
    )
    torch.testing.assert_close(padded, similarities)

    texts, images = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 0, 1])
    moved = model(
        inputs.img_embs[images],
        inputs.cap_embs[texts],
        torch.tensor(inputs.cap_lens)[texts],
        inputs.long_cap_embs[texts],
        torch.tensor(inputs.long_cap_lens)[texts],
    )
    torch.testing.assert_close(moved, similarities[images][:, texts])


@both_versions
def test_class_token_is_aligned_but_not_selected(paper: bool) -> None:
    inputs = small_inputs()
    model = small_model(use_paper_version=paper, ratio_loss="paper")
    with_class, masks = model(*inputs)
    without_class, other_masks = model(inputs.img_embs[:, 1:], *inputs[1:])
    assert all(torch.equal(a, b) for a, b in zip(masks, other_masks, strict=True))
    assert (with_class - without_class).abs().min() > 1e-4


def test_fused_extra_token_is_the_mean_of_both() -> None:
    """The alignment is blind to the length of a token, so the similarities alone would not tell."""
    model, inputs = small_model(dense="paper"), small_inputs()
    extra: list[Tensor] = []
    tokens: list[Tensor] = []
    for selector in (model.sparse_net_cap, model.sparse_net_long):
        selector.register_forward_hook(lambda _, __, choice: extra.append(choice.extra))
    model.hrpa.register_forward_pre_hook(lambda _, args: tokens.append(args[0]))
    model(*inputs)
    expected = (extra[0] + extra[1]) / 2 @ inputs.img_embs[:, 1:]  # (3, 5, 16)
    torch.testing.assert_close(tokens[0][:, :, -1], expected)


@both_versions
def test_training_and_evaluation_agree(paper: bool) -> None:
    inputs, model = small_inputs(), small_model(use_paper_version=paper)
    similarities, _ = model(*inputs)
    evaluated = model.eval()(*inputs)
    assert torch.equal(evaluated, similarities)


@both_versions
def test_nothing_discarded(paper: bool) -> None:
    model = create_seps_model(16, 16, sparse_ratio=1.0, use_paper_version=paper).train()
    inputs = small_inputs()
    inputs.img_embs.requires_grad_()
    similarities, _ = model(*inputs)
    similarities.sum().backward()
    assert similarities.isfinite().all()
    assert inputs.img_embs.grad is not None
    assert inputs.img_embs.grad.isfinite().all()


@both_versions
def test_scores_stay_exact_under_autocast(paper: bool) -> None:
    """The choice must not depend on the eight bits of bfloat16, as far as no learned score does."""
    inputs, model = small_inputs(), small_model(use_paper_version=paper, score="code", ratio_loss="paper")
    _, masks = model(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        similarities, low_masks = model(*inputs)
    assert similarities.isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(masks, low_masks, strict=True))


def test_wrong_texts() -> None:
    model, (images, words, lengths, long_words, long_lengths) = small_model(), small_inputs()
    for wrong in ([4, 4], [4, 4, 4, 4, 0], [4, 4, 4, 4, 5]):
        with pytest.raises(ValueError, match=r"5 texts need 5 lengths in 1\.\.4, not \[4, 4"):
            model(images, words, wrong)
    with pytest.raises(ValueError, match="5 texts in cap_embs need as many in long_cap_embs"):
        model(images, words, lengths, long_words[:3], long_lengths[:3])
    with pytest.raises(ValueError, match="belong together"):
        model(images, words, lengths, long_words)


# --- The parts, by hand ---

IMAGE = torch.tensor([[[1.0, 0.5, 0.0, -1.0]]])  # min-max: 1, .75, .5, 0
SPARSE = torch.tensor([[[0.0, 0.8, 0.2, 0.4]]])  # min-max: 0, 1, .25, .5
DENSE = torch.tensor([[[-0.1, -0.3, 0.1, -0.3]]])  # min-max: .5, 0, 1, 0
PREDICTED = torch.tensor([[[0.5, 0.25, 0.75, 0.5]]])


def test_score_of_the_code_by_hand() -> None:
    scores = TokenSparse(4).score(None, IMAGE, [SPARSE, DENSE])
    torch.testing.assert_close(scores, torch.tensor([[[1.0, 1.3, 0.2, -0.6]]]))


@pytest.mark.parametrize(
    ("texts", "scores"),
    [
        ([SPARSE, DENSE], [0.875, 0.75, 0.9375, 0.375]),  # the third: .5 * .75 + .25 * (.25 + 1 + 2 * .5)
        ([DENSE, SPARSE], [0.875, 0.75, 0.9375, 0.375]),
        ([SPARSE], [0.75, 0.75, 0.6875, 0.375]),
    ],
)
def test_score_of_the_paper_by_hand(texts: list[Tensor], scores: list[float]) -> None:
    selector = TokenSparse(4, score="paper", beta=0.25)
    torch.testing.assert_close(selector.score(PREDICTED, IMAGE, texts), torch.tensor([[scores]]))


def test_choice_by_hand() -> None:
    choice = TokenSparse(4, sparse_ratio=0.5)(None, IMAGE, [SPARSE])
    assert choice.decision.tolist() == [[[1, 1, 0, 0]]]
    third = math.exp(0.2) / (math.exp(0.2) + math.exp(-0.6))
    torch.testing.assert_close(choice.extra, torch.tensor([[[0.0, 0.0, third, 1 - third]]]))


def test_predicted_score() -> None:
    selector = TokenSparse(16, score="paper")
    patches = torch.randn(2, 9, 16, requires_grad=True)
    predicted = selector.predict(patches)
    assert predicted is not None
    assert selector.score_predictor is not None
    assert predicted.requires_grad
    torch.testing.assert_close(predicted, selector.score_predictor(patches).sigmoid().view(2, 1, 9))
    assert TokenSparse(16).predict(patches) is None


def test_dual_aggregation_is_the_sum_of_two() -> None:
    dual = DualTokenAggregation(16, 5)
    sparse, dense = torch.randn(3, 8, 16), torch.randn(3, 8, 16)
    parts = []
    for network, tokens in ((dual.weight_sparse, sparse), (dual.weight_dense, dense)):
        single = TokenAggregation(16, 5)
        single.weight = network
        weights = single.weights(tokens, torch.ones(3, 8))
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, 5))
        parts.append(single(tokens, torch.ones(3, 8)))
    torch.testing.assert_close(dual(sparse, dense, torch.ones(3, 8), torch.ones(3, 8)), parts[0] + parts[1])


def test_zeros_of_the_decision_mask_all_patches_but_the_kept() -> None:
    """All N patches with zeros in D, or the K kept ones with ones: the same weights."""
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 6)
    kept, _, decision = sdtps.choose(torch.rand(2, 6), 0.5)
    index = kept.unsqueeze(1).expand(-1, 3, -1)
    gathered = logits.gather(2, index).softmax(dim=-1)
    torch.testing.assert_close(
        sdtps.masked_softmax(logits, decision), torch.zeros(2, 3, 6).scatter(2, index, gathered)
    )


# Two tokens and two words in the plane, then a third word which is padding. Cosines, tokens x words:
#   (3, 4) / 5 with (1, 0), (0, -1): .6, -.8;  (0, 2) / 2: 0, -1.
# Words: max(.6, 0) = .6, max(-.8, -1) = -.8.  Tokens: .6, 0.
TOKENS = torch.tensor([[[[3.0, 4.0], [0.0, 2.0]]]])
WORDS = torch.tensor([[[2.0, 0.0], [0.0, -0.5], [0.0, 9.0]]])
VALID = torch.tensor([[True, True, False]])


def relevance_by_hand(hrpa: HRPA) -> None:
    """MLP(top) = GELU(weights . top) with one weight per rank; the other hidden units are silent."""
    assert hrpa.relevance_mlp is not None
    for parameter in hrpa.parameters():
        parameter.data.zero_()
    first, _, last = hrpa.relevance_mlp.children()
    first.get_parameter("weight").data[0] = torch.tensor([10.0, 1.0, 100.0])
    last.get_parameter("weight").data[0, 0] = 1.0


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        ("paper", (0.6 - 0.8) / 2 + (0.6 + 0.0) / 2),
        ("code", (0.6 - 0.08) / 2 + (0.6 + 0.0) / 2),
    ],
)
def test_alignment_by_hand(similarity: Any, expected: float) -> None:
    result = HRPA(similarity=similarity)(TOKENS, WORDS, VALID)
    torch.testing.assert_close(result, torch.tensor([[expected]]))


def test_relevance_by_hand() -> None:
    """The two maxima in descending order, then a zero, although -.8 is smaller."""
    hrpa = HRPA(alignment="paper", similarity="paper", top_k=3)
    relevance_by_hand(hrpa)
    mlp = F.gelu(torch.tensor(10 * 0.6 - 0.8)) + F.gelu(torch.tensor(10 * 0.6))
    torch.testing.assert_close(hrpa(TOKENS, WORDS, VALID), (-0.1 + 0.3 + mlp).view(1, 1))


def test_class_token_in_the_alignment_by_hand() -> None:
    """(0, -3) has cosines 0, -> 1 with the words; they become .6, 1, and the tokens .6, 0, 1."""
    result = HRPA(similarity="paper")(TOKENS, WORDS, VALID, torch.tensor([[[0.0, -3.0]]]))
    torch.testing.assert_close(result, torch.tensor([[1.6 / 2 + 1.6 / 3]]))


def test_one_text_by_hand() -> None:
    tokens = F.normalize(TOKENS[0], dim=-1)
    result = mask_xattn_one_text(tokens, F.normalize(WORDS[:, :2], dim=-1))
    torch.testing.assert_close(result, torch.tensor([[0.26 + 0.3]]))


# --- Losses ---

SIMILARITIES = torch.tensor([[0.9, 0.8, 0.75], [0.1, 0.5, 0.2], [0.4, 0.0, 0.6]])


def test_contrastive_loss_by_hand() -> None:
    # Rows, margin .2: .1, .05 | 0, 0 | 0 (.4 + .2 - .6), 0. Columns: 0, 0 | .5, 0 | .35, 0.
    assert ContrastiveLoss(0.2, max_violation=True)(SIMILARITIES).item() == pytest.approx(0.1 + 0.5 + 0.35)
    assert ContrastiveLoss(0.2)(SIMILARITIES).item() == pytest.approx(0.15 + 0.5 + 0.35)
    with pytest.raises(ValueError, match=r"square, image i with text i, not \(3, 2\)"):
        ContrastiveLoss()(SIMILARITIES[:, :2])


def test_ratio_loss_by_hand() -> None:
    sparse = torch.tensor([[[1.0, 0, 0, 0], [1, 1, 0, 0]]])  # mean .375
    dense = torch.tensor([[[1.0, 1, 1, 1], [1, 1, 1, 0]]])  # mean .875
    loss = RatioLoss(0.5, lambda_sparse=2.0, lambda_dense=3.0)
    assert loss((sparse, dense)).item() == pytest.approx(2 * 0.125**2 + 3 * 0.375**2)
    assert loss((sparse,)).item() == pytest.approx(2 * 0.125**2)
    assert loss(sparse + dense).item() == pytest.approx(0.75**2)


def test_total_loss() -> None:
    total, alignment, ratio = SEPSLoss(target_ratio=0.25, ratio_weight=3.0)(SIMILARITIES, torch.ones(3, 3, 4))
    assert (alignment.item(), ratio.item()) == (pytest.approx(1.0), pytest.approx(0.75**2))
    assert total.item() == pytest.approx(1.0 + 3 * 0.75**2)


# --- Gumbel ---


def test_gumbel_changes_gradients_only_and_keeps_their_size() -> None:
    """With the mask (1 - D) * 1e10 of the published code the ratio is about 1e9."""
    inputs = small_inputs()
    norms, values = [], []
    for decision in ("code", "paper"):
        model = small_model(use_paper_version=True, decision=decision)
        similarities, masks = model(*inputs)
        SEPSLoss()(similarities[:, :3], masks).total.backward()
        values.append(similarities)
        norms.append(torch.cat([p.grad.flatten() for p in model.sparse_net_cap.parameters()]).norm().item())  # type: ignore[union-attr]
    assert torch.equal(*values)
    assert norms[0] != norms[1]
    assert 0.1 < norms[1] / norms[0] < 10


def test_example_of_the_page() -> None:
    page = ROOT / "docs" / "seps.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    names: dict[str, Any] = {}
    exec(compile(code, str(page), "exec"), names)
    assert names["similarities"].shape == (8, 8)
    assert names["losses"].total.isfinite()
    assert all(parameter.grad is not None for parameter in names["model"].parameters())
