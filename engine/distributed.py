"""Several processes that train one model as if they were one.

Every process encodes its part of the batch. Batch normalisation and the mining of triplets get the features
of all processes, so that the result does not depend on their number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from engine.interrupt import stop_with_launcher
from errors import UserError, on_one_line

T = TypeVar("T")

TIME_LIMIT = timedelta(minutes=15)
"""How long a process waits for the others, for instance while the first one reads or draws a data set."""
ANSWER_TIME = timedelta(seconds=5)
"""After that: how long a process has to answer that it is still there."""

_LOST_CONTACT = re.compile(r"timed? ?out|closed by peer|connection reset", re.IGNORECASE)


@dataclass(frozen=True)
class World:
    """The processes of a run, as torchrun describes them in the environment."""

    rank: int = 0  # number of this process, from 0
    size: int = 1  # number of processes
    local_rank: int = 0  # number of this process on its machine; chooses the CUDA device

    @staticmethod
    def from_environment() -> World:
        """One process, unless torchrun or another launcher started several."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        given = {name: os.environ[name] for name in names[:3] if name in os.environ}
        if not given:
            return World()
        for name, text in given.items():
            if not text.isdecimal():
                raise _environment_error(f"{name} is {text!r}, not a number")
        needed = names[:2] if given.get("WORLD_SIZE") == "1" else names
        for name in needed:
            if name not in os.environ:
                raise _environment_error(f"{next(iter(given))} is set, but {name} is not")
        rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
        if rank >= size:
            raise _environment_error(f"RANK ({rank}) must be below WORLD_SIZE ({size})")
        return World(rank, size, int(given.get("LOCAL_RANK", 0)))

    @property
    def is_main(self) -> bool:
        """Whether this process writes and logs."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device, time_limit: timedelta | None = None) -> Iterator[None]:
        """Connect the processes, with nccl between CUDA devices and gloo between CPUs.

        A process that waits longer than the limit (`TIME_LIMIT`) for the others gives up.
        """
        time_limit = time_limit or TIME_LIMIT
        if self.size == 1:
            yield
            return
        # Connect.
        stop_with_launcher()
        try:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=time_limit)
            roll_call = dist.new_group(backend="gloo")  # to find out who does not answer
        except dist.DistError as error:
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise _environment_error(
                f"{self.size} processes should meet at {place}, but did not ({on_one_line(str(error))[:200]})"
            ) from None
        # Work; if contact is lost, say with whom.
        try:
            yield
        except RuntimeError as error:
            if not _LOST_CONTACT.search(str(error)):
                raise
            raise UserError(
                f"{_find_lost(roll_call)} has ended, or has not answered for "
                f"{time_limit.total_seconds() / 60:g} minutes; see its messages, then continue "
                "(train_net.py with --resume, tools.embed with the same command)"
            ) from error
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


def _environment_error(what: str) -> UserError:
    return UserError(
        f"wrong environment for several processes: {what}; start them with torchrun, or unset RANK, "
        "WORLD_SIZE and LOCAL_RANK to run one"
    )


def _find_lost(roll_call: Any) -> str:
    """Which rank does not answer; called by all that have noticed. Only rank 0 can tell among the others."""
    try:
        dist.monitored_barrier(roll_call, timeout=ANSWER_TIME)
    except RuntimeError as error:
        found = re.search(r"Rank (\d+) failed to pass", str(error))
        return f"rank {found[1]}" if found else "rank 0"
    return "one of the processes"


class _GatherBatch(torch.autograd.Function):
    """Join the parts of all processes; pass back the gradient of this process's part.

    Every process computes the whole loss, and DistributedDataParallel takes the *mean* of the gradients over
    the processes. The part's gradient is multiplied by their number: the mean of the products is the sum.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        part = part.contiguous()  # the outputs take their strides from it
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        size = dist.get_world_size()
        return size * gradients[0].chunk(size)[dist.get_rank()]
