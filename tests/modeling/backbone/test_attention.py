"""Attention rollout against numbers worked by hand and against timm's own attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch import Tensor, nn

from config import load_config
from conftest import SMALL_MODEL
from errors import UserError
from modeling.backbone.attention import (
    AttentionReader,
    attention_layers,
    attention_rollout,
    recorded_attention,
    roll_out,
)
from modeling.backbone.trunk import create_vit
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from structures import ModalBatch, Modality

BatchMaker = Callable[..., ModalBatch]


@pytest.fixture(scope="module")
def model() -> MultiModalReID:
    torch.manual_seed(0)
    return make_model(load_config(SMALL_MODEL), num_class=4, camera_num=2).eval()


def tiny_vit(**options: Any) -> VisionTransformer:
    """Two patches, two heads, two blocks."""
    torch.manual_seed(0)
    sizes = {"img_size": (16, 8), "patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 2}
    return VisionTransformer(**{**sizes, "num_classes": 0, **options}).eval()


def test_the_product_over_blocks_by_hand() -> None:
    """Block 1 looks at token 1 alone, block 2 at token 0 alone: the order of the product matters."""
    first = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])  # with the residual: (1/2, 1/2), (0, 1)
    second = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])  # with the residual: (1, 0), (1/2, 1/2)
    assert roll_out([first, second]).tolist() == [[[0.5, 0.5], [0.25, 0.75]]]
    assert roll_out([second, first]).tolist() == [[[0.75, 0.25], [0.5, 0.5]]]


def test_a_vit_that_looks_everywhere_alike_by_hand() -> None:
    """Equal shares 1/3: a block has 2/3 on the diagonal and 1/6 beside it; its square has 1/4 there."""
    vit = tiny_vit()
    for layer in attention_layers(vit):
        nn.init.zeros_(layer.qkv.weight)
    with torch.no_grad(), recorded_attention(vit) as attentions:
        vit(torch.randn(1, 3, 16, 8))
    torch.testing.assert_close(attentions[0], torch.full((1, 3, 3), 1 / 3))
    torch.testing.assert_close(roll_out(attentions)[0, 0], torch.tensor([1 / 2, 1 / 4, 1 / 4]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_vit(img_size=(64, 32), qk_norm=True, qkv_bias=False, reg_tokens=2),
        lambda: create_vit("vit_tiny_stem_patch8", img_size=(64, 32), stride=(8, 8)),
        lambda: create_vit("deit_tiny_patch16_224", img_size=(64, 32), stride=(8, 16)),
        lambda: create_vit("vit_xsmall_patch16_clip_224", img_size=(64, 32), stride=(16, 16)),
        lambda: create_vit("vit_small_patch16_dinov3", img_size=(64, 32), stride=(16, 16), depth=2),
        lambda: create_vit("eva02_base_patch14_224", img_size=(64, 32), stride=(14, 14), depth=2),
        lambda: create_vit("vit_small_patch16_rope_mixed_224", img_size=(64, 32), stride=(16, 16), depth=2),
    ],
    ids=["normalised keys", "small", "ImageNet", "CLIP", "DINOv3", "EVA-02", "mixed"],
)
def test_recorded_attention_is_that_of_timm(make: Callable[[], nn.Module]) -> None:
    """timm's way without a fused kernel puts the attention through a dropout, where it can be seen."""
    vit: Any = make().eval()
    seen: list[Tensor] = []
    for layer in attention_layers(vit):
        for name in ("qkv", "q_proj", "k_proj"):
            if getattr(layer, name, None) is not None:
                nn.init.normal_(getattr(layer, name).weight, std=0.3)  # far from uniform
        if isinstance(layer.q_norm, nn.LayerNorm):
            nn.init.normal_(layer.q_norm.weight, std=3)
        layer.fused_attn = False
        layer.attn_drop.register_forward_hook(lambda *call: seen.append(call[2].mean(dim=1)))
    with torch.no_grad(), recorded_attention(vit) as attentions:
        vit(torch.randn(2, 3, 64, 32))
    assert len(attentions) == len(vit.blocks)
    for recorded, timm_own in zip(attentions, seen, strict=True):
        assert recorded.std() > 0.01
        torch.testing.assert_close(recorded, timm_own)


def test_the_first_rows_of_each_head() -> None:
    vit = tiny_vit(embed_dim=16)
    layer = attention_layers(vit)[0]
    nn.init.normal_(layer.qkv.weight)
    layer.fused_attn = False
    seen: list[Tensor] = []
    layer.attn_drop.register_forward_hook(lambda *call: seen.append(call[2]))
    reader = AttentionReader(layer)
    for num_queries in (1, 2, None):
        with torch.no_grad():
            vit(torch.randn(4, 3, 16, 8))
        found = reader.read(num_queries, per_head=True)
        assert found.shape == (4, 2, num_queries or 3, 3)
        torch.testing.assert_close(found, seen[-1][:, :, :num_queries])
    with pytest.raises(AssertionError, match="has not run"):
        reader.read()


def test_maps_belong_to_their_modality_and_sum_to_what_the_class_token_has_of_the_patches(
    model: MultiModalReID, make_batch: BatchMaker
) -> None:
    batch = make_batch([0, 1, 2], size=(128, 64))
    maps = attention_rollout(model, batch)
    with torch.no_grad(), recorded_attention(model.backbone.vit) as attentions:
        model.backbone(batch.images.ni, batch.camera_ids)
    rows = roll_out(attentions)[:, 0]  # (B, 1 + N) of NI alone
    torch.testing.assert_close(maps.ni, rows[:, 1:])
    torch.testing.assert_close(maps.ni.sum(dim=1), 1 - rows[:, 0])
    assert all(found.shape == (3, 128) and (found >= 0).all() for found in maps)


def test_registers_and_rotations_belong_to_a_map_as_well(
    make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=2))
    options = ["MODEL.TRANSFORMER_TYPE", "vit_small_patch16_dinov3", "MODEL.STRIDE_SIZE", "[16, 16]"]
    torch.manual_seed(0)
    dinov3 = make_model(load_config(SMALL_MODEL, options), num_class=4, camera_num=2).eval()
    maps = attention_rollout(dinov3, make_batch([0, 1], size=(128, 64)))
    assert all(found.shape == (2, 32) and (found > 0).all() for found in maps)
    # Random weights look everywhere alike: 5 prefix tokens and 32 patches, 3/4 of it through two blocks.
    torch.testing.assert_close(maps.ni.sum(dim=1), torch.full((2,), 0.75 * 32 / 37), atol=0.02, rtol=0)


def test_a_missing_modality_changes_its_own_map_alone(model: MultiModalReID, make_batch: BatchMaker) -> None:
    batch = make_batch([0, 1, 2], size=(128, 64))
    whole = attention_rollout(model, batch)
    lost = attention_rollout(model, batch.without([Modality.TI]))
    torch.testing.assert_close(lost.rgb, whole.rgb)
    torch.testing.assert_close(lost.ni, whole.ni)
    assert not torch.allclose(lost.ti, whole.ti)
    torch.testing.assert_close(lost.ti[0], lost.ti[1])  # nothing to tell the triples apart by


def test_hooks_are_gone_afterwards_even_after_an_error(model: MultiModalReID, make_batch: BatchMaker) -> None:
    def num_hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    batch = make_batch([0, 1], size=(128, 64))
    with torch.no_grad():
        before = model(batch).embedding(3)
        attention_rollout(model, batch)
        assert num_hooks() == 0
        assert torch.equal(model(batch).embedding(3), before)
    with pytest.raises(RuntimeError, match="size"):
        attention_rollout(model, make_batch([0], size=(256, 128)))  # not the size of the model
    assert num_hooks() == 0


def test_other_kinds_of_blocks_are_refused() -> None:
    vit = tiny_vit(block_fn=ParallelScalingBlock)
    with pytest.raises(UserError, match=r"MODEL\.TRANSFORMER_TYPE"), recorded_attention(vit):
        pass
