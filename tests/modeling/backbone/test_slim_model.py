"""Slimming inside the whole model; test_slimming.py has its arithmetic."""

import pytest
import torch

from config import load_config
from conftest import ROOT, SMALL_MODEL
from errors import UserError
from modeling.backbone.attention import attention_rollout
from modeling.cost import count_multiply_adds, count_tokens, measure_cost
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from structures import MISSING_CONDITIONS, ModalBatch, Modality, ModelOutput, PerModality

SLIM = {"MODEL.SLIM_LAYERS": "[0, 3]"}  # of four blocks: 90 tokens in three, 63 in the last
BASELINE = {"MODEL.USE_SDTPS": "False", "MODEL.GLOBAL_LOCAL": "False"}
DEMO = {"MODEL.USE_SDTPS": "False", "MODEL.HDM": "True", "MODEL.ATM": "True"}
VARIANTS: dict[str, dict[str, str]] = {
    "baseline": BASELINE,
    "sdtps": {},
    "demo": DEMO,
    "both": {**DEMO, "MODEL.USE_SDTPS": "True"},
}


def build(*option_sets: dict[str, str]) -> MultiModalReID:
    """The small model with random weights, the same each time."""
    options = [word for options in option_sets for pair in options.items() for word in pair]
    torch.manual_seed(0)
    return make_model(load_config(SMALL_MODEL, options), 10, 4)


def make_batch(size: int = 3, height: int = 128, width: int = 64) -> ModalBatch:
    generator = torch.Generator().manual_seed(0)
    images = PerModality.build(lambda _: torch.randn(size, 3, height, width, generator=generator))
    return ModalBatch(images, torch.arange(size), torch.arange(size), torch.zeros(size, dtype=torch.long))


def assert_same_features(ours: ModelOutput, theirs: ModelOutput) -> None:
    for pattern in theirs.patterns:
        torch.testing.assert_close(ours.embedding(pattern), theirs.embedding(pattern))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_keeping_all_patches_changes_nothing(variant: str) -> None:
    batch = make_batch()
    whole = build(VARIANTS[variant]).eval()(batch)
    slim = build(VARIANTS[variant], {**SLIM, "MODEL.SLIM_KEEP": "1.0"}).eval()(batch)
    assert_same_features(slim, whole)
    assert slim.slimming is not None
    assert slim.slimming.kept.ni.tolist() == [list(range(128))] * 3
    assert slim.slimming.scores.ni.tolist() == [[1.0] * 128] * 3


@torch.no_grad()
def test_patches_that_are_equal_are_merged_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, slim = build().eval(), build({"MODEL.SLIM_LAYERS": "[0]", "MODEL.SLIM_KEEP": "0.6"}).eval()
    kinds = torch.randn(8, 64)
    places = torch.randint(8, (9, 128), generator=torch.Generator().manual_seed(0))
    for model in (whole, slim):
        assert model.backbone.vit.cls_token is not None
        prefix = model.backbone.vit.cls_token.expand(9, -1, -1)
        tokens = torch.cat([prefix, kinds[places]], dim=1), None
        monkeypatch.setattr(model.backbone.trunk, "embed", lambda _, tokens=tokens: tokens)
    assert_same_features(slim(make_batch()), whole(make_batch()))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_slimming_has_no_weights_and_takes_those_of_the_whole_model(variant: str) -> None:
    whole, slim = build(VARIANTS[variant]).eval(), build(VARIANTS[variant], SLIM).eval()
    slim.load_state_dict(whole.state_dict())
    batch = make_batch()
    output = slim(batch)
    assert output.slimming is not None
    assert [tuple(kept.shape) for kept in output.slimming.kept] == [(3, 63)] * 3
    for pattern in output.patterns:
        difference = (output.embedding(pattern) - whole(batch).embedding(pattern)).abs().max()
        assert difference > 1e-4


@torch.no_grad()
def test_branches_see_all_patches_and_merged_ones_are_equal() -> None:
    model = build(SLIM).eval()
    tokens = model.encode(make_batch())
    assert tokens.slimmed is not None
    for modality in Modality:
        patches, scores = tokens.patches.of(modality), tokens.slimmed.of(modality).scores
        assert patches.shape == (3, 128, 64)
        for row in range(3):
            different, sizes = patches[row].unique(dim=0, return_counts=True)
            assert len(different) == 63
            assert sorted((1 / scores[row]).round().tolist()) == sorted(
                sizes.repeat_interleave(sizes).tolist()
            )
    output = model(make_batch())
    assert output.selection is not None
    assert output.selection.kept.rgb.shape == (3, 64)  # SDTPS chooses among all


@torch.no_grad()
def test_the_attention_to_a_token_is_shared_by_its_patches() -> None:
    guided = {"MODEL.SDTPS_GUIDE": "attention"}
    whole, slim = build(guided).eval().encode(make_batch()), build(guided, SLIM).eval().encode(make_batch())
    assert whole.attended is not None
    assert slim.attended is not None
    for ours, theirs, patches in zip(slim.attended, whole.attended, slim.patches, strict=True):
        assert ours.shape == theirs.shape == (3, 128)
        assert 0.9 < ours.sum(dim=1).min() < ours.sum(dim=1).max() < 1  # the rest is for the class token
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)
        assert len(ours[0].unique()) <= 90 < len(theirs[0].unique())  # read in the third block
        assert len(patches[0].unique(dim=0)) == 63


@torch.no_grad()
def test_without_sdtps_the_selection_is_what_slimming_left() -> None:
    output = build(DEMO, SLIM).eval()(make_batch())
    assert output.selection is output.slimming is not None
    assert output.selection is not None
    assert not output.selection.sources.rgb
    assert output.selection.weights is None


@torch.no_grad()
def test_missing_modality_conditions() -> None:
    model, batch = build(SLIM).eval(), make_batch()
    outputs = model.forward_conditions(batch, MISSING_CONDITIONS)
    for condition, missing in MISSING_CONDITIONS.items():
        alone = model(batch.without(missing))
        assert_same_features(outputs[condition], alone)
        found, expected = outputs[condition].slimming, alone.slimming
        assert found is not None
        assert expected is not None
        assert all(map(torch.equal, found.kept, expected.kept))


@torch.no_grad()
def test_samples_do_not_influence_each_other() -> None:
    model, batch = build(SLIM).eval(), make_batch(3)
    whole = model(batch)
    ids = batch.person_ids[:1], batch.camera_ids[:1], batch.scene_ids[:1]
    first = ModalBatch(batch.images.map(lambda image: image[:1]), *ids)
    torch.testing.assert_close(model(first).embedding(3), whole.embedding(3)[:1])


def test_it_trains() -> None:
    model = build(VARIANTS["both"], SLIM, {"MODEL.DROP_PATH": "0.1"}).train()
    torch.manual_seed(0)
    output = model(make_batch(4))
    losses = [head.logits.square().mean() + head.features.square().mean() for head in output.heads]
    torch.stack(losses).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_tiny_patch16_224"])
@torch.no_grad()
def test_other_backbones_and_overlapping_patches(name: str) -> None:
    options = {"MODEL.TRANSFORMER_TYPE": name, "MODEL.STRIDE_SIZE": "[12, 12]", "MODEL.SIE_CAMERA": "True"}
    model = build(options, {"MODEL.SLIM_LAYERS": "[3, 6, 9]"}).eval()
    output = model(make_batch())
    assert output.slimming is not None
    assert output.slimming.grid == (10, 5)
    assert output.slimming.kept.rgb.shape == (3, 18)  # 50, 35, 25, 18
    assert count_tokens(model) == (51,) * 3 + (36,) * 3 + (26,) * 3 + (19,) * 3


def test_blocks_that_do_not_exist() -> None:
    with pytest.raises(UserError, match=r"MODEL.SLIM_LAYERS \[2, 5\] names blocks .* blocks 1 to 4"):
        build({"MODEL.SLIM_LAYERS": "[2, 5]"})


def test_rollout_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"set MODEL\.SLIM_LAYERS"):
        attention_rollout(build(SLIM).eval(), make_batch())


def test_the_cost_report_has_the_tokens_of_each_block() -> None:
    report = measure_cost(build(SLIM))
    assert report.tokens == (91, 91, 91, 64)
    assert "tokens: 91 in 3 blocks, 64 in 1 blocks" in report.table()
    assert report.as_dict()["tokens_per_block"] == [91, 91, 91, 64]
    assert "tokens:" not in measure_cost(build()).table()


def test_full_size_cost() -> None:
    """At most 0.6 of the multiply-adds of the whole model."""
    costs = []
    for words in ([], ["MODEL.SLIM_LAYERS", "[0]", "MODEL.SLIM_KEEP", "0.56"]):
        model = make_model(load_config(ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml", words), 171, 4)
        costs.append(sum(count_multiply_adds(model).values()) / 1e9)
    assert count_tokens(model) == (73,) * 12
    assert costs[0] == pytest.approx(34.26, abs=0.01)
    assert costs[1] / costs[0] < 0.6
