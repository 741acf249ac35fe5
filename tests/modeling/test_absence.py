"""Absent images: what skipping them costs, and that nothing of them reaches a descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import SMALL_MODEL
from errors import UserError
from modeling.backbone.attention import attention_rollout
from modeling.branches.demo import SUBSETS, QueryAttention
from modeling.cost import count_multiply_adds, measure_cost
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from structures import MISSING_CONDITIONS, ModalBatch, Modality, ModelOutput, PerModality

SMALL = ["INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]"]
ALL_PARTS = [*SMALL, "MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "2"]
SKIP = ["TEST.ABSENT", "skip"]
TOKEN = [*SKIP, "MODEL.ABSENT_TOKEN", "True"]
SLIM = [*SKIP, "MODEL.SLIM_LAYERS", "[2]"]
ATTENTION = [*TOKEN, "MODEL.SDTPS_GUIDE", "attention"]
EDITOR = [*TOKEN, "MODEL.USE_EDITOR", "True", "EDITOR.FREQUENCY_KEEP", "1", "EDITOR.HEAD_KEEP", "1"]
ADAPTERS = [*SKIP, "MODEL.TUNE", "adapter", "MODEL.ADAPTER_SHARED", "False"]
WAYS = {"zeros": [], "skip": SKIP, "token": TOKEN, "slim": SLIM, "adapters": ADAPTERS}
RGB_TI = (Modality.RGB, Modality.TI)


def build(options: Sequence[str] = (), modalities: Sequence[Modality] = tuple(Modality)) -> MultiModalReID:
    """The small model with all parts, the same weights each time."""
    torch.manual_seed(0)
    return make_model(load_config(SMALL_MODEL, [*ALL_PARTS, *options]), 6, 2, modalities=modalities).eval()


def make_batch(size: int = 4) -> ModalBatch:
    generator = torch.Generator().manual_seed(1)
    images = PerModality.build(lambda _: torch.randn(size, 3, 32, 16, generator=generator))
    ids = torch.arange(size)
    return ModalBatch(images, ids % 2, ids % 2, torch.zeros_like(ids))


def mixed_batch() -> ModalBatch:
    """A complete triple, and one without RGB, without NI and TI, without TI."""
    present = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
    batch = make_batch()
    there = PerModality(*present.unbind(dim=1))
    images = PerModality.build(lambda m: batch.images.of(m).masked_fill(~there.of(m).view(-1, 1, 1, 1), 0.0))
    return replace(batch, images=images, present=there)


def row_of(batch: ModalBatch, row: int) -> ModalBatch:
    return batch._map_tensors(lambda tensor: tensor[row : row + 1])


def assert_same(ours: ModelOutput, theirs: ModelOutput) -> None:
    for our_head, their_head in zip(ours.heads, theirs.heads, strict=True):
        torch.testing.assert_close(our_head.features, their_head.features, atol=1e-5, rtol=1e-4)


def test_presence_follows_what_is_taken_away() -> None:
    batch = make_batch()
    assert batch.num_images == 12
    without = batch.without([Modality.NI])
    assert without.present.map(lambda there: there.tolist()) == ([True] * 4, [False] * 4, [True] * 4)
    assert without.num_images == 8
    assert not without.images.ni.any()


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@torch.no_grad()
def test_mixed_batches_equal_single_ones(options: list[str]) -> None:
    model, batch = build(options), mixed_batch()
    whole = model(batch)
    for row in range(len(batch)):
        alone = model(row_of(batch, row))
        for head, single in zip(whole.heads, alone.heads, strict=True):
            torch.testing.assert_close(head.features[row : row + 1], single.features, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_nothing_is_different_where_nothing_is_absent() -> None:
    batch, zeros = make_batch(), build()
    for options in (SKIP, SLIM):
        skip = build(options)
        plain = build(SLIM[2:]) if options is SLIM else zeros
        assert_same(skip(batch), plain(batch))


@pytest.mark.parametrize(
    "options",
    [SKIP, TOKEN, SLIM, ATTENTION, EDITOR],
    ids=["skip", "token", "slim", "attention", "editor"],
)
@torch.no_grad()
def test_pixels_of_an_absent_image_do_not_matter(options: list[str]) -> None:
    """Presence is said, not seen: an image full of noise that is not there changes nothing."""
    model, batch = build(options), mixed_batch()
    noisy = replace(batch, images=batch.images.map(lambda images: torch.where(images == 0, 9.0, images)))
    assert_same(model(noisy), model(batch))
    black = replace(batch, present=make_batch().present)  # the same pixels, but they are there
    assert not torch.allclose(model(black).embedding(3), model(batch).embedding(3), atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [[], SKIP, TOKEN, SLIM, ATTENTION, EDITOR],
    ids=["zeros", "skip", "token", "slim", "attention", "editor"],
)
@torch.no_grad()
def test_conditions_of_a_mixed_batch(options: list[str]) -> None:
    model, batch = build(options), mixed_batch()
    outputs = model.forward_conditions(batch, MISSING_CONDITIONS)
    for condition, missing in MISSING_CONDITIONS.items():
        assert_same(outputs[condition], model(batch.without(missing)))


@torch.no_grad()
def test_the_backbone_sees_the_images_that_are_there() -> None:
    seen: list[int] = []
    for options in ([], SKIP, SLIM):
        model = build(options)
        model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
        model(mixed_batch())
        model(make_batch().without([Modality.NI]))
    assert seen == [12, 12, 8, 8, 8, 8]


@torch.no_grad()
def test_absent_parts_are_zeros_and_guide_nobody() -> None:
    batch, model = make_batch(), build(SKIP)
    heads = {head.name: head for head in model(batch.without([Modality.NI])).heads}
    for name in ("ori", "sdtps"):
        rgb, ni, ti = heads[name].features.chunk(3, dim=1)
        assert not ni.any()
        assert rgb.any(dim=1).all()
        assert ti.any(dim=1).all()
    selection = model(batch.without([Modality.NI])).selections["sdtps"]
    assert not selection.sources.rgb["ni"].any(), "an absent image has no opinion on patches"
    assert selection.sources.rgb["ti"].any()
    # HDM: n has no image, and rn is made of r alone.
    tokens = model.encode(batch.without([Modality.NI]))
    features = dict(zip(SUBSETS, model.branches["moe"](tokens).features.unbind(1), strict=True))
    assert not features["n"].any()
    changed = replace(tokens, patches=tokens.patches._replace(ni=torch.ones_like(tokens.patches.ni)))
    assert torch.equal(model.branches["moe"](changed).features[:, 3], features["rn"])


def test_attention_leaves_out_tokens_by_hand() -> None:
    torch.manual_seed(0)
    attention = QueryAttention(8, 2, dropout=0.0)
    tokens = torch.randn(2, 5, 8)
    counts = torch.tensor([[True, True, False, False, True], [False] * 5])
    whole = attention(tokens, counts)
    torch.testing.assert_close(whole[:1], attention(tokens[:1, [0, 1, 4]]))
    assert whole[1].isfinite().all()


def test_learned_tokens_stand_in_and_learn() -> None:
    model, batch = build(TOKEN).train(), mixed_batch()
    tokens = model.encode(batch)
    assert tokens.present is None, "all count"
    learned = model.absent_tokens
    assert learned is not None
    assert torch.equal(tokens.globals_.rgb[1], learned.tokens["rgb"][0])
    assert torch.equal(tokens.patches.ti[2], learned.tokens["ti"][1].expand(8, -1))
    model(batch).embedding(3).square().sum().backward()
    assert all(token.grad is not None and token.grad.any() for token in learned.parameters())
    # Without an absent image they are part of the graph all the same, as several processes need it.
    model.zero_grad()
    model(make_batch()).embedding(3).square().sum().backward()
    assert all(token.grad is not None and not token.grad.any() for token in learned.parameters())


def test_gradients_are_those_of_the_images_that_are_there() -> None:
    model, batch = build(SKIP).train(), mixed_batch()
    images = batch.images.map(lambda values: values.clone().requires_grad_())
    model(replace(batch, images=images)).embedding(3).square().sum().backward()
    for modality in Modality:
        gradient = images.of(modality).grad
        assert gradient is not None
        assert gradient.flatten(1).any(dim=1).tolist() == batch.present.of(modality).tolist()
    assert all(p.grad is not None for p in model.branches.parameters()), "none is left out of the graph"


@pytest.mark.parametrize("options", [[], SKIP, TOKEN, SLIM[2:]], ids=["zeros", "skip", "token", "slim"])
@torch.no_grad()
def test_a_model_for_two_modalities(options: list[str]) -> None:
    model, batch = build(options, RGB_TI), make_batch()
    seen: list[int] = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    output = model(batch)
    assert seen == [8]
    assert [head.features.shape[1] for head in output.heads] == [2 * 64, 2 * 64, 3 * 64]
    assert output.parts == RGB_TI
    assert not any(".ni." in name or "rnt" in name for name in model.state_dict())
    assert_same(model(batch.without([Modality.NI])), output)
    assert output.selection is not None
    assert output.selection.masks.map(lambda kept: bool(kept.any())) == (True, False, True)
    conditions = {"complete": (), "r": (Modality.RGB,), "t": (Modality.TI,)}
    for condition, found in model.forward_conditions(batch, conditions).items():
        assert_same(found, model(batch.without(conditions[condition])))


def test_cost_is_that_of_the_images_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modeling.cost.measure_speed", lambda *_: 1.0)
    three, two = build(), build(modalities=RGB_TI)
    whole, part = count_multiply_adds(three), count_multiply_adds(two)
    for name in ("backbone", "PIFE", "SDTPS"):
        # SDTPS compares each modality with each: 9 pairs and 4.
        assert part[name] == pytest.approx(whole[name] * 2 / 3, rel=0.1 if name == "SDTPS" else 1e-6)
    assert part["HDM"] < 0.45 * whole["HDM"]  # 4 of 12 modalities in subsets
    skipped = count_multiply_adds(build(SKIP), RGB_TI)
    assert skipped["backbone"] == part["backbone"]
    for options in (SKIP, TOKEN, EDITOR):  # nothing is missing: all of them can be counted
        modalities = tuple(Modality) if options is EDITOR else RGB_TI
        assert count_multiply_adds(build(options, modalities))["backbone"] > 0
    assert count_multiply_adds(three, RGB_TI)["backbone"] == whole["backbone"], "zeros cost as much as images"
    report = measure_cost(two, tuple(Modality))
    assert report.modalities == RGB_TI
    assert "one triple, images: 2 (RGB, TI)" in report.table()
    assert report.as_dict()["modalities"] == ["RGB", "TI"]


def test_a_branch_that_compares_three_modalities_is_refused_without_one() -> None:
    signal = ["MODEL.USE_SIGNAL", "True", "SIGNAL.LAM_WEIGHT", "0"]
    with pytest.raises(UserError, match=r"the branch signal compares three .* are RGB, TI; switch it off"):
        build(signal, RGB_TI)
    with pytest.raises(UserError, match=r"with TEST\.ABSENT skip, set MODEL\.ABSENT_TOKEN True"):
        build([*signal, *SKIP])
    build([*signal, *TOKEN])


@torch.no_grad()
def test_rollout_of_a_mixed_batch() -> None:
    rollout = attention_rollout(build(SKIP), mixed_batch())
    expected = attention_rollout(build(), mixed_batch())
    for modality in Modality:
        there: Tensor = mixed_batch().present.of(modality)
        torch.testing.assert_close(rollout.of(modality)[there], expected.of(modality)[there])
    assert not attention_rollout(build(modalities=RGB_TI), make_batch()).ni.any()
