"""Streams: several batches at once, one core each. Two cores that share a small product wait for each other at every one of
them; two that have a batch each do not. A single sentence has nothing to share out: all threads work on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from qkv.generate.free_cores import on_free_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
FEWEST = 4
"""Sentences that a stream has at least: one alone is no faster than all threads on one sentence after the other."""


def streams(work: Callable[[Item], Result], items: Sequence[Item], small: bool = False) -> list[Result]:
    """`work` on each item, in their order; as many at once as torch has threads, each with one. A single item: see `one_by_one`."""
    threads = torch.get_num_threads()
    if threads == 1 or len(items) == 1:
        return one_by_one(work, items, small)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)  # part of the setting is the process's, not the thread's


def one_by_one(work: Callable[[Item], Result], items: Sequence[Item], small: bool = False) -> list[Result]:
    """`work` on each item, with all threads that have a core for themselves; with one where the work is `small`."""
    with on_free_cores(small):
        return [work(item) for item in items]


def share(count: int) -> int:
    """How many of so many sentences one stream takes, if all are to be busy."""
    return max(-(-count // torch.get_num_threads()), FEWEST)
