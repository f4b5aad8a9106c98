"""Written: the keys and values of what a layer has read so far, kept where they were put."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHORTEST = 16
"""Places that a store has at least; a full one is copied into one of twice the size."""


@dataclass
class Store:
    """Room for keys and values of several rows. States share it: each sees its own part, and only the longest one may
    add to it in place."""

    key: Tensor  # (lanes, H_kv, places, D)
    value: Tensor
    used: int

    @classmethod
    def like(cls, key: Tensor, rows: int, places: int) -> Store:
        shape = rows, key.size(1), max(SHORTEST, places), key.size(3)
        return cls(key.new_empty(shape), key.new_empty(shape), 0)

    def fits(self, rows: int, start: int, end: int) -> bool:
        return self.used == start and rows <= self.key.size(0) and end <= self.key.size(2)


@dataclass(frozen=True)
class Written:
    """What one layer remembers of R rows and `length` tokens. A beam that moves copies nothing: `lanes` (R, length) says
    in which lane of the store each row finds each token; None = row r is lane r."""

    store: Store
    length: int = 0
    lanes: Tensor | None = None

    def index_select(self, dim: int, rows: Tensor) -> Written:
        """The same for other rows, repeated or left out."""
        lanes = rows[:, None].expand(-1, self.length) if self.lanes is None else self.lanes.index_select(0, rows)
        return Written(self.store, self.length, lanes)

    def append(self, key: Tensor, value: Tensor) -> Written:
        """With the keys and values (R, H_kv, T, D) of T more tokens."""
        rows, end = key.size(0), self.length + key.size(2)
        old = self if self.store.fits(rows, self.length, end) else self.copied(rows, 2 * end)
        old.store.key[:rows, :, old.length : end] = key
        old.store.value[:rows, :, old.length : end] = value
        old.store.used = end
        if old.lanes is None:
            return Written(old.store, end)
        own = torch.arange(rows)[:, None].expand(-1, key.size(2))  # (R, T)
        return Written(old.store, end, torch.cat([old.lanes, own], 1))

    def copied(self, rows: int, places: int) -> Written:
        """In a store of its own, each row in its lane."""
        store = Store.like(self.store.key, rows, places)
        if self.length:
            store.key[:, :, : self.length], store.value[:, :, : self.length] = self.dense(rows)
        return Written(store, self.length)

    def dense(self, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values side by side: (R, H_kv, S, D) each."""
        if self.lanes is None:
            return self.store.key[:rows, :, : self.length], self.store.value[:rows, :, : self.length]
        places = torch.arange(self.length)  # (S,)
        gathered = self.store.key[self.lanes, :, places], self.store.value[self.lanes, :, places]  # (R, S, H_kv, D)
        return gathered[0].transpose(1, 2), gathered[1].transpose(1, 2)
