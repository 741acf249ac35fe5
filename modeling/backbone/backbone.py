"""The shared ViT: images of any modality -> a class token and patch tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from errors import UserError
from modeling.backbone.attention import AttentionReader, RolloutReader, attention_layers
from modeling.backbone.slimming import Slimming, SlimTokens, lattice_order
from modeling.backbone.trunk import CLIP_VIT_B16, CLIP_WIDTH, create_vit, keep_rotations, make_trunk
from modeling.backbone.tuning import Tuning, tune_trunk
from structures import SlimmedPatches


class EncodedImages(NamedTuple):
    """What the backbone makes of B images."""

    globals_: Tensor  # class tokens, (B, C)
    patches: Tensor  # patch tokens, (B, N, C); with slimming, those of patches that were merged are equal
    slimmed: SlimmedPatches | None  # how patches were merged; None without slimming
    attended: Tensor | None  # how much the class token attends to each patch, (B, N); None if not read
    # How much of each patch the attention of all blocks brings to the class token, (B, heads, N); likewise.
    rollout: Tensor | None


class Backbone(nn.Module):
    """A ViT with an optional camera embedding (SIE), and optional slimming.

    Args:
        name: see `create_vit`, in trunk.py.
        img_size: height and width of the images.
        stride: step between patches.
        drop_path: stochastic depth; as in DeMo, the CLIP tower does not use it.
        dropout: dropout in projections and MLPs.
        attention_dropout: dropout on attention weights.
        num_embeddings: rows of the camera embedding; 0 for none.
        embedding_factor: factor on the camera embedding.
        unseen_camera: embedding, in evaluation, of a row beyond the table: `mean` of the table, or `zero`.
        slimming: merges patches.
        slim_layers: the blocks after which it does, counted from 1; 0 is before the first.
        recompute: in training, compute each block again in the backward pass in place of keeping what it
            needs: less memory, more time, the same gradients.
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
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.img_size = img_size
        self.is_clip = name == CLIP_VIT_B16
        self.embedding_factor = embedding_factor
        self.unseen_camera = unseen_camera
        self.recompute = recompute
        self.vit = create_vit(
            name,
            img_size=img_size,
            stride=stride,
            drop_path_rate=0.0 if self.is_clip else drop_path,
            pos_drop_rate=dropout,
            proj_drop_rate=dropout,
            attn_drop_rate=attention_dropout,
        )
        self.trunk = make_trunk(self.vit)
        # CLIP's projection, and the camera embedding.
        width = self.trunk.width
        self.dim = width
        if self.is_clip:
            self.dim = CLIP_WIDTH
            self.vit.head = nn.Linear(width, CLIP_WIDTH, bias=False)
            nn.init.normal_(self.vit.head.weight, std=width**-0.5)
        self.camera_embed: nn.Parameter | None = None
        if num_embeddings:
            self.camera_embed = nn.Parameter(torch.zeros(num_embeddings, 1, width))
            nn.init.trunc_normal_(self.camera_embed, std=0.02)
        self.tuning: Tuning | None = None  # what learns beside a frozen trunk; see `tune`
        # Where slimming happens, and the order in which it takes patches.
        self.slimming = slimming
        depth = len(self.trunk.blocks)
        layers = list(slim_layers) if slimming is not None else []
        if any(not 0 <= layer <= depth for layer in layers):
            raise UserError(
                f"MODEL.SLIM_LAYERS {layers} names blocks that do not exist; this backbone has blocks 1 to "
                f"{depth}"
            )
        self._slim_layers = frozenset(layers)
        self._lattice: Tensor
        self.register_buffer("_lattice", lattice_order(self.grid), persistent=False)
        # Blocks whose class attention is read.
        self._readers: dict[int, AttentionReader] = {}
        self._rollout: RolloutReader | None = None

    def read_attention(self, needs: Collection[str]) -> None:
        """Give, from now on, the `attended` or the `rollout` of `EncodedImages` too."""
        if "attended" in needs:
            # In the middle: before, the class token knows too little; after, it has already looked.
            layer = math.ceil(0.75 * len(self.trunk.blocks))
            self._readers[layer] = AttentionReader(attention_layers(self.vit)[layer - 1])
        if "rollout" in needs:
            if self.slimming is not None:
                raise UserError(
                    "a branch follows the attention of every patch through all blocks; set MODEL.SLIM_LAYERS "
                    "to [], or turn that branch off"
                )
            self._rollout = RolloutReader(attention_layers(self.vit))

    def tune(self, kind: str, **options: Any) -> None:
        """Freeze the trunk, with CLIP's projection, as `kind` says; see `tune_trunk`, also for the options.

        The camera embedding learns in any case: no trunk file has it.
        """
        self.tuning = tune_trunk(self.vit, kind, **options)

    @property
    def tells_modalities_apart(self) -> bool:
        """Whether each modality has adapters of its own, so that equal images of two modalities differ."""
        return self.tuning is not None and self.tuning.tells_modalities_apart

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches."""
        return self.trunk.grid

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

    def forward(self, images: Tensor, embedding_ids: Tensor, counts: Sequence[int] = ()) -> EncodedImages:
        """Encode images, one modality after the other.

        Args:
            images: (B, 3, H, W).
            embedding_ids: row of the camera embedding for each image, (B,); ignored without one. In
                evaluation a row beyond the table stands for a camera that training never saw.
            counts: how many of the images are of each modality; read if `tells_modalities_apart`.
        """
        if self.tuning is not None:
            self.tuning.set_counts(counts)
        # Patches to tokens, with position and camera.
        trunk = self.trunk
        tokens, rotations = trunk.embed(images)  # (B, prefix + N, width)
        tokens = trunk.norm_before(self._add_camera(tokens, embedding_ids))
        # The blocks, with or without slimming.
        tokens, attended, slim = self._run_blocks(tokens, rotations)
        # The output: without the register tokens, and for each patch what it was merged into.
        tokens = trunk.finish(tokens)  # (B, prefix + n, C)
        patches = tokens[:, trunk.num_prefix :]
        patches, slimmed = (patches, None) if slim is None else (slim.spread(patches), slim.describe())
        rollout = None if self._rollout is None else self._rollout.read()[:, :, trunk.num_prefix :]
        return EncodedImages(tokens[:, 0], patches, slimmed, attended, rollout)

    def _run_block(
        self, layer: int, tokens: Tensor, rotations: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """A block, counted from 1: the tokens after it and, where it is read, the class token's attention.

        The attention is that to the patches, or to what they were merged into, (B, n).
        """
        if self.recompute and self.training and torch.is_grad_enabled():
            # What is random in the block is drawn alike both times.
            result: tuple[Tensor, Tensor | None] = checkpoint(
                self._compute_block,
                layer,
                tokens,
                rotations,
                bias,
                use_reentrant=False,
                context_fn=lambda: (nullcontext(), self._reading_nothing()),
            )
            return result
        return self._compute_block(layer, tokens, rotations, bias)

    def _compute_block(
        self, layer: int, tokens: Tensor, rotations: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        tokens = self.trunk.run_block(layer - 1, tokens, rotations, bias)
        if layer not in self._readers:
            return tokens, None
        return tokens, self._readers[layer].read(num_queries=1)[:, 0, self.trunk.num_prefix :]

    @contextmanager
    def _reading_nothing(self) -> Iterator[None]:
        """Around a block's second computation, which may end before its attention is read."""
        try:
            yield
        finally:
            for reader in self._readers.values():
                reader.clear()
            if self._rollout is not None:
                self._rollout.clear()

    def _run_blocks(
        self, tokens: Tensor, rotations: Tensor | None
    ) -> tuple[Tensor, Tensor | None, SlimTokens | None]:
        """All blocks, with slimming before the first and after others, as `slim_layers` says.

        Args:
            tokens: (B, prefix + N, width).
            rotations: of the patches, or None.

        Returns:
            The prefix tokens and the patches, (B, prefix + N, width), or with slimming what they were merged
            into, (B, prefix + n, width); the class token's attention to each patch, (B, N), where it is read;
            and how patches were merged.
        """
        slim: SlimTokens | None = None
        attended, bias, turned = None, None, rotations
        for layer in range(len(self.trunk.blocks) + 1):
            if layer:
                tokens, attention = self._run_block(layer, tokens, turned, bias)
                if attention is not None:
                    attended = attention if slim is None else slim.spread(attention / slim.sizes)
            if layer in self._slim_layers and self.slimming is not None:
                whole = partial(SlimTokens.whole, num_prefix=self.trunk.num_prefix, lattice=self._lattice)
                state = whole(tokens) if slim is None else slim.updated(tokens)
                slim = self.slimming(state, columns=None if rotations is None else self.grid[1])
                tokens, bias = slim.joined(), slim.bias()
                turned = keep_rotations(rotations, slim.leads)
        return tokens, attended, slim
