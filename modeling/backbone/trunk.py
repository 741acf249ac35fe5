"""A trunk: images -> prefix tokens and patch tokens, block by block. One class for each family of timm."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import timm
from timm.layers import PatchEmbed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from errors import UserError

CLIP_VIT_B16 = "ViT-B-16"
TINY_STEM = "vit_tiny_stem_patch8"
TIMM_NAMES = {CLIP_VIT_B16: "vit_base_patch16_clip_quickgelu_224.openai"}
CLIP_WIDTH = 512


class Resize(NamedTuple):
    """How a position table is brought to another grid."""

    mode: str  # bilinear or bicubic
    antialias: bool = False

    @property
    def words(self) -> str:
        """For the log."""
        return f"{self.mode}, antialiased" if self.antialias else self.mode


BILINEAR = Resize("bilinear")
"""As DeMo does it, for CLIP and ImageNet."""

FAMILIES = ("vision_transformer", "deit", "eva")
"""Modules of timm whose ViTs can be a trunk."""


class StridedPatchEmbed(PatchEmbed):
    """Patch embedding whose step may be smaller than the patch, so that patches overlap.

    Pixels at the lower and right edge that do not fill a patch are left out.
    """

    def __init__(self, *, stride: tuple[int, int], **kwargs: Any) -> None:
        self._stride = stride
        super().__init__(**kwargs)
        self.proj.stride = stride

    def _init_img_size(self, img_size: Any) -> tuple[tuple[int, int], tuple[int, int], int]:
        rows, columns = grid_of(img_size, self.patch_size, self._stride)
        return tuple(img_size), (rows, columns), rows * columns


def grid_of(img_size: tuple[int, int], patch: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the patches that lie inside an image."""
    rows, columns = (
        (side - size) // step + 1 for side, size, step in zip(img_size, patch, stride, strict=True)
    )
    return rows, columns


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
) -> VisionTransformer | Eva:
    """Make a ViT without weights.

    Args:
        name: `ViT-B-16`, `vit_tiny_stem_patch8`, or a ViT of timm with a class token; the tag of its weights
            may follow, as in `vit_small_patch16_224.dino`.
        img_size: height and width of the images.
        stride: step between patches.
        timm_options: dropout rates and the like, passed to timm.
    """
    if name == TINY_STEM:
        return _create_tiny_stem(img_size, stride, **timm_options)
    # The name, and the tag of its weights.
    timm_name = TIMM_NAMES.get(name, name)
    architecture, _, tag = timm_name.partition(".")
    known = [found for family in FAMILIES for found in timm.list_models(module=family)]
    if architecture not in known and timm.is_model(architecture):
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE {name!r} cannot be used: it is no ViT with a class token; take one such "
            "as ViT-B-16, vit_base_patch16_224 or vit_base_patch16_dinov3"
        )
    if architecture not in known:
        close = _nearest_names(name, [*TIMM_NAMES, TINY_STEM, *known])
        raise UserError(f"MODEL.TRANSFORMER_TYPE {name!r} is unknown; nearest are {', '.join(close)}")
    tagged = timm.list_models(f"{architecture}.*", pretrained=True)
    if tag and timm_name not in tagged:
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE {name!r} has a tag that is unknown; timm has {', '.join(tagged)}"
        )
    # The ViT, if it has one class token.
    vit: Any
    if architecture in timm.list_models(module="eva"):
        vit = _create_eva(timm_name, img_size, stride, **timm_options)
    else:
        vit = timm.create_model(
            timm_name,
            pretrained=False,
            img_size=img_size,
            num_classes=0,
            embed_layer=partial(StridedPatchEmbed, stride=stride),
            **timm_options,
        )
    usable = isinstance(vit, (VisionTransformer, Eva)) and vit.cls_token is not None
    if not usable or hasattr(vit, "dist_token"):
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE {name!r} cannot be used: it has no class token or a second one for "
            "distillation; use another timm ViT (distilled weights load into the plain DeiT)"
        )
    return vit


def _nearest_names(name: str, known: Sequence[str]) -> list[str]:
    """Three names like `name`; of those that share a word with it, such as `dinov2`, if there are any."""
    words = re.findall(r"[a-z]{4,}\d*", name.lower())
    related = [other for other in known if any(word in other.lower() for word in words)]
    usable = [other for other in related or known if not other.startswith("test_")]  # those test timm itself
    by_lower = {other.lower(): other for other in usable}
    return [by_lower[n] for n in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.0)]


def _create_tiny_stem(
    img_size: tuple[int, int], stride: tuple[int, int], **options: Any
) -> VisionTransformer:
    """The small trunk of the demo."""
    if stride != (8, 8):
        raise UserError(
            f"{TINY_STEM} has a fixed step of 8; set MODEL.STRIDE_SIZE [8, 8], not {list(stride)}"
        )
    if img_size[0] % 8 or img_size[1] % 8:
        raise UserError(
            f"{TINY_STEM} needs INPUT.SIZE_TRAIN and INPUT.SIZE_TEST of multiples of 8, not {list(img_size)}"
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
        **options,
    )


def _create_eva(name: str, img_size: tuple[int, int], stride: tuple[int, int], **options: Any) -> Eva:
    """A ViT of timm's module `eva`, with the last norm on all tokens, as its class token needs it."""
    vit: Any = timm.create_model(
        name,
        pretrained=False,
        img_size=img_size,
        num_classes=0,
        global_pool="",
        dynamic_img_size=False,
        **options,
    )
    # timm knows no step between patches here: give it the size of an image with as many patches side by side.
    embed = vit.patch_embed
    if stride != embed.patch_size:
        rows, columns = grid_of(img_size, embed.patch_size, stride)
        vit.set_input_size((rows * embed.patch_size[0], columns * embed.patch_size[1]))
        embed.img_size, embed.proj.stride = img_size, stride
        if vit.pos_embed is not None:
            nn.init.trunc_normal_(vit.pos_embed, std=0.02)
    # Random changes of the positions would differ between processes.
    if hasattr(vit.rope, "aug_active"):
        vit.rope.aug_active = False
    return vit


class Trunk:
    """What the backbone needs of a ViT, here for timm's family `vision_transformer`.

    `embed`, then `norm_before`, then `run_block` for each of the blocks, then `finish`. It is no module: the
    ViT stays a part of the backbone itself, so that the names in checkpoints do not depend on the family.

    Shapes: B images, N patches, n tokens that stand for them (N without slimming), P prefix tokens (the class
    token first, then registers if there are any).
    """

    def __init__(self, vit: VisionTransformer | Eva) -> None:
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
    def position_resize(self) -> Resize:
        """What the authors of the trunk do with its position table at another grid; DeMo's way for the rest.

        DINO and DINOv2 resize it bicubically, the trunks with registers with antialiasing. Their small offset
        of the grid, against rounding, is left out.
        """
        source = getattr(self.vit, "pretrained_cfg", {})
        if "dinov2" in source.get("architecture", ""):
            return Resize("bicubic", antialias=self.vit.reg_token is not None)
        return Resize("bicubic") if source.get("tag") == "dino" else BILINEAR

    @property
    def seen_size(self) -> tuple[int, int]:
        """Height and width of the part of an image that the patches cover, from its upper left corner."""
        embed = self.vit.patch_embed
        if isinstance(embed, ConvStem):
            return 8 * self.grid[0], 8 * self.grid[1]
        (rows, columns), (down, right), (height, width) = self.grid, embed.proj.stride, embed.patch_size
        return (rows - 1) * down + height, (columns - 1) * right + width

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

    def run_block(
        self, index: int, tokens: Tensor, rotations: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """One block, counted from 0.

        Args:
            index: of the block.
            tokens: (B, P + n, width).
            rotations: of the n tokens; None without.
            bias: what attention adds to the products with each key, (B, 1, 1, P + n); None for nothing.
        """
        return self.blocks[index](tokens, attn_mask=bias)

    def finish(self, tokens: Tensor) -> Tensor:
        """The last norm and, for CLIP, the projection, after the blocks."""
        return self.vit.head(self.vit.norm(tokens))


class RotaryTrunk(Trunk):
    """timm's family `eva`: DINOv3, EVA-02 and others. Its blocks rotate queries and keys by position.

    Rotations are sines and cosines beside each other: (N, D), the same for all images, blocks and heads, or
    (blocks, heads, N, D) where each head of each block has its own. The prefix tokens are not rotated.
    """

    @property
    def position_resize(self) -> Resize:
        """As the authors of EVA-02; DINOv3 has no position table."""
        return Resize("bicubic")

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """As for every trunk."""
        tokens, rotations = self.vit._pos_embed(self.vit.patch_embed(images))
        return tokens, rotations

    def run_block(
        self, index: int, tokens: Tensor, rotations: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """As for every trunk."""
        if rotations is not None and getattr(self.vit, "rope_mixed", False):
            rotations = rotations[index]
        return self.blocks[index](tokens, rope=rotations, attn_mask=bias)


def keep_rotations(rotations: Tensor | None, indices: Tensor) -> Tensor | None:
    """The rotations of some of the patches.

    Args:
        rotations: of all patches, (N, D) or (blocks, heads, N, D); None without.
        indices: of those patches, (B, n).

    Returns:
        (B, 1, n, D) or (blocks, B, heads, n, D).
    """
    if rotations is None:
        return None
    by_head = rotations if rotations.dim() > 2 else rotations.unsqueeze(0)
    return by_head[..., indices, :].movedim(-3, -4)  # images before heads


def make_trunk(vit: VisionTransformer | Eva) -> Trunk:
    """The trunk of a ViT that `create_vit` has made."""
    return RotaryTrunk(vit) if isinstance(vit, Eva) else Trunk(vit)
