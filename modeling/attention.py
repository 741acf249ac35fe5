"""What the attention of a block of timm is: a fused kernel does not tell it."""

from __future__ import annotations

from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn

from structures import UserError


def attention_weights(attention: Attention, qkv: Tensor) -> Tensor:
    """The attention of a block, mean over the heads.

    Args:
        attention: the block's attention, without mask.
        qkv: what its projection `qkv` gave, (B, T, 3 * heads * D).

    Returns:
        (B, T, T), in float32; row i holds the shares of the tokens in token i and sums to 1.
    """
    query, key = _queries_and_keys(attention, qkv)
    return _weights(attention, query, key)


def class_attention(attention: Attention, qkv: Tensor) -> Tensor:
    """The row of the class token in `attention_weights`, (B, T), without computing the others."""
    query, key = _queries_and_keys(attention, qkv)
    return _weights(attention, query[:, :, :1], key)[:, 0]


def _queries_and_keys(attention: Attention, qkv: Tensor) -> tuple[Tensor, Tensor]:
    """(B, heads, T, D) each."""
    batch, tokens, _ = qkv.shape
    parts = qkv.view(batch, tokens, 3, attention.num_heads, attention.head_dim).permute(2, 0, 3, 1, 4)
    return attention.q_norm(parts[0]), attention.k_norm(parts[1])


def _weights(attention: Attention, query: Tensor, key: Tensor) -> Tensor:
    """(B, heads, R, D) and (B, heads, T, D) -> (B, R, T)."""
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

    The block computes queries and keys anyway; a hook that is registered once keeps them until `read`.

    Args:
        attention: of the block.
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
        return class_attention(self._attention, qkv)
