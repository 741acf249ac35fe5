from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.layers import QuickGELU
from torch import Tensor, nn

from errors import UserError
from modeling.backbone import Backbone
from modeling.backbone.trunk import ConvStem, create_vit

DEIT = "deit_tiny_patch16_224"
STEM = "vit_tiny_stem_patch8"


def make_stem(**options: Any) -> Backbone:
    torch.manual_seed(0)
    return Backbone(STEM, img_size=(128, 64), stride=(8, 8), **options).eval()


def random_images(batch: int, height: int, width: int) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("size", "stride", "grid"),
    [
        ((256, 128), (16, 16), (16, 8)),
        ((128, 64), (12, 12), (10, 5)),  # (128 - 16) // 12 + 1, (64 - 16) // 12 + 1
        ((64, 128), (8, 16), (7, 8)),
    ],
)
def test_step_between_patches(size: tuple[int, int], stride: tuple[int, int], grid: tuple[int, int]) -> None:
    backbone = Backbone(DEIT, img_size=size, stride=stride).eval()
    assert backbone.grid == grid
    images = random_images(1, *size)
    class_token, patches, *_ = backbone(images, torch.zeros(1, dtype=torch.long))
    assert class_token.shape == (1, 192)
    assert patches.shape == (1, grid[0] * grid[1], 192)

    # The patch in row 2, column 3 sees the 16 x 16 pixels that begin 2 and 3 steps from the corner.
    embed = backbone.vit.patch_embed
    top, left = 2 * stride[0], 3 * stride[1]
    alone = embed.proj(images[:, :, top : top + 16, left : left + 16]).flatten()
    torch.testing.assert_close(embed(images)[0, 2 * grid[1] + 3], alone, atol=1e-5, rtol=1e-5)


def test_stem_makes_one_token_for_every_8_pixels() -> None:
    stem = ConvStem(img_size=(128, 64), in_chans=3, embed_dim=64)
    assert stem.grid_size == (16, 8)
    assert stem(random_images(2, 128, 64)).shape == (2, stem.num_patches, 64)
    backbone = make_stem()
    assert backbone.grid == (16, 8)
    assert backbone.dim == 64
    class_token, patches, *_ = backbone(random_images(2, 128, 64), torch.zeros(2, dtype=torch.long))
    assert class_token.shape == (2, 64)
    assert patches.shape == (2, 128, 64)


def test_stem_treats_each_image_by_itself() -> None:
    stem = ConvStem(img_size=(128, 64), in_chans=3, embed_dim=64).train()
    images = random_images(3, 128, 64) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1, 1)
    together = stem(images)
    for index in range(3):
        torch.testing.assert_close(together[index], stem(images[index : index + 1])[0], atol=1e-5, rtol=1e-4)


def test_stem_has_a_fixed_step() -> None:
    with pytest.raises(UserError, match=r"fixed step of 8; set MODEL.STRIDE_SIZE \[8, 8\], not \[16, 16\]"):
        create_vit(STEM, img_size=(128, 64), stride=(16, 16))


def test_clip_tower_is_built_as_clip() -> None:
    with torch.device("meta"):
        backbone = Backbone("ViT-B-16", img_size=(256, 128), stride=(16, 16), drop_path=0.1, num_embeddings=4)
    vit: Any = backbone.vit
    assert (backbone.dim, vit.embed_dim, len(vit.blocks), vit.blocks[0].attn.num_heads) == (512, 768, 12, 12)
    assert vit.patch_embed.proj.bias is None
    assert vit.head.weight.shape == (512, 768)
    assert vit.head.bias is None
    norms = [module for module in vit.modules() if isinstance(module, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [1e-5] * 26  # before and after the blocks, and two in each
    assert isinstance(vit.norm_pre, nn.LayerNorm)
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(vit.blocks[0].mlp.act(x), x * torch.sigmoid(1.702 * x))
    assert all(isinstance(block.mlp.act, QuickGELU) for block in vit.blocks)
    assert isinstance(vit.blocks[11].drop_path1, nn.Identity)  # MODEL.DROP_PATH does not apply
    assert backbone.camera_embed is not None
    assert backbone.camera_embed.shape == (4, 1, 768)


def test_imagenet_vit_is_built_as_in_demo() -> None:
    with torch.device("meta"):
        vit: Any = Backbone("vit_base_patch16_224", img_size=(256, 128), stride=(16, 16), drop_path=0.1).vit
    norms = [module for module in vit.modules() if isinstance(module, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [1e-6] * 25  # after the blocks, and two in each
    assert isinstance(vit.head, nn.Identity)
    torch.testing.assert_close(vit.blocks[0].mlp.act(torch.ones(1)), nn.GELU()(torch.ones(1)))
    assert vit.blocks[6].drop_path1.drop_prob == pytest.approx(0.1 * 6 / 11)
    assert vit.blocks[11].drop_path1.drop_prob == pytest.approx(0.1)


def test_camera_embedding_is_added_to_every_token_of_a_vit() -> None:
    backbone = make_stem(num_embeddings=3, embedding_factor=2.0)
    seen: list[Tensor] = []
    backbone.vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = random_images(1, 128, 64).expand(3, -1, -1, -1)
    backbone(images, torch.tensor([0, 2, 1]))
    assert backbone.camera_embed is not None
    difference = seen[0] - seen[0][:1]  # against camera 0
    expected = 2.0 * (backbone.camera_embed[[0, 2, 1]] - backbone.camera_embed[:1])
    torch.testing.assert_close(difference, expected.expand(-1, 129, -1), atol=1e-5, rtol=1e-4)


def test_camera_embedding_is_added_to_the_class_token_of_clip() -> None:
    backbone = make_stem(num_embeddings=3, embedding_factor=2.0)
    backbone.is_clip = True  # the rule of the CLIP tower, at a small size
    seen: list[Tensor] = []
    backbone.vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    backbone(random_images(1, 128, 64).expand(2, -1, -1, -1), torch.tensor([0, 2]))
    assert backbone.camera_embed is not None
    difference = seen[0][1] - seen[0][0]
    expected = 2.0 * (backbone.camera_embed[2, 0] - backbone.camera_embed[0, 0])
    torch.testing.assert_close(difference[0], expected, atol=1e-5, rtol=1e-4)
    assert difference[1:].abs().max() < 1e-5


def test_ids_are_ignored_without_a_camera_embedding() -> None:
    backbone = make_stem()
    images = random_images(2, 128, 64)
    first, second = (backbone(images, torch.full((2,), camera))[0] for camera in (0, 1000))
    assert torch.equal(first, second)


def test_tokens_that_are_no_patches_are_left_out() -> None:
    backbone = Backbone("vit_small_patch14_reg4_dinov2", img_size=(56, 28), stride=(14, 14))
    assert backbone(random_images(1, 56, 28), torch.zeros(1, dtype=torch.long))[1].shape == (1, 8, 384)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-B-61", "'ViT-B-61' is unknown; nearest are ViT-B-16"),
        ("deit_tiny_patch16_225", "nearest are deit_tiny_patch16_224"),
        ("vit_tiny_stem", "nearest are vit_tiny_stem_patch8"),
        ("vit_medium_patch16_gap_256", "has no class token"),
        ("resnet50", "'resnet50' cannot be used: it is no ViT with a class token; take one such as ViT-B-16"),
    ],
)
def test_names_that_cannot_be_used(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        create_vit(name, img_size=(128, 64), stride=(16, 16))


def test_the_stem_refuses_sizes_that_it_cannot_cut() -> None:
    with pytest.raises(UserError, match="multiples of 8"):
        create_vit("vit_tiny_stem_patch8", img_size=(100, 50), stride=(8, 8))


def test_an_unknown_name_always_gets_a_hint() -> None:
    with pytest.raises(UserError, match=r"'nonsense' is unknown; nearest are \w+, \w+"):
        create_vit("nonsense", img_size=(32, 32), stride=(16, 16))


def test_a_second_class_token_is_refused() -> None:
    with pytest.raises(UserError, match="distillation"):
        create_vit("deit_tiny_distilled_patch16_224", img_size=(32, 32), stride=(16, 16))
