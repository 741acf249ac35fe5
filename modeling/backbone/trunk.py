"""A trunk: images -> prefix tokens and patch tokens, block by block. One class for each family of timm."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import timm
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from errors import UserError

CLIP_VIT_B16 = "ViT-B-16"
TINY_STEM = "vit_tiny_stem_patch8"
TIMM_NAMES = {CLIP_VIT_B16: "vit_base_patch16_clip_quickgelu_224"}
CLIP_WIDTH = 512


class StridedPatchEmbed(PatchEmbed):
    """Patch embedding whose step may be smaller than the patch, so that patches overlap."""

    def __init__(self, *, stride: tuple[int, int], **kwargs: Any) -> None:
        self._stride = stride
        super().__init__(**kwargs)
        self.proj.stride = stride

    def _init_img_size(self, img_size: Any) -> tuple[tuple[int, int], tuple[int, int], int]:
        height, width = img_size
        rows = (height - self.patch_size[0]) // self._stride[0] + 1
        columns = (width - self.patch_size[1]) // self._stride[1] + 1
        return (height, width), (rows, columns), rows * columns


class ConvStem(nn.Module):
    """Patch embedding for small images: three 3x3 convolutions of stride 2, then 1x1.

    It learns from scratch where a plain patch embedding does not. GroupNorm treats each image by itself,
    so that modalities do not mix and the result does not depend on the batch.
    """

    def __init__(self, *, img_size: tuple[int, int], in_chans: int, embed_dim: int, **_: Any) -> None:
        super().__init__()
        self.grid_size = (img_size[0] // 8, img_size[1] // 8)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        widths = [in_chans, embed_dim // 4, embed_dim // 2, embed_dim]
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            layers += [
                nn.Conv2d(width_in, width_out, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(4, width_out),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(embed_dim, embed_dim, 1))

    def feat_ratio(self) -> int:
        """Pixels per patch along one side, asked for by timm."""
        return 8

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, C)."""
        return self.layers(images).flatten(2).transpose(1, 2)


def create_vit(
    name: str, *, img_size: tuple[int, int], stride: tuple[int, int], **timm_options: Any
) -> VisionTransformer:
    """Make a ViT without weights.

    Args:
        name: `ViT-B-16`, `vit_tiny_stem_patch8`, or any timm ViT with a class token.
        img_size: height and width of the images.
        stride: step between patches.
        timm_options: dropout rates and the like, passed to timm.
    """
    # The small trunk of the demo.
    if name == TINY_STEM:
        if stride != (8, 8):
            raise UserError(
                f"{TINY_STEM} has a fixed step of 8; set MODEL.STRIDE_SIZE [8, 8], not {list(stride)}"
            )
        if img_size[0] % 8 or img_size[1] % 8:
            raise UserError(
                f"{TINY_STEM} needs INPUT.SIZE_TRAIN and INPUT.SIZE_TEST of multiples of 8, not "
                f"{list(img_size)}"
            )
        return VisionTransformer(
            img_size=img_size,
            patch_size=8,
            embed_dim=64,
            depth=4,
            num_heads=2,
            mlp_ratio=2.0,
            num_classes=0,
            embed_layer=ConvStem,
            **timm_options,
        )
    # A trunk of timm.
    timm_name = TIMM_NAMES.get(name, name)
    known = [*timm.list_models(module="vision_transformer"), *timm.list_models(module="deit")]
    if timm_name not in known:
        close = difflib.get_close_matches(name, [*TIMM_NAMES, TINY_STEM, *known], n=3, cutoff=0.0)
        raise UserError(f"MODEL.TRANSFORMER_TYPE {name!r} is unknown; nearest are {', '.join(close)}")
    vit = timm.create_model(
        timm_name,
        pretrained=False,
        img_size=img_size,
        num_classes=0,
        embed_layer=partial(StridedPatchEmbed, stride=stride),
        **timm_options,
    )
    if not isinstance(vit, VisionTransformer) or vit.cls_token is None or hasattr(vit, "dist_token"):
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE {name!r} cannot be used: it has no class token or a second one for "
            "distillation; use another timm ViT (distilled weights load into the plain DeiT)"
        )
    return vit


class Trunk:
    """What the backbone needs of a ViT, here for timm's family `vision_transformer`.

    `embed`, then `norm_before`, then `run_block` for each of the blocks, then `finish`. It is no module: the
    ViT stays a part of the backbone itself, so that the names in checkpoints do not depend on the family.

    Shapes: B images, N patches, P prefix tokens (the class token first, then registers if there are any).
    """

    def __init__(self, vit: nn.Module) -> None:
        self.vit: Any = vit

    @property
    def width(self) -> int:
        """Channels of a token inside the blocks."""
        return self.vit.embed_dim

    @property
    def num_prefix(self) -> int:
        """P, the tokens in front of the patches."""
        return self.vit.num_prefix_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches."""
        return self.vit.patch_embed.grid_size

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks in their order."""
        return self.vit.blocks

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """The tokens of images, with what the family adds to them for their positions.

        Returns:
            (B, P + N, width), and how each block rotates the queries and keys of the patches; None where the
            positions are in the tokens alone.
        """
        return self.vit._pos_embed(self.vit.patch_embed(images)), None

    def norm_before(self, tokens: Tensor) -> Tensor:
        """What happens between the camera embedding and the first block."""
        return self.vit.norm_pre(tokens)

    def run_block(self, index: int, tokens: Tensor, rotations: Tensor | None) -> Tensor:
        """One block, counted from 0: (B, P + n, width) and the rotations of its n patches -> that shape."""
        return self.blocks[index](tokens)

    def finish(self, tokens: Tensor) -> Tensor:
        """The last norm and, for CLIP, the projection, after the blocks."""
        return self.vit.head(self.vit.norm(tokens))


def make_trunk(vit: nn.Module) -> Trunk:
    """The trunk of a ViT that `create_vit` has made."""
    return Trunk(vit)
