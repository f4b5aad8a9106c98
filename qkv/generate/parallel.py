"""Run several batches at once, one thread each; a single batch is computed by all threads.

Threads that share small matrix products wait for each other at every one of them; threads with a batch each do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from qkv.generate.free_cores import on_free_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
MIN_SHARE = 4
"""Fewest texts per thread: with fewer, all threads working on one text after the other are as fast."""


def run_batches(work: Callable[[Item], Result], items: Sequence[Item], small: bool = False, parallel: bool = True
                ) -> list[Result]:  # fmt: skip
    """Apply `work` to each item, as many at once as torch has threads, one thread each; return the results in order.

    A single item, or each in turn if not `parallel`, uses all threads that have a free core, or one thread if it is `small`.
    """
    threads = torch.get_num_threads()
    if not parallel or threads == 1 or len(items) == 1:
        with on_free_cores(small):
            return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)  # the pool's setting of 1 also changed the part of it that is process-wide


def iterate_on_free_cores(items: Iterator[Item], small: bool = False) -> Iterator[Item]:
    """Yield the items, each computed on the threads that have a free core at that moment, or on one if the work is `small`."""
    while True:
        with on_free_cores(small):
            item = next(items, None)
        if item is None:
            return
        yield item


def share(count: int) -> int:
    """Return how many of `count` texts each thread gets."""
    return max(-(-count // torch.get_num_threads()), MIN_SHARE)
