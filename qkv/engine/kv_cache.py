"""Written: the keys and values of what a decoder has read so far, kept where they were put."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHORTEST = 16
"""Places that a store has at least; a full one is copied into one of twice the size."""


@dataclass
class Store:
    """Room for keys and values. States share it: each sees its own part, and only the longest may add to it in place."""

    vectors: Tensor
    """(layers, lanes, H_kv, places, 2, D): a key, its value, those of the next place."""
    used: int = 0

    def fits(self, rows: int, start: int, end: int) -> bool:
        return self.used == start and rows <= self.vectors.size(1) and end <= self.vectors.size(3)


@dataclass(frozen=True)
class Written:
    """What all layers remember of R rows and `length` tokens. A beam that moves copies nothing: `lanes` (R, length) says
    in which lane of the store each row finds each token; None = row r is lane r."""

    store: Store
    length: int = 0
    lanes: Tensor | None = None

    @classmethod
    def empty(cls, layers: int, heads: int, width: int) -> Written:
        return cls(Store(torch.empty(layers, 0, heads, 0, 2, width)))

    def index_select(self, dim: int, rows: Tensor) -> Written:
        """The same for other rows, repeated or left out."""
        lanes = rows[:, None].expand(-1, self.length) if self.lanes is None else self.lanes.index_select(0, rows)
        return Written(self.store, self.length, lanes)

    def size(self, dim: int) -> int:
        """R, of dimension 0."""
        return self.store.vectors.size(1) if self.lanes is None else self.lanes.size(0)

    def join(self, other: Written) -> Written:
        """The rows of both. Those of `other` go into lanes of this store which nobody needs there any more; `self`, which may have
        needed them once, is given up. Where there are too few, both go into a new store; of the shorter ones the first places are
        zeros, which nobody looks at."""
        if (placed := self.placed(other)) is not None:
            return placed
        both, length = (self, other), max(self.length, other.length)
        old, rows = self.store.vectors, self.size(0) + other.size(0)
        new = old.new_empty(old.size(0), rows, old.size(2), max(SHORTEST, 2 * length), *old.shape[4:])
        for part, lanes in zip(both, new.split([part.size(0) for part in both], 1), strict=True):
            lanes[:, :, :, : length - part.length] = 0
            lanes[:, :, :, length - part.length : length] = part.dense(part.size(0))
        return Written(Store(new, length), length)

    def placed(self, other: Written) -> Written | None:
        """With the rows of `other` behind these, in the same store; None where it has no room for them."""
        vectors, begin, count = self.store.vectors, self.length - other.length, other.size(0)
        if begin < 0 or self.store.used != self.length or self.lanes is None:
            return None
        taken = torch.zeros(vectors.size(1), dtype=torch.bool)
        taken[self.lanes[:, begin:]] = True
        free = (~taken).nonzero()[:count]  # (rows, 1)
        if len(free) < count:
            return None
        vectors[:, free[:, 0], :, begin : self.length] = other.dense(count)
        before = free.new_zeros(
            count, begin
        )  # of what nobody looks at, lane 0: what is written there is at least a number
        own = torch.cat([before, free.expand(-1, other.length)], 1)  # (rows, length)
        return Written(self.store, self.length, torch.cat([self.lanes, own]))

    def drop(self, tokens: int) -> Written:
        """Without the first tokens of every row, in a store of its own."""
        old, rows, length = self.store.vectors, self.size(0), self.length - tokens
        new = old.new_empty(old.size(0), rows, old.size(2), max(SHORTEST, 2 * length), *old.shape[4:])
        new[:, :, :, :length] = self.dense(rows)[:, :, :, tokens:]
        return Written(Store(new, length), length)

    def extended(self, rows: int, tokens: int) -> Written:
        """With room for T more tokens of each of the R rows, which the caller fills: row r in lane r."""
        end = self.length + tokens
        old = self if self.store.fits(rows, self.length, end) else self.copied(rows, 2 * end)
        old.store.used = end
        if old.lanes is None:
            return Written(old.store, end)
        own = torch.arange(rows)[:, None].expand(-1, tokens)  # (R, T)
        return Written(old.store, end, torch.cat([old.lanes, own], 1))

    def copied(self, rows: int, places: int) -> Written:
        """In a store of its own, each row in its lane."""
        old = self.store.vectors
        new = old.new_empty(old.size(0), rows, old.size(2), max(SHORTEST, places), *old.shape[4:])
        if self.length:
            new[:, :, :, : self.length] = self.dense(rows)
        return Written(Store(new), self.length)

    def dense(self, rows: int) -> Tensor:
        """(layers, R, H_kv, length, 2, D)."""
        vectors = self.store.vectors
        if self.lanes is None:
            return vectors[:, :rows, :, : self.length]
        gathered = vectors[:, self.lanes, :, torch.arange(self.length)]  # (R, length, layers, H_kv, 2, D)
        return gathered.permute(2, 0, 3, 1, 4, 5)
