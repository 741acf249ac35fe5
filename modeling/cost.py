"""What a model costs: parameters, multiply-adds by part, and speed on this device."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn

from modeling.branches import Branch
from modeling.reid_model import MultiModalReID
from structures import ModalBatch, PerModality


@dataclass(frozen=True)
class PartCost:
    """Cost of one part: its parameters (all, and those that train) and multiply-adds for one triple."""

    name: str
    parameters: int
    trainable: int
    multiply_adds: int


@dataclass(frozen=True)
class CostReport:
    """Cost of a model.

    Attributes:
        parts: cost by part; absent parts are left out.
        images_per_second: measured in evaluation; a triple counts as three images.
        batch_size: triples per batch in that measurement.
        device: where it was measured.
        tokens: how many tokens of one image enter each block of the backbone.
    """

    parts: tuple[PartCost, ...]
    images_per_second: float
    batch_size: int
    device: str
    tokens: tuple[int, ...]

    @property
    def total(self) -> PartCost:
        """The sum of the parts."""
        return PartCost(
            "total",
            sum(part.parameters for part in self.parts),
            sum(part.trainable for part in self.parts),
            sum(part.multiply_adds for part in self.parts),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics.json."""
        return {
            "parts": {
                part.name: {
                    "parameters": part.parameters,
                    "trainable": part.trainable,
                    "gflops": part.multiply_adds / 1e9,
                }
                for part in (*self.parts, self.total)
            },
            "tokens_per_block": list(self.tokens),
            "images_per_second": self.images_per_second,
            "batch_size": self.batch_size,
            "device": self.device,
        }

    def table(self) -> str:
        """The report as text."""
        lines = [f"{'cost':<10} {'parameters':>12} {'GFLOPs':>9} {'share':>7}"]
        for part in (*self.parts, self.total):
            millions, giga = part.parameters / 1e6, part.multiply_adds / 1e9
            share = part.multiply_adds / self.total.multiply_adds
            lines.append(f"{part.name:<10} {millions:>10.3f} M {giga:>9.4f} {share:>7.2%}")
        lines.append(f"trainable parameters: {self.total.trainable / 1e6:.2f} M")
        runs = [(count, len(list(blocks))) for count, blocks in groupby(self.tokens)]
        if len(runs) > 1:
            lines.append(f"tokens: {', '.join(f'{count} in {blocks} blocks' for count, blocks in runs)}")
        lines.append(
            f"speed: {self.images_per_second:.1f} images/s in evaluation on {self.device}, "
            f"batch of {self.batch_size} triples"
        )
        lines.append("GFLOPs are multiply-adds for one triple (three images)")
        return "\n".join(lines)


def count_attention(inputs: list[Any], outputs: list[Any]) -> Counter[str]:
    """Multiply-adds of scaled dot-product attention, which fvcore does not know: Q·Kᵀ and weights·V."""
    query, key, value = (node.type().sizes() for node in inputs[:3])  # (B, heads, L, d) each
    *batch, length, width = query
    pairs = length * key[-2]
    for size in batch:
        pairs *= size
    return Counter({"attention": pairs * (width + value[-1])})


class _TensorsIn(nn.Module):
    """The model behind an interface of plain tensors, as tracing needs it."""

    def __init__(self, model: MultiModalReID) -> None:
        super().__init__()
        self.model = model

    def forward(self, rgb: Tensor, ni: Tensor, ti: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        output = self.model(ModalBatch(PerModality(rgb, ni, ti), ids, ids, ids))
        return tuple(head.logits for head in output.heads)


def _example(model: MultiModalReID, batch_size: int) -> tuple[Tensor, ...]:
    """Random images and zero ids on the model's device: the arguments of `_TensorsIn`."""
    parameter = next(model.parameters())
    height, width = model.backbone.img_size
    images = [torch.randn(batch_size, 3, height, width, device=parameter.device) for _ in PerModality._fields]
    return (*images, torch.zeros(batch_size, dtype=torch.long, device=parameter.device))


def model_parts(model: MultiModalReID) -> dict[str, str]:
    """The parts of a model in the order of the report: what it calls them -> their names as modules."""
    pife = {} if model.pife is None else {"PIFE": "pife"}
    branches = {
        title: f"branches.{name}.{path}".rstrip(".")
        for name, branch in cast("Mapping[str, Branch]", model.branches).items()
        for path, title in branch.cost_titles.items()
    }
    return {"backbone": "backbone", **pife, **branches, "heads": "heads"}


def count_multiply_adds(model: MultiModalReID) -> dict[str, int]:
    """Multiply-adds for one triple, by what the report calls the part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # fvcore uses torch.jit, which newer torch deprecates
        return _count_multiply_adds(model)


def _count_multiply_adds(model: MultiModalReID) -> dict[str, int]:
    from fvcore.nn import FlopCountAnalysis  # late, since importing it warns

    was_training = model.training
    model.eval()
    analysis = FlopCountAnalysis(_TensorsIn(model), _example(model, 1))
    analysis.set_op_handle("aten::scaled_dot_product_attention", count_attention)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    by_module = analysis.by_module()
    model.train(was_training)
    return {title: int(by_module[f"model.{part}"]) for title, part in model_parts(model).items()}


@torch.no_grad()
def count_tokens(model: MultiModalReID) -> tuple[int, ...]:
    """How many tokens of one image enter each block of the backbone in evaluation."""
    was_training = model.training
    counts: list[int] = []
    hooks = [
        block.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))
        for block in model.backbone.vit.blocks
    ]
    try:
        _TensorsIn(model).eval()(*_example(model, 1))
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return tuple(counts)


@torch.no_grad()
def measure_speed(model: MultiModalReID, batch_size: int, *, min_seconds: float = 1.0) -> float:
    """Images per second in evaluation, on the device that holds the model, after one warm-up pass."""
    was_training = model.training
    runner = _TensorsIn(model).eval()
    example = _example(model, batch_size)
    device = example[0].device

    def run() -> None:
        runner(*example)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    passes = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < min_seconds or passes < 2:
        run()
        passes += 1
    model.train(was_training)
    return 3 * batch_size * passes / elapsed


def measure_cost(model: MultiModalReID) -> CostReport:
    """Count parameters and multiply-adds by part, and measure the speed on the model's device."""
    multiply_adds = count_multiply_adds(model)
    device = next(model.parameters()).device
    batch_size = 64 if device.type == "cuda" else 4
    parts = []
    for title, part in model_parts(model).items():
        parameters = list(model.get_submodule(part).parameters())
        trainable = sum(p.numel() for p in parameters if p.requires_grad)
        parts.append(PartCost(title, sum(p.numel() for p in parameters), trainable, multiply_adds[title]))
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    tokens = count_tokens(model)
    return CostReport(tuple(parts), measure_speed(model, batch_size), batch_size, where, tokens)
