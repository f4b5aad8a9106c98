"""KVCache: the keys and values of the tokens that a decoder has read, in a buffer with room for more rows and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.memory import BLOCK_POOL

BLOCK = 16
"""Room for tokens is a multiple of this; a buffer has a quarter more than it needs at first, and a full one is copied into a larger."""
SPARE = 2**25
"""Bytes up to which it has room for twice the tokens: a copy, in pages that are new, costs as much as several steps."""
MAPPED = 2**20
"""Bytes from which a buffer gets memory pages of its own (see BlockPool)."""


@dataclass
class Buffer:
    """Memory for keys and values, which several caches may share; only the longest of them can append in place."""

    vectors: Tensor
    """(layers, slots, H_kv, capacity, 2, D): for each token its key and its value, one after the other."""
    used: int = 0
    """Tokens written so far, by any of the caches."""
    in_order: bool = False
    """Whether all tokens of row r must be in slot r, because keys and values are read as views of it."""

    def has_room(self, rows: int, start: int, end: int) -> bool:
        return self.used == start and rows <= self.vectors.size(1) and end <= self.vectors.size(3)


@dataclass(frozen=True)
class KVCache:
    """Keys and values of R rows and `length` tokens, of one layer or of all.

    Beams move without a copy: `slots` (R, length) is the slot of the buffer that holds each token of each row; None = row r is in
    slot r. `move`, `join` and `drop` may rearrange the buffer: the cache that they are called on must not be used afterwards.
    """

    buffer: Buffer
    rows: int = 0
    length: int = 0
    slots: Tensor | None = None

    @classmethod
    def empty(cls, layers: int, heads: int, width: int, like: Tensor, in_order: bool = False) -> KVCache:
        """Make a cache without tokens, of the type and on the device of `like`."""
        return cls(Buffer(like.new_empty(layers, 0, heads, 0, 2, width), in_order=in_order))

    @classmethod
    def stack(cls, layers: Sequence[KVCache]) -> KVCache:
        """Make one cache of all layers from one of each, with the same rows and tokens."""
        vectors = torch.cat([layer.dense() for layer in layers])
        return cls(Buffer(vectors, layers[0].length), layers[0].rows, layers[0].length)

    def index_select(self, dim: int, rows: Tensor) -> KVCache:
        """Return the cache of other rows, repeated or left out; like that of a tensor, so `dim` is 0."""
        slots = rows[:, None].expand(-1, self.length) if self.slots is None else self.slots.index_select(0, rows)
        return KVCache(self.buffer, len(rows), self.length, slots)

    def move(self, rows: Tensor) -> KVCache:
        """Return the cache of other rows, as index_select does; in a buffer `in_order` the vectors themselves move."""
        vectors, count = self.buffer.vectors, len(rows)
        if (
            not self.buffer.in_order
            or self.slots is not None
            or not self.buffer.has_room(count, self.length, self.length)
        ):
            return self.index_select(0, rows)
        places = torch.arange(count)
        moved = (rows != places).nonzero()[:, 0]
        # where every row comes from a later slot, small pieces are safe, and need no memory for all rows at once
        for some in moved.split(BLOCK if bool((rows >= places).all()) else count):
            vectors[:, some, :, : self.length] = vectors[:, rows[some], :, : self.length]
        return KVCache(self.buffer, count, self.length)

    def size(self, dim: int) -> int:
        """Return R, the size of dimension 0, as of a tensor."""
        return self.rows

    def first(self, length: int) -> KVCache:
        """Return the cache of the first tokens alone."""
        return KVCache(self.buffer, self.rows, length, None if self.slots is None else self.slots[:, :length])

    def join(self, other: KVCache) -> KVCache:
        """Return a cache of the rows of both, shorter ones behind zeros, which are masked.

        The rows of `other` go into free slots of this buffer; if there are too few, both go into a new one with a quarter more.
        """
        if (placed := self.place(other)) is not None:
            return placed
        length, rows = max(self.length, other.length), self.rows + other.rows
        new = self.allocate(rows + rows // 4, length)
        for part, slots in zip((self, other), new[:, :rows].split([self.rows, other.rows], 1), strict=True):
            slots[:, :, :, : length - part.length] = 0
            slots[:, :, :, length - part.length : length] = part.dense()
        return KVCache(Buffer(new, length, self.buffer.in_order), rows, length)

    def place(self, other: KVCache) -> KVCache | None:
        """Return a cache with the rows of `other` after these, in the same buffer; None if it has no room for them."""
        vectors, begin, count = self.buffer.vectors, self.length - other.length, other.rows
        if begin < 0 or self.buffer.used != self.length or (self.buffer.in_order and self.slots is not None):
            return None
        taken = torch.zeros(vectors.size(1), dtype=torch.bool)
        taken[self.all_slots()[:, begin:]] = True
        free = (~taken).nonzero()[:count]  # (count, 1): slots that none of these rows reads from `begin` on
        if len(free) < count:
            return None
        vectors[:, free[:, 0], :, begin : self.length] = other.dense()
        if self.buffer.in_order:
            vectors[:, free[:, 0], :, :begin] = 0  # masked, but must be finite
            return KVCache(self.buffer, self.rows + count, self.length)
        before = free.new_zeros(count, begin)  # masked: slot 0, whose numbers are finite
        own = torch.cat([before, free.expand(-1, other.length)], 1)  # (count, length)
        return KVCache(self.buffer, self.rows + count, self.length, torch.cat([self.all_slots(), own]))

    def all_slots(self) -> Tensor:
        """Return `slots` (R, length), written out where it is None."""
        return torch.arange(self.rows)[:, None].expand(-1, self.length) if self.slots is None else self.slots

    def drop(self, tokens: int) -> KVCache:
        """Return a cache without the first tokens of every row; the others move to the beginning of their slots."""
        length = self.length - tokens
        if self.buffer.used != self.length:  # another cache appended behind these tokens
            new = self.allocate(self.rows, length)
            new[:, :, :, :length] = self.dense()[:, :, :, tokens:]
            return KVCache(Buffer(new, length, self.buffer.in_order), self.rows, length)
        end = self.rows if self.slots is None else int(self.slots.max()) + 1  # slots in use
        vectors = self.buffer.vectors[:, :end]
        for at in range(0, length, tokens):  # pieces that do not overlap with their destination
            size = min(tokens, length - at)
            vectors[:, :, :, at : at + size] = vectors[:, :, :, at + tokens : at + tokens + size]
        self.buffer.used = length
        return KVCache(self.buffer, self.rows, length, None if self.slots is None else self.slots[:, tokens:])

    def extend(self, rows: int, tokens: int) -> KVCache:
        """Reserve room for T more tokens of each of the R rows, row r in slot r; the caller writes them."""
        end = self.length + tokens
        fits = self.buffer.has_room(rows, self.length, end) and not (self.buffer.in_order and self.slots is not None)
        old = self if fits else self.copy(rows, end)
        old.buffer.used = end
        if old.slots is None:
            return KVCache(old.buffer, rows, end)
        own = torch.arange(rows)[:, None].expand(-1, tokens)  # (R, T)
        return KVCache(old.buffer, rows, end, torch.cat([old.slots, own], 1))

    def append(self, key: Tensor, value: Tensor) -> KVCache:
        """Append keys and values (R, H_kv, T, D) of T more tokens to a cache of one layer."""
        new = self.extend(key.size(0), key.size(2))
        vectors = new.buffer.vectors[0, : new.rows, :, self.length : new.length]  # (R, H_kv, T, 2, D)
        vectors[..., 0, :], vectors[..., 1, :] = key, value
        return new

    def keys_values(self) -> tuple[Tensor, Tensor]:
        """Return keys and values (R, H_kv, length, D), as views, of a cache of one layer with its rows in order."""
        vectors = self.buffer.vectors[0, : self.rows, :, : self.length]
        return vectors[..., 0, :], vectors[..., 1, :]

    def copy(self, rows: int, tokens: int) -> KVCache:
        """Return the same cache in a buffer of its own, with room for `rows` and `tokens`, row r in slot r."""
        new = self.allocate(rows, tokens)
        if self.length:
            new[:, :, :, : self.length] = self.dense()
        return KVCache(Buffer(new, in_order=self.buffer.in_order), rows, self.length)

    def allocate(self, rows: int, tokens: int) -> Tensor:
        """Return the vectors of a new buffer, with `rows` slots and room for a quarter more than `tokens`, or with few rows twice."""
        old = self.buffer.vectors
        size_of_token = old.size(0) * rows * old.size(2) * 2 * old.size(5) * old.element_size()
        spare = max(tokens // 4, min(tokens, SPARE // max(1, size_of_token)))
        capacity = -(-(tokens + spare) // BLOCK) * BLOCK
        shape = torch.Size([old.size(0), rows, old.size(2), capacity, *old.shape[4:]])
        size = shape.numel() * old.element_size()
        if old.device.type != "cpu" or size < MAPPED:
            return old.new_empty(shape)
        return torch.frombuffer(BLOCK_POOL.allocate(size), dtype=old.dtype).view(shape)

    def dense(self) -> Tensor:
        """Return keys and values with every row in order, (layers, R, H_kv, length, 2, D); a view where they already are."""
        vectors = self.buffer.vectors
        if self.slots is None:
            return vectors[:, : self.rows, :, : self.length]
        tokens = vectors[:, self.slots, :, torch.arange(self.length)]  # (R, length, layers, H_kv, 2, D)
        return tokens.permute(2, 0, 3, 1, 4, 5)
