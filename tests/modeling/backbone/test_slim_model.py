"""Slimming inside the whole model; test_slimming.py has its arithmetic."""

from typing import Any

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

SLIM = {"MODEL.SLIM_LAYERS": "[2, 3]"}  # of four blocks: 128 patches, then 90, then 63
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
@pytest.mark.parametrize("score", ["attention", "cosine"])
@torch.no_grad()
def test_keeping_all_patches_changes_nothing(variant: str, score: str) -> None:
    batch = make_batch()
    whole = build(VARIANTS[variant]).eval()(batch)
    options = {**SLIM, "MODEL.SLIM_KEEP": "1.0", "MODEL.SLIM_SCORE": score}
    slim = build(VARIANTS[variant], options).eval()(batch)
    assert_same_features(slim, whole)
    assert slim.slimming is not None
    assert slim.slimming.kept.ni.tolist() == [list(range(128))] * 3


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
def test_sdtps_chooses_among_the_patches_that_are_left() -> None:
    model = build(SLIM).eval()
    output = model(make_batch())
    assert output.selection is not None
    assert output.slimming is not None
    for modality in Modality:
        left, kept = output.slimming.kept.of(modality), output.selection.kept.of(modality)
        scores, sources = output.selection.scores.of(modality), output.selection.sources.of(modality)
        assert kept.shape == (3, 32)  # half of 63, rounded up
        assert scores.shape == (3, 128)
        assert {source.shape for source in sources.values()} == {(3, 128)}
        for row in range(3):
            assert set(kept[row].tolist()) <= set(left[row].tolist())
            others = sorted(set(range(128)) - set(left[row].tolist()))
            assert not scores[row, others].any()
            best = scores[row, left[row]].topk(32).indices
            assert sorted(left[row, best].tolist()) == kept[row].tolist()


@torch.no_grad()
def test_without_sdtps_the_selection_is_what_slimming_left() -> None:
    output = build(DEMO, SLIM).eval()(make_batch())
    assert output.selection is output.slimming is not None
    assert output.selection is not None
    assert not output.selection.sources.rgb
    assert output.selection.weights is None


@pytest.mark.parametrize("options", [{}, {"MODEL.SLIM_CROSS": "False"}], ids=["cross", "own"])
@torch.no_grad()
def test_missing_modality_conditions(options: dict[str, str]) -> None:
    model, batch = build(SLIM, options).eval(), make_batch()
    outputs = model.forward_conditions(batch, MISSING_CONDITIONS)
    for condition, missing in MISSING_CONDITIONS.items():
        assert_same_features(outputs[condition], model(batch.without(missing)))


@torch.no_grad()
def test_a_missing_modality_does_not_guide_and_others_do() -> None:
    """RGB and NI behave as if there were two modalities: what the third would say changes nothing."""
    batch = make_batch()
    model = build(SLIM).eval()
    seen: list[tuple[torch.Tensor, ...]] = []
    assert model.backbone.slimming is not None
    model.backbone.slimming.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    model(batch.without([Modality.TI]))
    for _, _, present in seen:
        assert present.tolist() == [[True] * 3, [True] * 3, [False] * 3]
    alone = build(SLIM, {"MODEL.SLIM_CROSS": "False"}).eval()
    one_left = batch.without([Modality.NI, Modality.TI])
    ours, theirs = model(one_left).slimming, alone(one_left).slimming
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours.kept.rgb, theirs.kept.rgb)
    guided = model(batch).slimming
    assert guided is not None
    assert not torch.equal(guided.kept.rgb, theirs.kept.rgb)


@torch.no_grad()
def test_samples_do_not_influence_each_other() -> None:
    model, batch = build(SLIM).eval(), make_batch(3)
    whole = model(batch)
    ids = batch.person_ids[:1], batch.camera_ids[:1], batch.scene_ids[:1]
    first = ModalBatch(batch.images.map(lambda image: image[:1]), *ids)
    torch.testing.assert_close(model(first).embedding(3), whole.embedding(3)[:1])


@pytest.mark.parametrize("gumbel", ["False", "True"])
@pytest.mark.parametrize("score", ["attention", "cosine"])
def test_it_trains(gumbel: str, score: str) -> None:
    options = {"MODEL.SLIM_USE_GUMBEL": gumbel, "MODEL.SLIM_SCORE": score, "MODEL.DROP_PATH": "0.1"}
    model = build(VARIANTS["both"], SLIM, options).train()
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
    assert count_tokens(model) == (51,) * 3 + (37,) * 3 + (27,) * 3 + (20,) * 3


def test_blocks_that_do_not_exist() -> None:
    with pytest.raises(UserError, match=r"MODEL.SLIM_LAYERS \[2, 5\] names blocks .* blocks 1 to 4"):
        build({"MODEL.SLIM_LAYERS": "[2, 5]"})


def test_rollout_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"set MODEL\.SLIM_LAYERS"):
        attention_rollout(build(SLIM).eval(), make_batch())


def test_the_warm_up_reaches_the_backbone() -> None:
    model = build(SLIM, {"MODEL.SLIM_WARMUP_EPOCHS": "2"})
    sizes = []
    for epoch in (1, 2, 3):
        model.set_epoch(epoch)
        slimmed = model.train().encode(make_batch()).slimmed
        assert slimmed is not None
        sizes.append(slimmed.rgb.indices.shape[1])
    assert sizes == [128, 93, 63]  # keeping 1, 0.85, 0.7
    build().set_epoch(1)  # nothing to do without slimming


def test_the_cost_report_has_the_tokens_of_each_block() -> None:
    report = measure_cost(build(SLIM))
    assert report.tokens == (129, 129, 92, 65)
    assert "tokens: 129 in 2 blocks, 92 in 1 blocks, 65 in 1 blocks" in report.table()
    assert report.as_dict()["tokens_per_block"] == [129, 129, 92, 65]
    assert "tokens:" not in measure_cost(build()).table()


def test_full_size_cost() -> None:
    """At most 0.66 of the multiply-adds of the whole model, 22.6 G."""
    options: dict[str, Any] = {"MODEL.SLIM_LAYERS": "[3, 6, 9]"}
    costs = []
    for words in ([], [word for pair in options.items() for word in pair]):
        model = make_model(load_config(ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml", words), 171, 4)
        costs.append(sum(count_multiply_adds(model).values()) / 1e9)
    assert count_tokens(model) == (129,) * 3 + (92,) * 3 + (65,) * 3 + (47,) * 3
    assert costs[0] == pytest.approx(34.26, abs=0.01)
    assert costs[1] < 22.6
    assert costs[1] / costs[0] < 0.66
