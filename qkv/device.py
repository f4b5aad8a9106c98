"""Which device: what a user's word for it means on this machine; and its random numbers."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import torch

from qkv.errors import QkvError


def pick_device(name: str) -> torch.device:
    """auto = a GPU where there is one. Of several workers on one machine each takes the GPU of its own number."""
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
        raise QkvError(f"device {name!r} is not on this machine: use 'auto', 'cpu' or another") from None


def aside(device: torch.device) -> AbstractContextManager[None]:
    """Random numbers drawn within it change none of those that are drawn after it."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
