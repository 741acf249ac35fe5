from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor

from config import get_cfg
from errors import UserError
from modeling.branches.demo import ATMoE
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.seps.sdtps import AggregatedTokens, MultiModalSDTPS
from structures import MISSING_CONDITIONS, ModalBatch, Modality, ModelOutput, PerModality

SMALL = {
    "MODEL.TRANSFORMER_TYPE": "vit_tiny_stem_patch8",
    "MODEL.STRIDE_SIZE": [8, 8],
    "INPUT.SIZE_TRAIN": [128, 64],
    "INPUT.SIZE_TEST": [128, 64],
}
PIFE = {"MODEL.GLOBAL_LOCAL": True}
SDTPS = {**PIFE, "MODEL.USE_SDTPS": True}
DEMO = {**PIFE, "MODEL.HDM": True, "MODEL.ATM": True}
VARIANTS = {"baseline": {}, "sdtps": SDTPS, "demo": DEMO, "both": {**SDTPS, **DEMO}}
DIM = 64  # of the small backbone


def build(*option_sets: dict[str, Any], ids: int = 10, cameras: int = 4, views: int = 0) -> MultiModalReID:
    """The model that the options describe, with the same weights each time."""
    cfg = get_cfg()
    for options in option_sets:
        cfg.merge_from_list([item for pair in options.items() for item in pair])
    torch.manual_seed(0)
    return make_model(cfg, ids, cameras, views)


def build_small(*option_sets: dict[str, Any], **sizes: int) -> MultiModalReID:
    return build(SMALL, *option_sets, **sizes)


def make_batch(
    size: int = 3,
    height: int = 128,
    width: int = 64,
    *,
    cameras: Sequence[int] = (),
    scenes: Sequence[int] = (),
) -> ModalBatch:
    generator = torch.Generator().manual_seed(0)
    images = PerModality.build(lambda _: torch.randn(size, 3, height, width, generator=generator))
    zeros = torch.zeros(size, dtype=torch.long)
    return ModalBatch(
        images,
        person_ids=torch.arange(size),
        camera_ids=torch.tensor(cameras) if cameras else zeros,
        scene_ids=torch.tensor(scenes) if scenes else zeros,
    )


def rows(batch: ModalBatch, index: slice) -> ModalBatch:
    return replace(
        batch,
        images=batch.images.map(lambda image: image[index]),
        person_ids=batch.person_ids[index],
        camera_ids=batch.camera_ids[index],
        scene_ids=batch.scene_ids[index],
    )


def head_shapes(output: ModelOutput) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {head.name: (tuple(head.logits.shape), tuple(head.features.shape)) for head in output.heads}


class FullSize(NamedTuple):
    output: ModelOutput
    sdtps: list[AggregatedTokens]
    sdtps_parameters: int


@pytest.fixture(scope="module")
def full_size() -> FullSize:
    """One training forward of ViT-B-16 with SDTPS at 256 x 128, batch 4, 201 ids, 4 cameras."""
    model = build(SDTPS, {"MODEL.SIE_CAMERA": True}, ids=201).train()
    sdtps = model.get_submodule("branches.sdtps.select")
    seen: list[list[AggregatedTokens]] = []
    sdtps.register_forward_hook(lambda _, __, results: seen.append(results))
    with torch.no_grad():
        output = model(make_batch(4, 256, 128, cameras=[0, 1, 2, 3]))
    return FullSize(output, seen[0], sum(p.numel() for p in sdtps.parameters()))


def test_full_size_heads_in_training(full_size: FullSize) -> None:
    assert head_shapes(full_size.output) == {"ori": ((4, 201), (4, 1536)), "sdtps": ((4, 201), (4, 1536))}


def test_full_size_patterns(full_size: FullSize) -> None:
    assert full_size.output.patterns == (1, 2, 3)
    shapes = [tuple(full_size.output.embedding(pattern).shape) for pattern in (1, 2, 3)]
    assert shapes == [(4, 1536), (4, 1536), (4, 3072)]


def test_full_size_selection_and_tokens(full_size: FullSize) -> None:
    selection = full_size.output.selection
    assert selection is not None
    assert selection.grid == (16, 8)
    assert [tuple(kept.shape) for kept in selection.kept] == [(4, 64)] * 3
    assert [tuple(scores.shape) for scores in selection.scores] == [(4, 128)] * 3
    assert [tuple(result.tokens.shape) for result in full_size.sdtps] == [(4, 25 + 1, 512)] * 3
    mean = torch.cat([result.tokens.mean(dim=1) for result in full_size.sdtps], dim=1)
    assert torch.equal(full_size.output.embedding(2), mean)


def test_full_size_parameters(full_size: FullSize) -> None:
    assert full_size.sdtps_parameters == 365_157
    with torch.device("meta"):
        demo = build(DEMO, {"MODEL.SIE_CAMERA": True}, ids=171)
        baseline = build({"MODEL.SIE_CAMERA": True}, ids=171)
    trainable = [sum(p.numel() for p in m.parameters() if p.requires_grad) / 1e6 for m in (demo, baseline)]
    assert trainable == pytest.approx([98.79, 86.41], abs=0.005)  # as published


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ({}, {"ori": 3 * DIM}),
        ({"MODEL.DIRECT": 0}, {"ori_rgb": DIM, "ori_ni": DIM, "ori_ti": DIM}),
        (SDTPS, {"ori": 3 * DIM, "sdtps": 3 * DIM}),
        ({**PIFE, "MODEL.HDM": True}, {"ori": 3 * DIM, "moe": 7 * DIM}),
        (DEMO, {"ori": 3 * DIM, "moe": 7 * DIM}),
        ({**SDTPS, **DEMO}, {"ori": 3 * DIM, "sdtps": 3 * DIM, "moe": 7 * DIM}),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_heads_of_each_variant(options: dict[str, Any], heads: dict[str, int], training: bool) -> None:
    model = build_small(options).train(training)
    output = model(make_batch())
    assert head_shapes(output) == {name: ((3, 10), (3, width)) for name, width in heads.items()}
    assert list(model.heads) == list(heads)
    assert (output.selection is not None) == ("sdtps" in heads)


def test_one_head_per_modality_has_the_same_feature_in_parts() -> None:
    together, apart = (build_small({"MODEL.DIRECT": direct}).eval()(make_batch()) for direct in (1, 0))
    torch.testing.assert_close(apart.embedding(1), together.embedding(1))


def test_sdtps_and_demo_together() -> None:
    model = build_small(VARIANTS["both"]).eval()
    output = model(make_batch())
    by_name = {head.name: head for head in output.heads}
    fused = torch.cat([by_name["sdtps"].features, by_name["moe"].features], dim=1)
    assert torch.equal(output.embedding(2), fused)
    assert torch.equal(output.embedding(3), torch.cat([by_name["ori"].features, fused], dim=1))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_trains(name: str) -> None:
    model = build_small(VARIANTS[name], {"MODEL.SIE_CAMERA": True}).train()
    output = model(make_batch(4, cameras=[0, 1, 2, 3]))
    torch.stack(
        [head.logits.square().mean() + head.features.square().mean() for head in output.heads]
    ).sum().backward()
    without = [
        n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    assert without == []


def test_baseline_has_one_pattern() -> None:
    output = build_small().eval()(make_batch())
    assert output.patterns == (1,)
    assert torch.equal(output.embedding(2), output.embedding(1))
    assert torch.equal(output.embedding(3), output.embedding(1))
    with pytest.raises(ValueError, match="unknown return pattern 4"):
        output.embedding(4)


def test_features_after_the_neck() -> None:
    output = build_small(SDTPS).train()(make_batch(8))
    after = output.embedding(3, after_neck=True)
    assert after.shape == output.embedding(3).shape
    torch.testing.assert_close(after.mean(dim=0), torch.zeros(after.shape[1]), atol=1e-4, rtol=0)
    assert output.embedding(3).mean(dim=0).abs().max() > 1e-2


def test_one_call_of_the_backbone_for_the_three_modalities() -> None:
    model = build_small(SDTPS, {"MODEL.SIE_CAMERA": True}).eval()
    calls: list[tuple[Tensor, Tensor, tuple[int, ...]]] = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
    batch = make_batch(3, cameras=[2, 0, 1])
    model(batch)
    ((images, cameras, counts),) = calls
    assert counts == (3, 3, 3)
    assert torch.equal(images, torch.cat([batch.images.rgb, batch.images.ni, batch.images.ti]))
    assert cameras.tolist() == [2, 0, 1] * 3


@pytest.mark.parametrize("name", VARIANTS)
def test_a_sample_does_not_depend_on_its_batch(name: str) -> None:
    model = build_small(VARIANTS[name], {"MODEL.SIE_CAMERA": True}).eval()
    batch = make_batch(4, cameras=[3, 1, 0, 2])
    with torch.no_grad():
        together = model(batch).embedding(3)
        alone = torch.cat([model(rows(batch, slice(i, i + 1))).embedding(3) for i in range(4)])
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)
    assert (together[0] - together[1]).abs().max() > 1e-2


@pytest.mark.parametrize("missing", [[Modality.RGB], [Modality.NI, Modality.TI], []])
def test_missing_modalities_leave_the_others_alone(missing: list[Modality]) -> None:
    model = build_small().eval()
    batch = make_batch()
    complete, partial = (model(b).embedding(1).chunk(3, dim=1) for b in (batch, batch.without(missing)))
    for index, modality in enumerate(Modality):
        assert torch.allclose(complete[index], partial[index], atol=1e-5) == (modality not in missing)


def test_frozen_backbone() -> None:
    model = build_small(VARIANTS["both"], {"MODEL.FROZEN": True, "MODEL.SIE_CAMERA": True})
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    vit = {f"backbone.vit.{name}" for name, _ in model.backbone.vit.named_parameters()}
    assert frozen == vit | {f"heads.{name}.neck.bias" for name in ("ori", "sdtps", "moe")}


def changes(model: MultiModalReID, cameras: list[int], scenes: list[int]) -> list[bool]:
    """Whether the embedding of one and the same image differs from that at camera 0 and scene 0."""
    size = len(cameras)
    images = make_batch(1).images.map(lambda image: image.expand(size, -1, -1, -1))
    batch = replace(make_batch(size, cameras=cameras, scenes=scenes), images=images)
    embedding = model.eval()(batch).embedding(1)
    return [not torch.allclose(row, embedding[0], atol=1e-4) for row in embedding]


@pytest.mark.parametrize(
    ("camera", "view", "table", "differ"),
    [
        (False, False, 0, [False, False, False, False]),
        (True, False, 4, [False, True, False, True]),
        (False, True, 3, [False, False, True, True]),
        (True, True, 12, [False, True, True, True]),
    ],
)
def test_camera_and_view_embedding(camera: bool, view: bool, table: int, differ: list[bool]) -> None:
    model = build_small({"MODEL.SIE_CAMERA": camera, "MODEL.SIE_VIEW": view, "MODEL.SIE_COE": 30.0}, views=3)
    embedding = model.backbone.camera_embed
    assert (0 if embedding is None else len(embedding)) == table
    assert changes(model, cameras=[0, 3, 0, 3], scenes=[0, 0, 2, 2]) == differ


def test_each_pair_of_camera_and_view_has_its_own_row() -> None:
    model = build_small({"MODEL.SIE_CAMERA": True, "MODEL.SIE_VIEW": True}, views=3)
    used: list[Tensor] = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: used.append(inputs[1][:12]))
    pairs = [(camera, scene) for camera in range(4) for scene in range(3)]
    model(make_batch(12, cameras=[c for c, _ in pairs], scenes=[s for _, s in pairs]))
    assert sorted(used[0].tolist()) == list(range(12))


def test_unseen_view_is_not_taken_for_one_of_the_next_camera() -> None:
    model = build_small({"MODEL.SIE_CAMERA": True, "MODEL.SIE_VIEW": True, "MODEL.SIE_COE": 30.0}, views=3)
    # Camera 0 with view 3 would be row 3, which belongs to camera 1 with view 0; unseen ones are all alike.
    assert changes(model, cameras=[0, 1, 2], scenes=[3, 0, 7]) == [False, True, False]


def test_view_embedding_without_views_is_refused() -> None:
    with pytest.raises(UserError, match=r"MODEL.SIE_VIEW is on, but RGBNT201 has one scene only"):
        build_small({"MODEL.SIE_VIEW": True})


def test_unknown_backbone_names_the_nearest() -> None:
    with pytest.raises(
        UserError, match="'vit_tiny_stem_patch9' is unknown; nearest are vit_tiny_stem_patch8"
    ):
        build_small({"MODEL.TRANSFORMER_TYPE": "vit_tiny_stem_patch9"})


def test_other_backbones_and_overlapping_patches() -> None:
    model = build_small(
        SDTPS, {"MODEL.TRANSFORMER_TYPE": "deit_tiny_patch16_224", "MODEL.STRIDE_SIZE": [12, 12]}
    )
    assert model.backbone.grid == (10, 5)  # (128 - 16) // 12 + 1, (64 - 16) // 12 + 1
    output = model.eval()(make_batch(2))
    assert output.selection is not None
    assert output.selection.grid == (10, 5)
    assert tuple(output.selection.kept.ti.shape) == (2, 25)
    assert tuple(output.embedding(3).shape) == (2, 2 * 3 * 192)


def test_settings_reach_the_parts() -> None:
    model = build_small(
        VARIANTS["both"],
        {
            "MODEL.DROP_PATH": 0.3,
            "MODEL.DROP_OUT": 0.2,
            "MODEL.ATT_DROP_RATE": 0.15,
            "MODEL.SIE_COE": 3.0,
            "MODEL.SDTPS_SPARSE_RATIO": 0.25,
            "MODEL.SDTPS_AGGR_RATIO": 0.5,
            "MODEL.SDTPS_BETA": 0.1,
            "MODEL.SDTPS_USE_GUMBEL": True,
            "MODEL.SDTPS_GUMBEL_TAU": 0.7,
            "MODEL.HEAD": 8,
        },
    )
    vit: Any = model.backbone.vit
    block = vit.blocks[-1]
    assert block.drop_path1.drop_prob == pytest.approx(0.3)
    assert [vit.pos_drop.p, block.attn.proj_drop.p, block.mlp.drop1.p, block.attn.attn_drop.p] == [
        0.2,
        0.2,
        0.2,
        0.15,
    ]
    assert model.backbone.embedding_factor == 3.0
    sdtps = model.get_submodule("branches.sdtps.select")
    assert isinstance(sdtps, MultiModalSDTPS)
    for selector in sdtps.selectors:
        assert (selector.sparse_ratio, selector.beta) == (0.25, 0.1)
        assert (selector.use_gumbel, selector.gumbel_tau) == (True, 0.7)
    assert {a.weight[3].out_features for a in cast(list[Any], sdtps.aggregators)} == {16}  # 128 / 4 / 2
    atmoe = model.get_submodule("branches.moe.atmoe")
    assert isinstance(atmoe, ATMoE)
    assert atmoe.num_heads == 8


def test_construction_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        build_small(VARIANTS["both"])
    (record,) = caplog.records
    message = record.getMessage()
    assert all(part in message for part in ("vit_tiny_stem_patch8", "16 x 8 patches", "ori, sdtps, moe"))


def test_construction_tells_what_of_an_image_is_not_seen_and_another_normalisation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"MODEL.TRANSFORMER_TYPE": "eva02_tiny_patch14_224", "MODEL.STRIDE_SIZE": "[14, 14]"}
    with caplog.at_level(logging.INFO), torch.device("meta"):
        build_small({**options, "INPUT.SIZE_TRAIN": "[64, 32]", "INPUT.SIZE_TEST": "[64, 32]"})
    normalisation, model = (record.getMessage() for record in caplog.records)
    assert "were trained with INPUT.PIXEL_MEAN [0.48145466, 0.4578275, 0.40821073]" in normalisation
    assert "here they are [0.5, 0.5, 0.5]" in normalisation
    assert "4 x 2 patches of the upper left 56 x 28 pixels" in model
    assert "INPUT.SIZE_TEST [56, 28] to have whole images scaled to them" in model


@pytest.mark.parametrize("options", [{"MODEL.SIE_CAMERA": True}, {}], ids=["cameras", "no cameras"])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_missing_modalities_can_be_recombined_after_the_backbone(
    variant: str, options: dict[str, Any]
) -> None:
    model = build_small(VARIANTS[variant], options).eval()
    batch = make_batch(4, cameras=[2, 0, 2, 1])
    outputs = model.forward_conditions(batch, MISSING_CONDITIONS)
    assert list(outputs) == list(MISSING_CONDITIONS)
    for condition, modalities in MISSING_CONDITIONS.items():
        recombined, whole = outputs[condition], model(batch.without(modalities))
        for pattern in whole.patterns:
            torch.testing.assert_close(recombined.embedding(pattern), whole.embedding(pattern))
        if whole.selection is not None and recombined.selection is not None:
            for ours, theirs in zip(recombined.selection.scores, whole.selection.scores, strict=True):
                torch.testing.assert_close(ours, theirs)


@torch.no_grad()
def test_missing_images_are_encoded_once_per_camera() -> None:
    model = build_small({"MODEL.SIE_CAMERA": True}).eval()
    sizes: list[int] = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    batch = make_batch(4, cameras=[2, 0, 2, 1])
    model.forward_conditions(batch, MISSING_CONDITIONS)
    assert sizes == [12, 3]
    model.forward_conditions(batch, {"complete": ()})
    assert sizes == [12, 3, 12]
