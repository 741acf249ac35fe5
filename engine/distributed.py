"""Several processes that train one model as if they were one.

Every process encodes its part of the batch. What looks at the whole batch, batch normalisation and the mining
of triplets, gets the features of all processes, so that the result does not depend on their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of a run, as torchrun tells them in the environment.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        local_rank: number of this process on its machine; chooses the CUDA device.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @staticmethod
    def from_environment() -> World:
        """One process, unless torchrun started several."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        return World(
            *(int(os.environ.get(name, default)) for name, default in zip(names, "010", strict=True))
        )

    @property
    def is_main(self) -> bool:
        """Whether this process writes and logs."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Connect the processes: nccl between CUDA devices, gloo between CPUs."""
        if self.size == 1:
            yield
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        yield
        dist.destroy_process_group()  # not after an error: it would wait for the others

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The first process of each machine does something alone, then the others do it."""
        if self.size > 1 and self.local_rank:
            dist.barrier()
        yield
        if self.size > 1 and not self.local_rank:
            dist.barrier()

    def gather_batch(self, part: Tensor) -> Tensor:
        """The parts of all processes, (B / size, …) each, as one batch (B, …); the gradient comes back."""
        return part if self.size == 1 else _GatherBatch.apply(part)

    def gather_objects(self, part: T) -> list[T]:
        """What every process has, in the order of ranks; each process gets the whole list."""
        if self.size == 1:
            return [part]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, part)
        return parts

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the values that the tensors have in the first one, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def any(self, flag: bool, device: torch.device) -> Tensor:
        """1 if the flag is set in any process, else 0: a scalar on the device, the same for all processes."""
        number = torch.full((), float(flag), device=device)
        if self.size > 1:
            dist.all_reduce(number, dist.ReduceOp.MAX)
        return number


class _GatherBatch(torch.autograd.Function):
    """Join the parts of all processes; pass back the gradient of this process's part.

    Every process computes the whole loss, and DistributedDataParallel takes the *mean* of the gradients over
    the processes. The part's gradient is multiplied by their number: the mean of the products is the sum.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        size = dist.get_world_size()
        return size * gradients[0].chunk(size)[dist.get_rank()]
