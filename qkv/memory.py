"""Memory allocator: keep freed memory, because the next step allocates the same sizes again; separate memory for long-lived tensors."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import weakref
from contextlib import suppress

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # names and numbers of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc never to give freed memory back to the system; True when it agreed, False (and no harm) elsewhere.

    A training step or a forward pass frees tensors of megabytes and allocates them again immediately. By default glibc maps
    each anew, and the system zeroes every page at its first touch. Of a small torch.nn.Transformer's training step about
    40 % was spent there; without it the step was 1.2 to 1.5 times as fast, for 13 to 29 % more memory. All threads share one
    arena: in one of its own, each would keep what it freed from the others, and a server grew with every thread. It changes
    the whole process, so training and the engine call it at their entrance and importing this file does nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    wanted = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 64 * 2**20, M_ARENA_MAX: 1}
    return all(mallopt(name, value) == 1 for name, value in wanted.items())


def map_memory(size: int, huge: bool = False) -> mmap.mmap:
    """Return `size` bytes of zeros in pages of their own, which the system takes back when nothing refers to them any more.

    It is for large blocks that live long, such as a KV cache. In the allocator's heap each would leave a gap, smaller blocks
    would settle there, and the next one, a little larger, would need new memory: a server would grow for minutes. `huge`: in pages
    of 2 MB where the system has them, for weights that are read as a whole at every step.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            found.madvise(mmap.MADV_HUGEPAGE)
    return found


class BlockPool:
    """A pool of large blocks of memory: freed ones are kept and reused, as keep_freed_memory has it for smaller ones.

    Pages that are new are zeroed by the system at their first touch, and a virtual machine may have to ask its host for them: of a
    prompt of 128 tokens in GPT-2 small, half of the time was spent there after a pause of some seconds.
    """

    LIMIT = 2**29
    """Bytes of free blocks that the pool keeps."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may release a block in the middle of an allocation
        self.free: list[mmap.mmap] = []
        """Oldest first."""

    def allocate(self, size: int) -> ctypes.Array[ctypes.c_char]:
        """Return `size` uninitialised bytes; they are released to the pool when the array is freed."""
        with self.lock:
            fitting = [block for block in self.free if size <= len(block) <= 2 * size]
            block = min(fitting, key=len, default=None)
            self.free = [other for other in self.free if other is not block]  # a collection may have removed it already
        block = map_memory(size, huge=True) if block is None else block
        array = (ctypes.c_char * size).from_buffer(block)
        weakref.finalize(array, self.release, block).atexit = False
        return array

    def release(self, block: mmap.mmap) -> None:
        if len(block) > self.LIMIT:
            return
        with self.lock:
            self.free.append(block)
            while sum(map(len, self.free)) > self.LIMIT:
                self.free.pop(0)


BLOCK_POOL = BlockPool()
