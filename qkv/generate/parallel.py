"""Decode many texts: one running batch per thread, fed from one queue; a single batch is computed by all threads.

Threads that share small matrix products wait for each other at every one of them; threads with a batch each do not. Texts that are
finished leave their batch, and the next ones of the queue join it (continuous_batching.py) when few are left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from qkv.batch import Batch
from qkv.generate.continuous_batching import ContinuousBatch, GenerativeNetwork
from qkv.generate.free_cores import on_free_cores
from qkv.generate.sequence import Generation

Item = TypeVar("Item")
Result = TypeVar("Result")
MIN_SHARE = 4
"""Fewest texts per thread: with fewer, all threads working on one text after the other are as fast."""
REFILL_ROWS = 32
"""Rows of a batch up to which a step of a large network takes little longer with more of them: it is bound by reading the weights."""


@dataclass
class TextQueue:
    """Texts that wait for a place in one of several running batches, the longest first: a batch that is too large for the memory
    fails at once."""

    sizes: Sequence[int]
    """Source tokens of each text, in ascending order."""
    tokens: int
    """Most source tokens of a batch, padding included."""
    rows: int = 1
    """Rows of a text: the size of its beam."""
    batches: int = 1
    refill_rows: int = REFILL_ROWS
    """Texts join a batch that has at most so many rows left; 0 = only an empty one. Joining costs about as much as a step."""
    taken: int = 0
    """How many texts, from the end, have joined a batch."""
    running: dict[int, int] = field(default_factory=dict)
    """Texts in each batch."""
    stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, batch: int, running: int) -> range:
        """Return the numbers of the texts that join a batch in which so many are `running`: none while it has many rows or three
        quarters of its places are taken, and no more than its share of all texts."""
        with self.lock:
            self.running[batch], waiting = running, len(self.sizes) - self.taken
            room = max(1, self.tokens // self.sizes[waiting - 1]) if waiting else 0
            share = -(-(waiting + sum(self.running.values())) // self.batches)
            few = running * self.rows <= self.refill_rows and running <= 0.75 * room
            count = max(min(room - running, share - running, waiting), 0) if few else 0
            self.taken, self.running[batch] = self.taken + count, running + count
            return range(waiting - count, waiting)

    def stop(self) -> None:
        """Generate nothing more."""
        self.stopped = True


def decode_queue(network: GenerativeNetwork, queue: TextQueue, make_batch: Callable[[range], Batch],
                 generations: Sequence[Generation], small: bool = False) -> None:  # fmt: skip
    """Generate all texts of a queue; text n is `generations[n]`, and `make_batch` makes a batch of some texts."""

    def run(number: int) -> None:
        running = ContinuousBatch(network)
        while not queue.stopped:
            if texts := queue.take(number, len(running.running)):
                running.join(make_batch(texts), generations[texts.start : texts.stop])
            if not running.running:
                return
            running.step()

    run_batches(run, range(queue.batches), small, stop=queue.stop)


def run_batches(work: Callable[[Item], Result], items: Sequence[Item], small: bool = False, parallel: bool = True,
                stop: Callable[[], None] = lambda: None) -> list[Result]:  # fmt: skip
    """Apply `work` to each item, as many at once as torch has threads, one thread each; return the results in order.

    A single item, or each in turn if not `parallel`, uses all threads that have a free core, or one thread if it is `small`.
    stop: called after an error or Ctrl-C, to end the work of the other threads.
    """
    threads = torch.get_num_threads()
    if not parallel or threads == 1 or len(items) == 1:
        with on_free_cores(small):
            return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                return list(pool.map(work, items))
            except BaseException:
                stop()
                raise
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
