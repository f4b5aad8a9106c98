"""Memory for packed weights: huge pages (2 MB), which the processor streams nearly twice as fast as pages of 4 KB."""

from __future__ import annotations

import mmap
import threading

import torch
from torch import Tensor

from qkv.memory import map_memory

CHUNK = 2**25
"""Bytes that are mapped at once; pages that are not touched take no memory."""
PAGE, LINE = 2**21, 64
"""Bytes of a huge page, and of a line of the cache."""


class Arena:
    """Large pieces of memory that are given out in order; a piece is freed when no tensor in it is left."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chunk: mmap.mmap | None = None
        self.used = 0

    def allocate(self, size: int) -> Tensor:
        """Return uninitialised bytes (size,)."""
        with self.lock:
            if self.chunk is None or self.used + size > len(self.chunk):
                self.chunk = map_memory(max(CHUNK, -(-size // PAGE) * PAGE) + PAGE, huge=True)
                self.used = -torch.frombuffer(self.chunk, dtype=torch.uint8).data_ptr() % PAGE
            start, self.used = self.used, self.used + -(-size // LINE) * LINE
            return torch.frombuffer(self.chunk, dtype=torch.uint8, count=size, offset=start)


ARENA = Arena()


def place(x: Tensor) -> Tensor:
    """Copy weights, which will stay as long as the network, into huge pages."""
    size = x.numel() * x.element_size()
    return x.contiguous() if size == 0 else ARENA.allocate(size).view(x.dtype).view(x.shape).copy_(x)
