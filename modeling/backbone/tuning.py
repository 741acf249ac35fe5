"""What of the trunk learns: all of it, nothing, its biases, or small parts beside its frozen weights.

An adapter (Houlsby et al., ICML 2019; parallel as in AdaptFormer, NeurIPS 2022) is a bottleneck beside the
MLP of a block. LoRA (Hu et al., ICLR 2022) adds maps of low rank to the projections of queries and values.
Both are forward hooks of the trunk's own layers: its entries keep their names, so that weight files load as
before. The last weights of both start at 0, so that training starts at the trunk's own output, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from errors import UserError
from structures import Modality

TUNES = ("full", "frozen", "adapter", "lora", "bias")
"""What learns of a trunk; `bias` are all biases, those of its norms among them."""


class LowRank(nn.Module):
    """scale * up(activation(down(x))); 0 until `up` has learned.

    Args:
        width: C, of the input.
        out_width: D, of the output.
        rank: R, of what is between them.
        scale: factor on the output.
        bottleneck: with biases and a GELU between, as in an adapter; False for LoRA's product of matrices.
    """

    def __init__(self, width: int, out_width: int, *, rank: int, scale: float, bottleneck: bool) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=bottleneck)
        self.activation = nn.GELU() if bottleneck else nn.Identity()
        self.up = nn.Linear(rank, out_width, bias=bottleneck)
        self.scale = scale
        nn.init.zeros_(self.up.weight)
        if bottleneck:
            nn.init.zeros_(self.down.bias)
            nn.init.zeros_(self.up.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, D)."""
        return self.scale * self.up(self.activation(self.down(tokens)))


class Beside(nn.ModuleDict):
    """Adds a `LowRank` to the output of a frozen layer: one for all images, or each modality its own.

    It has no cycle to the layer: the layer calls the hook `add`, a bound method, which `deepcopy` copies with
    the modules.
    """

    def __init__(self, width: int, out_width: int, *, shared: bool, **options: Any) -> None:
        names = ["shared"] if shared else [m.key for m in Modality]
        super().__init__({name: LowRank(width, out_width, **options) for name in names})
        self.counts: Sequence[int] = ()  # how many images of each modality come, one modality after the other

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, C) of B images -> (B, T, D)."""
        if len(self) == 1:
            return cast(Tensor, self["shared"](tokens))
        # A modality without images gets an empty part, so that its weights have a gradient of 0.
        parts = tokens.split(list(self.counts))
        return torch.cat([own(part) for own, part in zip(self.values(), parts, strict=True)])

    def add(self, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The forward hook of a layer from C to D channels."""
        return output + self(inputs[0])


class QueriesAndValues(nn.Module):
    """LoRA of one block, for queries and values; their projection may be one layer with that of the keys."""

    def __init__(self, attention: Any, make: partial[Beside]) -> None:
        super().__init__()
        # One layer for queries, keys and values.
        fused = getattr(attention, "qkv", None)
        if fused is not None:
            width = fused.out_features // 3
            self.q, self.v = make(fused.in_features, width), make(fused.in_features, width)
            fused.register_forward_hook(self.add)
            return
        # A layer for each.
        layers = attention.q_proj, attention.v_proj
        self.q, self.v = (make(layer.in_features, layer.out_features) for layer in layers)
        attention.q_proj.register_forward_hook(self.q.add)
        attention.v_proj.register_forward_hook(self.v.add)

    def add(self, _layer: nn.Module, inputs: tuple[Tensor, ...], qkv: Tensor) -> Tensor:
        """The forward hook of one layer for queries, keys and values, (B, T, 3 * D)."""
        query, key, value = qkv.chunk(3, dim=-1)
        return torch.cat([query + self.q(inputs[0]), key, value + self.v(inputs[0])], dim=-1)


class Tuning(nn.ModuleList):
    """What learns beside a frozen trunk: an adapter or LoRA for each block, in their order."""

    @property
    def tells_modalities_apart(self) -> bool:
        """Whether each modality has its own."""
        return any(isinstance(module, Beside) and len(module) > 1 for module in self.modules())

    def set_counts(self, counts: Sequence[int]) -> None:
        """Say how many images of each modality come next, one modality after the other."""
        for module in self.modules():
            if isinstance(module, Beside):
                module.counts = counts


def tune_trunk(
    vit: nn.Module, kind: str, *, rank: int = 16, scale: float = 1.0, shared: bool = True
) -> Tuning | None:
    """Freeze a trunk as far as `kind` says, and put what learns beside it.

    Args:
        vit: a ViT of timm, of the families `vision_transformer` or `eva`.
        kind: one of `TUNES`.
        rank: width of the bottleneck of an adapter; rank of LoRA.
        scale: factor on what they add.
        shared: one adapter or LoRA of a block for all modalities, or one for each.

    Returns:
        The adapters or LoRA, to be kept in a module beside the trunk; None for the other kinds.
    """
    if kind not in TUNES:
        raise ValueError(f"unknown kind of tuning {kind!r}; choose from {list(TUNES)}")
    if kind == "full":
        return None
    # Freeze.
    for name, parameter in vit.named_parameters():
        if not (kind == "bias" and name.endswith("bias")):
            parameter.requires_grad_(False)
    if kind in ("frozen", "bias"):
        return None
    # Put the small parts beside the blocks.
    make = partial(Beside, rank=rank, scale=scale, shared=shared, bottleneck=kind == "adapter")
    blocks = cast("Iterable[nn.Module]", vit.blocks)
    if kind == "lora":
        return Tuning(_add_lora(block, make) for block in blocks)
    width: Any = vit.embed_dim
    return Tuning(_add_adapter(block, make(width, width)) for block in blocks)


def _add_adapter(block: nn.Module, adapter: Beside) -> Beside:
    """Put an adapter beside the MLP: after the norm, before layer scale and stochastic depth."""
    mlp = getattr(block, "mlp", None)
    if not isinstance(mlp, nn.Module):
        raise _misfit("adapter", "lora", "its blocks have no MLP of their own")
    mlp.register_forward_hook(adapter.add)
    return adapter


def _add_lora(block: nn.Module, make: partial[Beside]) -> QueriesAndValues:
    """Put LoRA beside the projections of queries and values."""
    attention: Any = getattr(block, "attn", None)
    layers = [getattr(attention, name, None) for name in ("qkv", "q_proj")]
    if not any(isinstance(layer, nn.Linear) for layer in layers):
        raise _misfit("lora", "adapter", "its blocks have no projection of queries and values to add to")
    # timm then reads the weights of the layer without calling it, so that no hook runs.
    if layers[0] is not None and getattr(attention, "q_bias", None) is not None:
        raise _misfit("lora", "adapter", "its attention adds the biases of a fused projection by itself")
    return QueriesAndValues(attention, make)


def _misfit(kind: str, instead: str, reason: str) -> UserError:
    return UserError(
        f"MODEL.TUNE {kind} cannot be used with this MODEL.TRANSFORMER_TYPE: {reason}; choose MODEL.TUNE "
        f"{instead}, or another trunk"
    )
