"""State: what a model remembers between steps (KV cache, hidden vectors), passed in and returned, never stored on a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Layer = dict[str, Any]
"""State of one layer: keys and values, or hidden vectors. Values are tensors with the batch first, or a KVCache with the same
operations: `index_select`, `move` and `join` rows, keep the `first` tokens, `drop` them."""
TOKENS = {"key": 2, "value": 2}
"""Entries with a position for each token that was read -> the axis of these positions."""
SOURCE = {"memory_key": 2, "memory_value": 2, "memory_heads": 3}
"""Entries with a position for each token of the source -> the axis of these positions."""


@dataclass(frozen=True)
class EncoderOutput:
    """What a decoder reads of an encoder: vectors (B, S, C), a mask (B, S) of the real ones (None = all), the last state."""

    vectors: Tensor
    mask: Tensor | None = None
    state: State | None = None
    ids: Tensor | None = None
    """(B, S) the source tokens, for a head that copies them."""

    def select(self, rows: Tensor) -> EncoderOutput:
        """Return the output for other rows of the batch, repeated or left out."""
        mask = None if self.mask is None else self.mask[rows]
        state = None if self.state is None else self.state.select(rows)
        return EncoderOutput(self.vectors[rows], mask, state, None if self.ids is None else self.ids[rows])

    def join(self, other: EncoderOutput) -> EncoderOutput:
        """Return the sources of both, the shorter ones padded on the right."""
        both = self, other
        length = max(m.vectors.size(1) for m in both)
        vectors = torch.cat([pad(m.vectors, 1, length, left=False) for m in both])
        even = all(m.mask is None and m.vectors.size(1) == length for m in both)
        real = [m.vectors.new_ones(m.vectors.shape[:2], dtype=torch.bool) if m.mask is None else m.mask for m in both]
        mask = None if even else torch.cat([pad(each, 1, length, left=False) for each in real])
        state = None if self.state is None or other.state is None else self.state.join(other.state)
        own = [pad(m.ids, 1, length, left=False) for m in both if m.ids is not None]
        return EncoderOutput(vectors, mask, state, torch.cat(own) if len(own) == len(both) else None)

    def trimmed(self) -> EncoderOutput:
        """Return the output without the last positions that are padding in every row."""
        if self.mask is None:
            return self
        length = int(self.mask.any(0).nonzero().max()) + 1
        mask = self.mask[:, :length]
        ids = None if self.ids is None else self.ids[:, :length]
        return EncoderOutput(self.vectors[:, :length], None if bool(mask.all()) else mask, self.state, ids)


@dataclass(frozen=True)
class State:
    """Keys and values or hidden vectors of every layer, and which of the tokens seen so far are real."""

    layers: tuple[Layer, ...] = ()
    length: int = 0
    """Tokens seen, padding included."""
    keys: Tensor | None = None
    """(B, length) real tokens; None = all."""
    memory: EncoderOutput | None = None
    """The source, in an encoder-decoder."""

    def layer(self, index: int) -> Layer:
        """Return the state of one layer; {} before the first token."""
        return self.layers[index] if self.layers else {}

    def seen(self, queries: int, mask: Tensor | None) -> Tensor | None:
        """Return the mask (B, length + T) of all tokens after T more with `mask` (B, T); None = all real."""
        if mask is None and self.keys is None:
            return None
        known = mask if mask is not None else self.keys
        assert known is not None
        full = lambda n: torch.ones(known.size(0), n, dtype=torch.bool, device=known.device)  # noqa: E731
        old = self.keys if self.keys is not None else full(self.length)
        return torch.cat([old, mask if mask is not None else full(queries)], 1)

    def first(self, length: int) -> State | None:
        """Return the state as it was after `length` tokens; None where only the last one is known (recurrent cells, a source)."""
        if length == self.length:
            return self
        if self.memory is not None or any(layer.keys() - {"key", "value", "cache"} for layer in self.layers):
            return None

        def cut(kept: Any) -> Any:
            return kept[:, :, :length] if isinstance(kept, Tensor) else kept.first(length)

        layers = tuple({name: cut(kept) for name, kept in layer.items()} for layer in self.layers)
        return State(layers, length, None if self.keys is None else self.keys[:, :length])

    def carried(self) -> State:
        """Return the state with which the next window of a text begins: detached, so that no gradient flows back.

        Tokens are counted from 0 again, so this is for networks without positions.
        """
        return State(tuple({name: kept.detach() for name, kept in layer.items()} for layer in self.layers))

    def forget(self, rows: Tensor) -> State:
        """Return the state with some rows (B,) reset to zeros, the state before the first token."""
        if bool(rows.all()):
            return State()

        def emptied(kept: Tensor) -> Tensor:
            return kept.masked_fill(rows.view(-1, *[1] * (kept.dim() - 1)), 0.0)  # (B, ...)

        layers = tuple({name: emptied(kept) for name, kept in layer.items()} for layer in self.layers)
        return State(layers, self.length, self.keys, self.memory)

    def select(self, rows: Tensor) -> State:
        """Return the state of other rows of the batch, repeated or left out."""
        layers = tuple({name: kept.index_select(0, rows) for name, kept in layer.items()} for layer in self.layers)
        keys = None if self.keys is None else self.keys[rows]
        return State(layers, self.length, keys, None if self.memory is None else self.memory.select(rows))

    def real(self) -> Tensor:
        """Return which of the tokens seen so far are real, (B, length); there must be some."""
        if self.keys is not None:
            return self.keys
        own = next(kept for name, kept in self.layers[0].items() if not name.startswith("memory_"))
        return torch.ones(own.size(0), self.length, dtype=torch.bool, device=getattr(own, "device", None))

    def join(self, other: State) -> State:
        """Return both batches as one, this one's rows first.

        Shorter texts are padded on the left, shorter sources on the right; no row sees its padding, so each continues as it would
        alone. Neither state may be used afterwards: packed layers write the new rows into memory that the old ones no longer need.
        """
        both, length = (self, other), max(self.length, other.length)
        memory = None if self.memory is None or other.memory is None else self.memory.join(other.memory)

        def joined(name: str, kept: list[Any]) -> Any:
            if name in TOKENS:
                kept = [pad(each, TOKENS[name], length, left=True) for each in kept]
            if name in SOURCE and memory is not None:
                kept = [pad(each, SOURCE[name], memory.vectors.size(1), left=False) for each in kept]
            return torch.cat(kept) if isinstance(kept[0], Tensor) else kept[0].join(kept[1])

        pairs = zip(self.layers, other.layers, strict=True)
        layers = tuple({name: joined(name, [a[name], b[name]]) for name in a} for a, b in pairs)
        if self.length == other.length and self.keys is None and other.keys is None:
            return State(layers, length, None, memory)
        keys = torch.cat([pad(s.real(), 1, length, left=True) for s in both])
        return State(layers, length, keys, memory)

    @property
    def padding(self) -> int:
        """Number of first positions that are padding in every row."""
        return 0 if self.keys is None else int((~self.keys).all(0).long().cumprod(0).sum())

    def trimmed(self) -> State:
        """Return the state without the first positions, and the last ones of the source, that are padding in every row.

        This state must not be used afterwards, as in `join`.
        """
        first, memory = self.padding, None if self.memory is None else self.memory.trimmed()
        source = 0 if memory is None else memory.vectors.size(1)

        def cut(name: str, kept: Any) -> Any:
            if name in SOURCE:
                return kept.narrow(SOURCE[name], 0, source).contiguous()  # read at every step, by native code too
            if name in TOKENS:
                return kept.narrow(TOKENS[name], first, self.length - first)
            return kept if isinstance(kept, Tensor) or first == 0 else kept.drop(first)

        layers = tuple({name: cut(name, kept) for name, kept in layer.items()} for layer in self.layers)
        keys = None if self.keys is None or bool(self.keys[:, first:].all()) else self.keys[:, first:]
        return State(layers, self.length - first, keys, memory)

    def move(self, rows: Tensor, sentences: Tensor | None = None) -> State:
        """Return the state after a step of beam search: row r continues row `rows`[r] (B * K,); rows may repeat or be left out.

        K beams of a sentence share one copy of what belongs to the source. It does not follow `rows`; `sentences` are the
        ones that remain, None = all. So K is the number of rows divided by the number of sentences, wherever both meet. This state
        must not be used afterwards: packed layers move rows within their memory. `select` leaves the state as it is.
        """

        def moved(name: str, kept: Any) -> Any:
            if name.startswith("memory_"):
                return kept if sentences is None else kept.index_select(0, sentences)
            return kept.index_select(0, rows) if isinstance(kept, Tensor) else kept.move(rows)

        layers = tuple({name: moved(name, kept) for name, kept in layer.items()} for layer in self.layers)
        keys = None if self.keys is None else self.keys[rows]
        memory = self.memory if self.memory is None or sentences is None else self.memory.select(sentences)
        return State(layers, self.length, keys, memory)


def pad(x: Tensor, axis: int, length: int, left: bool) -> Tensor:
    """Pad an axis to this length with zeros (False), at its beginning (`left`) or at its end."""
    missing = length - x.size(axis)
    behind = [0, 0] * (x.dim() - 1 - axis)
    return x if missing == 0 else F.pad(x, [*behind, missing, 0] if left else [*behind, 0, missing])
