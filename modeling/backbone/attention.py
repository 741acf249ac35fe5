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
from typing import TYPE_CHECKING, Any, cast

import torch
from timm.layers import AttentionRope, apply_rot_embed_cat
from timm.models.eva import EvaAttention
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from errors import UserError
from structures import ModalBatch, PerModality

if TYPE_CHECKING:
    from modeling.reid_model import MultiModalReID


READABLE = (Attention, EvaAttention, AttentionRope)
"""Kinds of attention that compare queries with keys and nothing else."""


def attention_weights(
    query: Tensor,
    key: Tensor,
    scale: float,
    *,
    bias: Tensor | None = None,
    num_queries: int | None = None,
    per_head: bool = False,
) -> Tensor:
    """The attention of a block, mean over the heads or of each of them.

    Args:
        query: as they are compared, (B, heads, T, D).
        key: likewise.
        scale: factor on their products.
        bias: added to them, (B, 1, 1, T); None for nothing.
        num_queries: R, how many of the first tokens to compute it for; None for all T.
        per_head: do not average.

    Returns:
        (B, R, T), or (B, heads, R, T) per head, in float32; row i holds the shares of the tokens in token i
        and sums to 1.
    """
    products = (scale * query[:, :, :num_queries] @ key.transpose(-2, -1)).float()
    weights = (products if bias is None else products + bias).softmax(dim=-1)
    return weights if per_head else weights.mean(dim=1)


def attention_layers(vit: nn.Module) -> list[Any]:
    """The attention of each block, in their order; timm has kinds of blocks that cannot be read like this."""
    layers = [getattr(block, "attn", None) for block in cast("Any", vit).blocks]
    plain = [layer for layer in layers if isinstance(layer, READABLE)]
    if len(plain) < len(layers):
        raise UserError(
            "the attention of this MODEL.TRANSFORMER_TYPE cannot be read: its blocks are not those of the "
            "plain ViT; choose another, or do without attention maps"
        )
    return plain


class AttentionReader:
    """Reads the attention of one block, without computing queries and keys a second time.

    Hooks keep those of the last pass through the block, their rotations and the bias until `read` or `clear`.
    """

    def __init__(self, attention: Any) -> None:
        self._attention = attention
        self._query: Tensor | None = None
        self._key: Tensor | None = None
        self._rotations: Tensor | None = None
        self._bias: Tensor | None = None
        self._hooks = [
            attention.q_norm.register_forward_hook(self._keep_query),
            attention.k_norm.register_forward_hook(self._keep_key),
            attention.register_forward_pre_hook(self._keep_positions, with_kwargs=True),
        ]

    def _keep_query(self, _module: nn.Module, _inputs: tuple[Tensor], query: Tensor) -> None:
        self._query = query

    def _keep_key(self, _module: nn.Module, _inputs: tuple[Tensor], key: Tensor) -> None:
        self._key = key

    def _keep_positions(self, _module: nn.Module, _inputs: tuple[Tensor], named: dict[str, Any]) -> None:
        self._rotations, self._bias = named.get("rope"), named.get("attn_mask")

    def _rotated(self, tokens: Tensor) -> Tensor:
        """(B, heads, P + n, D) with the n patches rotated, as timm's attention does it."""
        if self._rotations is None:
            return tokens
        prefix, patches = tokens.tensor_split([self._attention.num_prefix_tokens], dim=2)
        half = self._attention.rotate_half
        return torch.cat([prefix, apply_rot_embed_cat(patches, self._rotations, half=half)], dim=2)

    def read(self, num_queries: int | None = None, *, per_head: bool = False) -> Tensor:
        """What `attention_weights` gives for the last pass; only once."""
        assert self._query is not None, "the block has not run"
        assert self._key is not None
        query, key, bias = self._rotated(self._query), self._rotated(self._key), self._bias
        self.clear()
        if query.shape[1] > key.shape[1]:  # several heads share their keys
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scale = self._attention.scale
        return attention_weights(query, key, scale, bias=bias, num_queries=num_queries, per_head=per_head)

    def clear(self) -> None:
        """Forget the last pass."""
        self._query = self._key = self._rotations = self._bias = None

    def remove(self) -> None:
        """Take the hooks off the block."""
        for hook in self._hooks:
            hook.remove()


class RolloutReader:
    """Reads how much of each token the attention of all blocks brings to the class token, head by head.

    This is the class token's row of A_L ⋯ A_1 within each head, as EDITOR takes it: unlike `roll_out`,
    without residual connections and without the mean over the heads. Multiplied from the left, it needs
    products of one row only; the attention of all tokens is computed once more in every block but the last.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._readers = [AttentionReader(layer) for layer in layers]

    @torch.no_grad()
    def read(self) -> Tensor:
        """The shares of the tokens in the last pass, (B, heads, T), in float32; they sum to 1."""
        last, *before = reversed(self._readers)
        row = last.read(num_queries=1, per_head=True)  # (B, heads, 1, T)
        with torch.autocast(row.device.type, enabled=False):
            for reader in before:
                row = row @ reader.read(per_head=True)
        return row[:, :, 0]

    def clear(self) -> None:
        """Forget the last pass."""
        for reader in self._readers:
            reader.clear()


@contextmanager
def recorded_attention(vit: nn.Module) -> Iterator[list[Tensor]]:
    """A list to which every block adds its attention, (B, T, T), when images pass through the ViT."""
    found: list[Tensor] = []
    layers = attention_layers(vit)
    readers = [AttentionReader(layer) for layer in layers]
    after = [
        layer.register_forward_hook(lambda *_, reader=reader: found.append(reader.read()))
        for layer, reader in zip(layers, readers, strict=True)
    ]
    try:
        yield found
    finally:
        for reader in readers:
            reader.remove()
        for hook in after:
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
    trunk = model.backbone.trunk
    with recorded_attention(trunk.vit) as attentions:
        model.encode_images(batch, skip=False)  # all modalities in one call: (M * B, T, T) for each block
    return model.by_modality(roll_out(attentions)[:, 0, trunk.num_prefix :])  # (M * B, N)
