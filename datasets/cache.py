"""Resized images kept in memory: one process reads a triple, and all of them see it.

What is kept is the result of `resize` (`datasets/transforms.py`), the same bytes in every epoch: 295 kB for a
triple of 256 × 128 pixels.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from errors import UserError
from structures import Modality

logger = logging.getLogger(__name__)

_SHARE = 0.8  # of the free memory that may be taken: the model and the batches need some, too
_CGROUP = Path("/sys/fs/cgroup")


class RamCache:
    """Triples of bytes in memory that processes share, whether forked or spawned.

    A triple takes up memory once it is put. Two processes that put the same triple at the same time write the
    same bytes, so that no lock is needed. The memory has no name; the system frees it when the last process
    ends.
    """

    def __init__(self, num_triples: int, size: tuple[int, int]) -> None:
        """Hold up to `num_triples` triples of images of `size` (height, width); all are absent at first."""
        self._shape = (num_triples, len(Modality), 3, *size)
        self._map(_make_anonymous_file(num_triples + cache_bytes(num_triples, size)))

    def get(self, row: int) -> Tensor | None:
        """The triple, (3, 3, H, W) bytes, not to be changed; None if it is absent."""
        return self._images[row] if self._filled[row] else None

    def put(self, row: int, images: Tensor) -> None:
        """Keep a triple, (3, 3, H, W) bytes."""
        self._images[row] = images
        self._filled[row] = 1  # last: a triple that another process sees as filled is complete

    def _map(self, descriptor: int) -> None:
        self._descriptor = descriptor
        memory = torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)
        self._filled = memory[: self._shape[0]]
        self._images = memory[self._shape[0] :].view(self._shape)

    def __getstate__(self) -> dict[str, Any]:
        """For a spawned process: the same memory, by its descriptor."""
        return {"shape": self._shape, "descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shape = state["shape"]
        self._map(state["descriptor"].detach())

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def check_memory(num_triples: int, size: tuple[int, int], *, num_processes: int = 1) -> None:
    """Refuse a cache of the triples of all splits that does not fit into memory.

    `size` is height and width of an image. Each of the processes on this machine makes its own cache.
    """
    needed, free = num_processes * cache_bytes(num_triples, size), free_memory()
    what = f"{_gigabytes(needed)} for {num_triples} triples of {size[0]} x {size[1]} pixels"
    if num_processes > 1:
        what += f", once for each of {num_processes} processes"
    if needed > _SHARE * free:
        raise UserError(
            f"DATALOADER.CACHE ram needs {what}, but may take only {_gigabytes(_SHARE * free)}, "
            f"{_SHARE:.0%} of the memory that is free; set DATALOADER.CACHE none"
        )
    logger.info("DATALOADER.CACHE ram takes up to %s, filled as images are read", what)


def cache_bytes(num_triples: int, size: tuple[int, int]) -> int:
    """Memory that a full cache takes."""
    return num_triples * len(Modality) * 3 * size[0] * size[1]


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Bytes that are available: of the machine, or of its container."""
    try:
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        free = 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError):  # not Linux: all that there is
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        reclaimable = int(statistics["active_file"]) + int(statistics["inactive_file"])
    except (OSError, KeyError, ValueError):  # no container, or one without a limit
        return free
    return min(free, limit - used + reclaimable)


def _make_anonymous_file(num_bytes: int) -> int:
    """The descriptor of a sparse file of zeros; on Linux in memory, without the limit of /dev/shm."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("demo-sdtps-cache")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
