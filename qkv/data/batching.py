"""Batches of equal token count, from pools of examples sorted by length; exact to resume, flat in memory.

A pool is the next `pool` examples of the corpus. It is shuffled, sorted by length, cut into batches of about
`tokens` padded tokens, and the batches are shuffled. All of that is a function of (seed, epoch, pool), so a position is
four numbers, and a run that stopped at it goes on with the very next batch.
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
    """In the place of an example: the record cannot be learned from."""

    reason: str


CHUNK = 4096
"""Records that are encoded together, at the most."""


@dataclass(frozen=True)
class Position:
    """Where a run stands in its data."""

    epoch: int = 0
    record: int = 0
    """First record of the current pool."""
    pool: int = 0
    batch: int = 0
    """Batches of the pool that are done."""
    share: float = 0.0
    """How much of this pass over the corpus is done, from 0 to 1."""

    @property
    def passes(self) -> float:
        """Passes over the corpus, the one that is under way as a fraction."""
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
        self.reader: tuple[int, Iterator[tuple[int, Record]]] | None = None  # where a pool ended, and what follows

    def __iter__(self) -> Iterator[list[Example]]:
        while True:
            examples, following, last = self.read_pool()
            epoch, record, pool = self.position.epoch, self.position.record, self.position.pool
            batches = self.cut(examples, f"{self.seed}:{epoch}:{pool}")
            if last and not batches and pool == 0:
                raise QkvError("the training text is too short for a batch: give more text, or lower data.batch_tokens")
            begin, end = self.shares(following, last)
            for number in range(self.position.batch, len(batches)):
                done = (number + 1) / len(batches)
                share = end if done == 1 else begin + done * (end - begin)
                self.position = Position(epoch, record, pool, number + 1, share)
                yield batches[number]
            self.position = Position(epoch + 1) if last else Position(epoch, following, pool + 1)

    def shares(self, following: int, last: bool) -> tuple[float, float]:
        """Return how much of the pass is over at the beginning and at the end of the current pool, whose last record is number
        `following`. Before the last pool the length of the corpus is an estimate; a mixture never ends, and has none."""
        first = self.position.record
        if last:
            return (first / following if first else 0.0), 1.0
        about = getattr(self.source, "about", None)
        length = max(about(), following + 1) if about is not None else math.inf
        return first / length, following / length

    def read_pool(self) -> tuple[list[Example], int, bool]:
        """The examples of the current pool, the record behind it, and whether the corpus ends there."""
        if self.kept is not None:
            return list(self.kept), 0, True
        examples: list[Example] = []
        following = self.position.record
        at, reader = self.reader or (-1, iter(()))
        reader = reader if at == following else self.source.read(following)
        while chunk := list(islice(reader, min(CHUNK, self.pool))):
            following = chunk[-1][0]
            examples += self.encode([record for _, record in chunk])
            if len(examples) >= self.pool:
                self.reader = following, reader
                return examples, following, False
            if not examples and following - self.position.record > 10 * max(self.pool, CHUNK):
                break  # an endless corpus of which nothing is usable
        self.reader = None
        if self.position.record == 0:
            self.kept = list(examples)
            if not examples:
                raise QkvError("no example is left after cleaning: `qkv data inspect` shows why each one was dropped")
        return examples, following, True

    def cut(self, examples: list[Example], key: str) -> list[list[Example]]:
        """Batches of at most `tokens` padded tokens; a longer example is a batch of its own."""
        r = random.Random(key)
        r.shuffle(examples)
        examples.sort(key=self.length)
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
