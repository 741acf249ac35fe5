"""What a run is computed with. On the CPU its result is the same, bit for bit, where this is the same."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from engine.distributed import World


def describe_environment(device: torch.device, world: World) -> dict[str, Any]:
    """Threads, torch, processor, device and processes of a run, for its checkpoint and its metrics.json."""
    return {
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),  # a class of its own, which no checkpoint may hold
        "processor": processor_name(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": world.size,
    }


def processor_name() -> str:
    """The processor as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def compare_environments(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What has changed, as `threads 2 → 1, …`; empty if nothing has."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    return ", ".join(f"{name} {before[name]} → {now[name]}" for name in changed)
