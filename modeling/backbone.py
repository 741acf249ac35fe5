"""The shared ViT: images of any modality -> a class token and patch tokens."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import timm
import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from errors import UserError
from modeling.attention import ClassAttentionReader, attention_layers
from modeling.slimming import Slimming, SlimTokens
from structures import SlimmedPatches

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


class EncodedImages(NamedTuple):
    """What the backbone makes of B images."""

    globals_: Tensor  # class tokens, (B, C)
    patches: Tensor  # patch tokens that are left, (B, n, C); all N without slimming
    slimmed: SlimmedPatches | None  # which patches are left; None without slimming
    attended: Tensor | None  # how much the class token attends to each patch, (B, N); None if not read


class Backbone(nn.Module):
    """A ViT with an optional camera embedding (SIE), and optional slimming.

    Args:
        name: see `create_vit`.
        img_size: height and width of the images.
        stride: step between patches.
        drop_path: stochastic depth; as in DeMo, the CLIP tower does not use it.
        dropout: dropout in projections and MLPs.
        attention_dropout: dropout on attention weights.
        num_embeddings: rows of the camera embedding; 0 for none.
        embedding_factor: factor on the camera embedding.
        unseen_camera: embedding, in evaluation, of a row beyond the table: `mean` of the table, or `zero`.
        slimming: drops patches; the images must then be those of M modalities, one modality after the other.
        slim_layers: the blocks after which it does, counted from 1.
        read_attention: keep the class token's attention at three quarters of the depth; without slimming.
    """

    def __init__(
        self,
        name: str,
        *,
        img_size: tuple[int, int],
        stride: tuple[int, int],
        drop_path: float = 0.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_embeddings: int = 0,
        embedding_factor: float = 1.0,
        unseen_camera: str = "mean",
        slimming: Slimming | None = None,
        slim_layers: Sequence[int] = (),
        read_attention: bool = False,
    ) -> None:
        super().__init__()
        self.img_size = img_size
        self.is_clip = name == CLIP_VIT_B16
        self.embedding_factor = embedding_factor
        self.unseen_camera = unseen_camera
        self.vit = create_vit(
            name,
            img_size=img_size,
            stride=stride,
            drop_path_rate=0.0 if self.is_clip else drop_path,
            pos_drop_rate=dropout,
            proj_drop_rate=dropout,
            attn_drop_rate=attention_dropout,
        )
        # CLIP's projection, and the camera embedding.
        width: int = self.vit.embed_dim
        self.dim = width
        if self.is_clip:
            self.dim = CLIP_WIDTH
            self.vit.head = nn.Linear(width, CLIP_WIDTH, bias=False)
            nn.init.normal_(self.vit.head.weight, std=width**-0.5)
        self.camera_embed: nn.Parameter | None = None
        if num_embeddings:
            self.camera_embed = nn.Parameter(torch.zeros(num_embeddings, 1, width))
            nn.init.trunc_normal_(self.camera_embed, std=0.02)
        # Where slimming happens, read the attention of the block.
        self.slimming = slimming
        self._readers: dict[int, ClassAttentionReader] = {}
        if slimming is not None:
            layers = attention_layers(self.vit)
            if any(not 1 <= layer <= len(layers) for layer in slim_layers):
                raise UserError(
                    f"MODEL.SLIM_LAYERS {list(slim_layers)} names blocks that do not exist; this backbone "
                    f"has blocks 1 to {len(layers)}"
                )
            self._readers = {layer: ClassAttentionReader(layers[layer - 1]) for layer in slim_layers}
        # Where the class token looks: in the middle blocks; before them it knows too little, after them it
        # has already looked.
        self._guide: ClassAttentionReader | None = None
        if read_attention:
            layers = attention_layers(self.vit)
            self._guide = ClassAttentionReader(layers[math.ceil(0.75 * len(layers)) - 1])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches."""
        return self.vit.patch_embed.grid_size

    def _add_camera(self, tokens: Tensor, embedding_ids: Tensor) -> Tensor:
        """Add the embedding to the class token (CLIP) or to every token (ImageNet ViT)."""
        if self.camera_embed is None:
            return tokens
        table: Tensor = self.camera_embed
        if not self.training:  # one more row, for cameras that training never saw
            mean = table.mean(dim=0, keepdim=True)
            table = torch.cat([table, mean if self.unseen_camera == "mean" else torch.zeros_like(mean)])
            embedding_ids = embedding_ids.clamp(max=len(table) - 1)
        camera = self.embedding_factor * table[embedding_ids]  # (B, 1, width)
        if self.is_clip:
            return torch.cat([tokens[:, :1] + camera, tokens[:, 1:]], dim=1)
        return tokens + camera

    def forward(self, images: Tensor, embedding_ids: Tensor) -> EncodedImages:
        """Encode images.

        Args:
            images: (B, 3, H, W).
            embedding_ids: row of the camera embedding for each image, (B,); ignored without one. In
                evaluation a row beyond the table stands for a camera that training never saw.
        """
        # Patches to tokens, with position and camera.
        vit = self.vit
        tokens = vit._pos_embed(vit.patch_embed(images))  # (B, prefix + N, width)
        tokens = vit.norm_pre(self._add_camera(tokens, embedding_ids))
        # The blocks, with or without slimming.
        slimmed, num_patches = None, tokens.shape[1] - vit.num_prefix_tokens
        if self.slimming is None:
            tokens = vit.blocks(tokens)
        else:
            tokens, slimmed = self._run_slimmed(tokens, present=images.flatten(1).any(dim=1))
            num_patches = slimmed.indices.shape[1]
        # The output: without the register and extra tokens.
        tokens = vit.head(vit.norm(tokens))  # (B, prefix + n + extra, C)
        patches = tokens[:, vit.num_prefix_tokens :][:, :num_patches]
        attended = None if self._guide is None else self._guide.read()[:, vit.num_prefix_tokens :]
        return EncodedImages(tokens[:, 0], patches, slimmed, attended)

    def _run_slimmed(self, tokens: Tensor, present: Tensor) -> tuple[Tensor, SlimmedPatches]:
        """The blocks, with slimming after some of them.

        Args:
            tokens: (B, prefix + N, width).
            present: whether an image is there, (B,); False where it is missing.

        Returns:
            The prefix tokens, the patches that are left and the extra token, and which patches are left.
        """
        assert self.slimming is not None
        num_prefix = self.vit.num_prefix_tokens
        state = SlimTokens.whole(tokens, num_prefix)
        for layer, block in enumerate(self.vit.blocks, start=1):
            tokens = block(tokens)
            if layer in self._readers:
                attended = self._readers[layer].read()[:, num_prefix:]  # (B, n + extra)
                state = self.slimming(state.updated(tokens), attended, present)
                tokens = state.joined()
        return tokens, SlimmedPatches(state.indices, state.scores)
