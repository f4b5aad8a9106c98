"""KVCache: the keys and values of the tokens that a decoder has read, in memory that grows by doubling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MIN_CAPACITY = 16
"""Tokens that a buffer has room for at least; a full one is copied into one of twice the size."""


@dataclass
class Buffer:
    """Memory for keys and values. Caches share it: each uses its own part, and only the longest may append in place."""

    vectors: Tensor
    """(layers, slots, H_kv, capacity, 2, D): a key and its value, those of the next token behind them."""
    used: int = 0

    def has_room(self, rows: int, start: int, end: int) -> bool:
        return self.used == start and rows <= self.vectors.size(1) and end <= self.vectors.size(3)


@dataclass(frozen=True)
class KVCache:
    """Keys and values of R rows and `length` tokens, of one layer or of all. Beams move without a copy: `slots` (R, length)
    is the slot of the buffer in which each row finds each token; None = row r is slot r."""

    buffer: Buffer
    length: int = 0
    slots: Tensor | None = None

    @classmethod
    def empty(cls, layers: int, heads: int, width: int, like: Tensor) -> KVCache:
        """Make a cache without tokens, of the type and on the device of `like`."""
        return cls(Buffer(like.new_empty(layers, 0, heads, 0, 2, width)))

    def index_select(self, dim: int, rows: Tensor) -> KVCache:
        """Return the cache of other rows, repeated or left out."""
        slots = rows[:, None].expand(-1, self.length) if self.slots is None else self.slots.index_select(0, rows)
        return KVCache(self.buffer, self.length, slots)

    def size(self, dim: int) -> int:
        """R, of dimension 0."""
        return self.buffer.vectors.size(1) if self.slots is None else self.slots.size(0)

    def first(self, length: int) -> KVCache:
        """Return the cache of the first tokens alone."""
        return KVCache(self.buffer, length, None if self.slots is None else self.slots[:, :length])

    def join(self, other: KVCache) -> KVCache:
        """Return a cache of the rows of both. Those of `other` go into unused slots of this buffer; `self`, which may have used
        them before, must not be used any more. If there are too few, both go into a new buffer, the shorter ones behind
        zeros, which are masked."""
        if (placed := self.place(other)) is not None:
            return placed
        both, length = (self, other), max(self.length, other.length)
        new = self.allocate(self.size(0) + other.size(0), 2 * length)
        for part, slots in zip(both, new.split([part.size(0) for part in both], 1), strict=True):
            slots[:, :, :, : length - part.length] = 0
            slots[:, :, :, length - part.length : length] = part.dense(part.size(0))
        return KVCache(Buffer(new, length), length)

    def place(self, other: KVCache) -> KVCache | None:
        """Add the rows of `other` behind these, in the same buffer; None if it has no room for them."""
        vectors, begin, count = self.buffer.vectors, self.length - other.length, other.size(0)
        if begin < 0 or self.buffer.used != self.length or self.slots is None:
            return None
        taken = torch.zeros(vectors.size(1), dtype=torch.bool)
        taken[self.slots[:, begin:]] = True
        free = (~taken).nonzero()[:count]  # (rows, 1)
        if len(free) < count:
            return None
        vectors[:, free[:, 0], :, begin : self.length] = other.dense(count)
        before = free.new_zeros(count, begin)  # masked: slot 0, which holds numbers
        own = torch.cat([before, free.expand(-1, other.length)], 1)  # (rows, length)
        return KVCache(self.buffer, self.length, torch.cat([self.slots, own]))

    def drop(self, tokens: int) -> KVCache:
        """Return a cache without the first tokens of every row, in a buffer of its own."""
        rows, length = self.size(0), self.length - tokens
        new = self.allocate(rows, 2 * length)
        new[:, :, :, :length] = self.dense(rows)[:, :, :, tokens:]
        return KVCache(Buffer(new, length), length)

    def extend(self, rows: int, tokens: int, in_order: bool = False) -> KVCache:
        """Add room for T more tokens of each of the R rows, which the caller fills: row r in slot r. With `in_order`, row r has
        all of its tokens in slot r."""
        end = self.length + tokens
        fits = self.buffer.has_room(rows, self.length, end) and not (in_order and self.slots is not None)
        old = self if fits else self.copy(rows, 2 * end)
        old.buffer.used = end
        if old.slots is None:
            return KVCache(old.buffer, end)
        own = torch.arange(rows)[:, None].expand(-1, tokens)  # (R, T)
        return KVCache(old.buffer, end, torch.cat([old.slots, own], 1))

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """Add keys and values (R, H_kv, T, D) of T more tokens, of a cache of one layer."""
        new = self.extend(key.size(0), key.size(2), in_order=True)
        vectors = new.buffer.vectors[0, : key.size(0), :, self.length : new.length]  # (R, H_kv, T, 2, D)
        vectors[..., 0, :], vectors[..., 1, :] = key, value
        return new

    def keys_values(self) -> tuple[Tensor, Tensor]:
        """Return keys and values (R, H_kv, length, D), as views, of a cache of one layer with its rows in order."""
        vectors = self.buffer.vectors[0, :, :, : self.length]
        return vectors[..., 0, :], vectors[..., 1, :]

    def copy(self, rows: int, capacity: int) -> KVCache:
        """Return the same cache in a buffer of its own, each row in its slot."""
        new = self.allocate(rows, capacity)
        if self.length:
            new[:, :, :, : self.length] = self.dense(rows)
        return KVCache(Buffer(new), self.length)

    def allocate(self, rows: int, capacity: int) -> Tensor:
        old = self.buffer.vectors
        return old.new_empty(old.size(0), rows, old.size(2), max(MIN_CAPACITY, capacity), *old.shape[4:])

    def dense(self, rows: int) -> Tensor:
        """Return (layers, R, H_kv, length, 2, D)."""
        vectors = self.buffer.vectors
        if self.slots is None:
            return vectors[:, :rows, :, : self.length]
        tokens = vectors[:, self.slots, :, torch.arange(self.length)]  # (R, length, layers, H_kv, 2, D)
        return tokens.permute(2, 0, 3, 1, 4, 5)
