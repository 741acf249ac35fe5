"""What a model costs: parameters and multiply-adds by part, memory of a training step, speed."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn

from errors import on_one_line
from modeling.branches import Branch
from modeling.reid_model import MultiModalReID
from structures import ModalBatch, Modality, PerModality

BATCH = 2
"""Triples of which the memory of a training step is measured; batch normalisation needs two."""


@dataclass(frozen=True)
class PartCost:
    """Cost of one part: its parameters (all, and those that train) and multiply-adds for one triple."""

    name: str
    parameters: int
    trainable: int
    multiply_adds: int

    @property
    def frozen(self) -> int:
        """Parameters that do not train."""
        return self.parameters - self.trainable


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step of training holds when its backward pass starts, and that it ends with.

    They are counted, not read from the operating system: what the allocator adds, and what a kernel needs for
    a moment, is not in them.
    """

    weights: int  # parameters and buffers
    gradients: int  # of what trains
    moments: int  # two for each weight that trains, as Adam keeps them
    activations: int  # what the forward pass keeps for the backward pass, for one triple
    peak: int | None = None  # of forward and backward of `BATCH` triples as CUDA measured it; None elsewhere

    @property
    def fixed(self) -> int:
        """What does not depend on the batch."""
        return self.weights + self.gradients + self.moments

    def total(self, batch_size: int) -> int:
        """All of it, for a batch of so many triples."""
        return self.fixed + batch_size * self.activations

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics.json."""
        names = {"activations": "activations_per_triple", "peak": f"cuda_peak_of_{BATCH}_triples"}
        return {names.get(name, name): value for name, value in vars(self).items() if value is not None}

    def text(self) -> str:
        """One line."""
        line = (
            f"training step: {self.fixed / 1e6:.1f} MB for weights, gradients and Adam's moments, and "
            f"{self.activations / 1e6:.1f} MB of activations per triple"
        )
        return line if self.peak is None else f"{line}; CUDA's peak for {BATCH}: {self.peak / 1e6:.1f} MB"


@dataclass(frozen=True)
class CostReport:
    """Cost of a model."""

    parts: tuple[PartCost, ...]  # cost by part; absent parts are left out
    images_per_second: float  # measured in evaluation; an absent image does not count
    batch_size: int  # triples per batch in that measurement
    device: str  # where it was measured
    tokens: tuple[int, ...]  # how many tokens of one image enter each block of the backbone
    step_memory: StepMemory
    modalities: tuple[Modality, ...] = tuple(Modality)  # of which a triple has an image

    @property
    def total(self) -> PartCost:
        """The sum of the parts."""
        sums = [sum(column) for column in zip(*(astuple(part)[1:] for part in self.parts), strict=True)]
        return PartCost("total", *sums)

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
            "training_step_bytes": self.step_memory.as_dict(),
            "images_per_second": self.images_per_second,
            "batch_size": self.batch_size,
            "device": self.device,
            "modalities": [modality.value for modality in self.modalities],
        }

    def table(self) -> str:
        """The report as text."""
        wide = max(10, *(len(part.name) for part in self.parts))
        lines = [f"{'cost':<{wide}} {'trained':>12} {'frozen':>12} {'GFLOPs':>9} {'share':>7}"]
        for part in (*self.parts, self.total):
            trained, frozen, giga = part.trainable / 1e6, part.frozen / 1e6, part.multiply_adds / 1e9
            share = part.multiply_adds / self.total.multiply_adds
            lines.append(
                f"{part.name:<{wide}} {trained:>10.3f} M {frozen:>10.3f} M {giga:>9.4f} {share:>7.2%}"
            )
        lines.append(self.step_memory.text())
        runs = [(count, len(list(blocks))) for count, blocks in groupby(self.tokens)]
        if len(runs) > 1:
            lines.append(f"tokens: {', '.join(f'{count} in {blocks} blocks' for count, blocks in runs)}")
        speed = f"speed: {self.images_per_second:.1f} images/s in evaluation on {self.device}"
        lines.append(f"{speed}, batch of {self.batch_size} triples")
        listed = ", ".join(modality.value for modality in self.modalities)
        lines.append(f"GFLOPs are multiply-adds for one triple, images: {len(self.modalities)} ({listed})")
        return "\n".join(lines)


def count_attention(inputs: list[Any], outputs: list[Any]) -> Counter[str]:
    """Multiply-adds of scaled dot-product attention, which fvcore does not know: Q·Kᵀ and weights·V."""
    query, key, value = (node.type().sizes() for node in inputs[:3])  # (B, heads, L, d) each
    return Counter({"attention": math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])})


class _TensorsIn(nn.Module):
    """The model with plain tensors as arguments, as tracing needs it; only `modalities` have images."""

    def __init__(self, model: MultiModalReID, modalities: Sequence[Modality]) -> None:
        super().__init__()
        self.model = model
        self.absent = [modality for modality in Modality if modality not in modalities]

    def forward(self, rgb: Tensor, ni: Tensor, ti: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        output = self.model(ModalBatch(PerModality(rgb, ni, ti), ids, ids, ids).without(self.absent))
        return tuple(head.logits for head in output.heads)


@contextmanager
def _evaluating(
    model: MultiModalReID, batch_size: int, modalities: Sequence[Modality]
) -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
    """For a while the model in evaluation mode, without gradient, and random triples on its device."""
    device = next(model.parameters()).device
    images = [torch.randn(batch_size, 3, *model.backbone.img_size, device=device) for _ in Modality]
    was_training = model.training
    try:
        with torch.no_grad():
            ids = torch.zeros(batch_size, dtype=torch.long, device=device)
            yield _TensorsIn(model, modalities).eval(), (*images, ids)
    finally:
        model.train(was_training)


def model_parts(model: MultiModalReID) -> dict[str, str]:
    """The parts of a model in the order of the report: what it calls them -> their names as modules."""
    own = {"PIFE": "pife", "gate": "gate", "absent": "absent_tokens"}
    parts = {title: name for title, name in own.items() if getattr(model, name) is not None}
    branches = {
        title or type(branch).__name__: f"branches.{name}.{path}".rstrip(".")
        for name, branch in cast("Mapping[str, Branch]", model.branches).items()
        for path, title in branch.cost_titles.items()
    }
    return {"backbone": "backbone", **parts, **branches, "heads": "heads"}


def count_multiply_adds(
    model: MultiModalReID, modalities: Sequence[Modality] = tuple(Modality)
) -> dict[str, int]:
    """Multiply-adds for one triple with images of `modalities`, by what the report calls the part."""
    with warnings.catch_warnings(), _evaluating(model, 1, modalities) as (runner, example):
        warnings.simplefilter("ignore", FutureWarning)  # fvcore uses torch.jit, which newer torch deprecates
        from fvcore.nn import FlopCountAnalysis  # late, since importing it warns

        analysis = FlopCountAnalysis(runner, example)
        analysis.set_op_handle("aten::scaled_dot_product_attention", count_attention)
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        by_module = analysis.by_module()
    return {title: int(by_module[f"model.{part}"]) for title, part in model_parts(model).items()}


def count_tokens(model: MultiModalReID) -> tuple[int, ...]:
    """How many tokens of one image enter each block of the backbone in evaluation."""
    counts: list[int] = []
    hooks = [
        block.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))
        for block in model.backbone.vit.blocks
    ]
    try:
        with _evaluating(model, 1, model.modalities) as (runner, example):
            runner(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(counts)


def measure_speed(
    model: MultiModalReID,
    batch_size: int,
    modalities: Sequence[Modality] = tuple(Modality),
    *,
    min_seconds: float = 1.0,
) -> float:
    """Images per second in evaluation, on the device that holds the model, after one warm-up pass."""
    with _evaluating(model, batch_size, modalities) as (runner, example):
        device, passes, start = example[0].device, -1, 0.0
        while passes < 2 or time.perf_counter() - start < min_seconds:
            runner(*example)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            passes += 1
            start = start if passes else time.perf_counter()  # the first pass is the warm-up
        return len(modalities) * batch_size * passes / (time.perf_counter() - start)


@contextmanager
def _training(model: MultiModalReID) -> Iterator[ModalBatch]:
    """For a while the model in training mode, and random triples; then all is as it was.

    Running statistics and the random generators are put back, and gradients are dropped.
    """
    device = next(model.parameters()).device
    images = PerModality.build(lambda _: torch.zeros(BATCH, 3, *model.backbone.img_size, device=device))
    ids = torch.zeros(BATCH, dtype=torch.long, device=device)
    was_training, buffers = model.training, {name: b.clone() for name, b in model.named_buffers()}
    half = torch.autocast(
        device.type, torch.float16, enabled=device.type == "cuda"
    )  # as training does; bfloat16 is as large
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad(), half:
            yield ModalBatch(images.map(torch.randn_like), ids, ids, ids)
    finally:
        model.train(was_training).zero_grad(set_to_none=True)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def measure_step_memory(model: MultiModalReID) -> StepMemory:
    """Count the bytes of a training step, in mixed precision on CUDA; the model stays as it was."""
    parameters, buffers = list(model.parameters()), list(model.buffers())
    trained = sum(p.nbytes for p in parameters if p.requires_grad)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*parameters, *buffers)}
    # Hold what is saved until the end, so that no memory is counted under two addresses or one under both.
    saved: list[Tensor] = []
    with _training(model) as batch:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.detach()), lambda _: _never()):
            output = model.train()(batch)
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
        activations = sum(size for address, size in storages.items() if address not in own) // BATCH
        del output
        saved.clear()
        peak = _cuda_peak(model, batch) if batch.person_ids.is_cuda else None
    weights = sum(tensor.nbytes for tensor in (*parameters, *buffers))
    return StepMemory(weights, trained, 2 * trained, activations, peak)


def _never() -> Tensor:
    raise AssertionError("nothing runs backward while the saved tensors are counted")


def _cuda_peak(model: MultiModalReID, batch: ModalBatch) -> int:
    """The most memory that CUDA held during forward and backward."""
    torch.cuda.reset_peak_memory_stats(batch.person_ids.device)
    output = model.train()(batch)
    torch.stack(
        [head.logits.float().sum() for head in output.heads] + list(output.losses.values())
    ).sum().backward()
    return torch.cuda.max_memory_allocated(batch.person_ids.device)


def describe_cost(model: MultiModalReID, modalities: Sequence[Modality]) -> tuple[dict[str, Any] | None, str]:
    """The cost as plain numbers and as text.

    A model that cannot be traced, or does not fit in memory, has no numbers, and the text says why. The
    scores of a run must not be lost because of it.
    """
    try:
        cost = measure_cost(model, modalities)
    except Exception as error:  # a branch from outside may raise anything
        return None, f"not measured ({type(error).__name__}: {on_one_line(str(error))[:200]})"
    return cost.as_dict(), cost.table()


def measure_cost(model: MultiModalReID, modalities: Sequence[Modality] | None = None) -> CostReport:
    """Count parameters, multiply-adds and memory, and measure the speed on the model's device.

    The triples have images of `modalities`; without them, of all those that the model has.
    """
    modalities = tuple(m for m in model.modalities if modalities is None or m in modalities)
    multiply_adds = count_multiply_adds(model, modalities)
    parts = []
    for title, part in model_parts(model).items():
        parameters = list(model.get_submodule(part).parameters())
        trainable = sum(p.numel() for p in parameters if p.requires_grad)
        parts.append(PartCost(title, sum(p.numel() for p in parameters), trainable, multiply_adds[title]))
    device = next(model.parameters()).device
    on_cuda = device.type == "cuda"
    where = torch.cuda.get_device_name(device) if on_cuda else f"CPU, threads: {torch.get_num_threads()}"
    batch_size = 64 if on_cuda else 4
    speed = measure_speed(model, batch_size, modalities)
    tokens, memory = count_tokens(model), measure_step_memory(model)
    return CostReport(tuple(parts), speed, batch_size, where, tokens, memory, modalities)
