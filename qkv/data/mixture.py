"""Several corpora as one, each sampled with its weight; a corpus that ends starts over."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from qkv.data.sources import PartialRecord, Record, Source
from qkv.errors import QkvError


class Mixture:
    """An endless corpus: which source record n comes from is a function of n, so reading can go on anywhere."""

    def __init__(self, sources: Sequence[Source], weights: Sequence[float], seed: int = 0):
        self.sources, self.weights, self.seed = sources, weights, seed

    @property
    def skipped(self) -> Counter[str]:
        return sum((s.skipped for s in self.sources), Counter())

    def read(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        """Records from number `start` on; those before it are read past, source by source."""
        r = random.Random(self.seed)
        choices, summed = range(len(self.sources)), list(accumulate(self.weights))
        readers = [self.endless(source) for source in self.sources]
        number, reader, record = 0, readers[0], Record()
        while True:
            number += 1
            if not isinstance(record, PartialRecord):  # the rest of a document follows at once
                reader = readers[r.choices(choices, cum_weights=summed)[0]]
            record = next(reader)
            if number > start:
                yield number, record

    @staticmethod
    def endless(source: Source) -> Iterator[Record]:
        while True:
            record = None
            for _, record in source.read():
                yield record
            if record is None:
                reasons = ", ".join(f"{count:,} {reason}" for reason, count in source.skipped.items())
                raise QkvError(f"a corpus has no record that can be read ({reasons}): correct it or leave it out")
