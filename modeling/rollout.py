"""Where the backbone looks: attention rollout (Abnar and Zuidema, ACL 2020, arXiv 2005.00928).

Each block mixes tokens by its attention A, averaged over the heads, and lets them pass by its residual
connection. Their mean, A / 2 + I / 2, has rows that sum to 1, and so has its product over the blocks. The
class token's row of the product says how much of each patch reaches the class token.

The forward path is not changed: hooks read the queries and keys of every block and are gone afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn

from modeling.attention import attention_layers, attention_weights
from modeling.reid_model import MultiModalReID
from structures import ModalBatch, Modality, PerModality, UserError


def roll_out(attentions: Sequence[Tensor]) -> Tensor:
    """The product of the blocks, the first block rightmost, each with its residual connection.

    Args:
        attentions: of each block, in the order of the blocks, (B, T, T), rows sum to 1.

    Returns:
        (B, T, T), rows sum to 1.
    """
    identity = torch.eye(attentions[0].shape[-1]).to(attentions[0])
    product = identity.expand_as(attentions[0])
    for attention in attentions:
        product = (0.5 * attention + 0.5 * identity) @ product
    return product


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


@torch.no_grad()
def attention_rollout(model: MultiModalReID, batch: ModalBatch) -> PerModality[Tensor]:
    """How much of each patch reaches the class token of its modality.

    Args:
        model: in evaluation mode.
        batch: B triples, on the model's device.

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
