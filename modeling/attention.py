"""The attention of timm's blocks, which a fused kernel does not return, and attention rollout.

Rollout (Abnar and Zuidema, ACL 2020, arXiv 2005.00928): each block mixes tokens by its attention A, averaged
over the heads, and passes them on by its residual connection. Their mean, A / 2 + I / 2, has rows that sum to
1, and so has its product over the blocks. The class token's row of the product says how much of each patch
reaches the class token.

The forward path is not changed: hooks read the queries and keys that a block computes anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn

from errors import UserError
from structures import ModalBatch, Modality, PerModality

if TYPE_CHECKING:
    from modeling.reid_model import MultiModalReID


def attention_weights(attention: Attention, qkv: Tensor, num_queries: int | None = None) -> Tensor:
    """The attention of a block, mean over the heads.

    Args:
        attention: the block's attention, without mask.
        qkv: what its projection `qkv` gave, (B, T, 3 * heads * D).
        num_queries: R, how many of the first tokens to compute it for; None for all T.

    Returns:
        (B, R, T), in float32; row i holds the shares of the tokens in token i and sums to 1.
    """
    parts = qkv.unflatten(2, (3, attention.num_heads, attention.head_dim)).permute(2, 0, 3, 1, 4)
    query, key = attention.q_norm(parts[0, :, :, :num_queries]), attention.k_norm(parts[1])
    return (attention.scale * query @ key.transpose(-2, -1)).float().softmax(dim=-1).mean(dim=1)


def attention_layers(vit: VisionTransformer) -> list[Attention]:
    """The attention of each block, in their order; timm has kinds of blocks that cannot be read like this."""
    layers = [getattr(block, "attn", None) for block in vit.blocks]
    plain = [layer for layer in layers if isinstance(layer, Attention)]
    if len(plain) < len(layers):
        raise UserError(
            "the attention of this MODEL.TRANSFORMER_TYPE cannot be read: its blocks are not those of the "
            "plain ViT; choose another, or do without attention maps and MODEL.SLIM_LAYERS"
        )
    return plain


class ClassAttentionReader:
    """Reads how much the class token attends to each token in one block, without a second computation.

    A hook that is registered once keeps the queries and keys of the block until `read`.
    """

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self._qkv: Tensor | None = None
        attention.qkv.register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: tuple[Tensor], qkv: Tensor) -> None:
        self._qkv = qkv

    def read(self) -> Tensor:
        """The class token's attention in the last pass through the block, (B, T), in float32."""
        qkv, self._qkv = self._qkv, None
        assert qkv is not None, "the block has not run"
        return attention_weights(self._attention, qkv, num_queries=1)[:, 0]


@contextmanager
def recorded_attention(vit: VisionTransformer) -> Iterator[list[Tensor]]:
    """A list to which every block adds its attention, (B, T, T), when images pass through the ViT."""
    found: list[Tensor] = []

    def record(attention: Attention, _module: nn.Module, _inputs: tuple[Tensor], qkv: Tensor) -> None:
        found.append(attention_weights(attention, qkv))

    hooks = [layer.qkv.register_forward_hook(partial(record, layer)) for layer in attention_layers(vit)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def roll_out(attentions: Sequence[Tensor]) -> Tensor:
    """The product of the attentions of the blocks in their order, (B, T, T) each; its rows sum to 1."""
    identity = torch.eye(attentions[0].shape[-1]).to(attentions[0])
    product = identity.expand_as(attentions[0])
    for attention in attentions:
        product = (0.5 * attention + 0.5 * identity) @ product
    return product


@torch.no_grad()
def attention_rollout(model: MultiModalReID, batch: ModalBatch) -> PerModality[Tensor]:
    """How much of each patch reaches the class token of its modality; the model is in evaluation mode.

    Returns:
        (B, N) for each modality, not negative. The sum over the patches is at most 1; the rest is what the
        class token (and register tokens, if there are any) had of itself.
    """
    if model.backbone.slimming is not None:
        raise UserError(
            "attention rollout follows every patch through all blocks; with these weights, set "
            "MODEL.SLIM_LAYERS [] to see it"
        )
    vit = model.backbone.vit
    with recorded_attention(vit) as attentions:
        model.encode(batch)  # the modalities in one call: (3B, T, T) for each block
    from_class_token = roll_out(attentions)[:, 0, vit.num_prefix_tokens :]  # (3B, N)
    return PerModality(*from_class_token.chunk(len(Modality)))
