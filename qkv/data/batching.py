"""Batches of about equal token count, from pools of examples sorted by length; a run resumes at exactly the next batch.

A pool is the next `pool` examples of the corpus. It is shuffled, sorted by length, cut into batches of about
`tokens` padded tokens, and the batches are shuffled. All of that is a function of (seed, epoch, pool), so a few numbers
store a position. Only one pool is in memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Generic, TypeVar

from qkv.data.sources import Record, Source
from qkv.errors import QkvError

Example = TypeVar("Example")


@dataclass(frozen=True)
class Unusable:
    """Stands for an example that is left out of training, with the reason."""

    reason: str


CHUNK = 4096
"""Most records that are encoded in one call."""


@dataclass(frozen=True)
class Position:
    """The position of a run in its data."""

    epoch: int = 0
    record: int = 0
    """First record of the current pool."""
    pool: int = 0
    batch: int = 0
    """Batches of the pool that are done."""
    share: float = 0.0
    """Share of this epoch that is done, from 0 to 1."""

    @property
    def passes(self) -> float:
        """Epochs so far, with the current one as a fraction."""
        return self.epoch + self.share

    def to_json(self) -> dict[str, int]:
        return asdict(self)


class Batches(Generic[Example]):
    """An endless stream of lists of examples; `position` after each is what a checkpoint stores.

    `encode` makes examples from records, and counts those that it leaves out; `length` is what the batch is padded to. Several
    workers read the same stream, and each computes its own rows of a batch.
    """

    def __init__(self, source: Source, encode: Callable[[Sequence[Record]], Sequence[Example]],
                 length: Callable[[Example], int], tokens: int, pool: int = 100_000, seed: int = 0):  # fmt: skip
        self.source, self.encode, self.length = source, encode, length
        self.tokens, self.pool, self.seed = tokens, pool, seed
        self.position = Position()
        self.kept: list[Example] | None = None  # the whole corpus, where one pool holds it
        self.reader: tuple[int, Iterator[tuple[int, Record]]] | None = None  # number of the next record, open source

    def __iter__(self) -> Iterator[list[Example]]:
        while True:
            examples, next_record, last = self.read_pool()
            epoch, record, pool = self.position.epoch, self.position.record, self.position.pool
            batches = self.cut(examples, f"{self.seed}:{epoch}:{pool}")
            if last and not batches and pool == 0:
                raise QkvError("the training text is too short for a batch: give more text, or lower data.batch_tokens")
            begin, end = self.shares(next_record, last)
            for number in range(self.position.batch, len(batches)):
                done = (number + 1) / len(batches)
                share = end if done == 1 else begin + done * (end - begin)
                self.position = Position(epoch, record, pool, number + 1, share)
                yield batches[number]
            self.position = Position(epoch + 1) if last else Position(epoch, next_record, pool + 1)

    def shares(self, next_record: int, last: bool) -> tuple[float, float]:
        """Return the share of the epoch that is done at the beginning and at the end of the current pool.

        `next_record` is the number of the record after the pool. Before the last pool the length of the corpus is an
        estimate; a mixture of corpora is endless, and has none.
        """
        first = self.position.record
        if last:
            return (first / next_record if first else 0.0), 1.0
        about = getattr(self.source, "about", None)
        length = max(about(), next_record + 1) if about is not None else math.inf
        return first / length, next_record / length

    def read_pool(self) -> tuple[list[Example], int, bool]:
        """Return the examples of the current pool, the number of the record after it, and whether the corpus ends there."""
        if self.kept is not None:
            return list(self.kept), 0, True
        examples: list[Example] = []
        next_record = self.position.record
        at, reader = self.reader or (-1, iter(()))
        reader = reader if at == next_record else self.source.read(next_record)
        while chunk := list(islice(reader, min(CHUNK, self.pool))):
            next_record = chunk[-1][0]
            examples += self.encode([record for _, record in chunk])
            if len(examples) >= self.pool:
                self.reader = next_record, reader
                return examples, next_record, False
            if not examples and next_record - self.position.record > 10 * max(self.pool, CHUNK):
                break  # an endless corpus of which nothing is usable
        self.reader = None
        if self.position.record == 0:
            self.kept = list(examples)
            if not examples:
                raise QkvError("no example is left after cleaning: `qkv data inspect` shows why each one was dropped")
        return examples, next_record, True

    def cut(self, examples: list[Example], key: str) -> list[list[Example]]:
        """Cut examples into batches of at most `tokens` padded tokens, in random order; a longer example is a batch of its own."""
        r = random.Random(key)
        r.shuffle(examples)
        examples.sort(key=self.length)  # stable: examples of equal length stay shuffled
        batches: list[list[Example]] = []
        rows: list[Example] = []
        widest = 0
        for example in examples:
            widest = max(widest, self.length(example))
            if rows and widest * (len(rows) + 1) > self.tokens:
                batches.append(rows)
                rows, widest = [], self.length(example)
            rows.append(example)
        batches += [rows] if rows else []
        r.shuffle(batches)
        return batches
