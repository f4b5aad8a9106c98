"""A corpus without duplicates, in bounded memory, with the same result wherever reading resumes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from qkv.data.sources import DerivedCorpus, Record

BITS = 2**30
"""128 MB. Of 5 million different records, fewer than one is taken for a repetition by mistake; of 100 million, 1 %."""


class Seen:
    """Bloom's filter (1970): a record sets four bits that its hash chooses; where all are set, it was seen before."""

    def __init__(self) -> None:
        self.table = bytearray(BITS // 8)

    def before(self, record: Record) -> bool:
        """Was it asked for before?"""
        digest = blake2b("\n".join(record).encode("utf-8", "replace"), digest_size=32).digest()
        old = True
        for at in range(0, 32, 8):
            bit = int.from_bytes(digest[at : at + 8], "little") % BITS
            if not self.table[bit >> 3] >> (bit & 7) & 1:
                old = False
                self.table[bit >> 3] |= 1 << (bit & 7)
        return old


@dataclass
class Distinct(DerivedCorpus):
    """Each record of a corpus once. What comes before `start` is read for its hashes, so that a pass that goes on in
    the middle leaves out the same records as one from the beginning."""

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        seen = Seen()
        for number, record in self.source.read(0, stride):
            if seen.before(record):
                if number > start:
                    self.skipped["a repetition"] += 1
            elif number > start:
                yield number, record
