"""Devices: resolve a name such as "auto" on this machine, count cores, and isolate random state."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from qkv.errors import QkvError

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Where Linux tells a container its limit."""


def pick_device(name: str) -> torch.device:
    """Resolve the name of a device; "auto" is a GPU where there is one. Each worker of a machine takes the GPU of its own number."""
    found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if (found if name == "auto" else name) == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if name == "auto":
        return torch.device(found)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        return device
    except (RuntimeError, AssertionError):
        raise QkvError(f"device {name!r} is not available on this machine: use 'auto' or 'cpu'") from None


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_size() -> int:
    """Return the bytes of memory that this process may use: those of the machine, or a lower limit of its container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):  # no file, or "max"
        return machine


def isolate_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Restore the random state after the block: numbers drawn within it change none of those after it."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
