"""State: what a model remembers between steps, passed in and returned, never stored on a module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Layer = dict[str, Any]
"""What one layer remembers: keys and values, or hidden vectors. Tensors with the batch first, or something else that knows
how to `index_select` its rows, to `move` them, to `join` those of another, to keep its `first` tokens and to `drop` them."""
TOKENS = {"key": 2, "value": 2}
SOURCE = {"memory_key": 2, "memory_value": 2, "memory_heads": 3}
"""What has a place for each token that was read, and for each token of the source, and on which axis."""


@dataclass(frozen=True)
class EncoderOutput:
    """The output of an encoder, which a decoder reads: vectors (B, S, C), which of them are real (B, S), the last state."""

    vectors: Tensor
    mask: Tensor | None = None
    state: State | None = None
    ids: Tensor | None = None
    """(B, S) the source tokens, for a head that copies them."""

    def select(self, rows: Tensor) -> EncoderOutput:
        mask = None if self.mask is None else self.mask[rows]
        state = None if self.state is None else self.state.select(rows)
        return EncoderOutput(self.vectors[rows], mask, state, None if self.ids is None else self.ids[rows])

    def join(self, other: EncoderOutput) -> EncoderOutput:
        """The sources of both, the shorter ones padded on the right."""
        both = self, other
        length = max(m.vectors.size(1) for m in both)
        vectors = torch.cat([pad(m.vectors, 1, length, left=False) for m in both])
        even = all(m.mask is None and m.vectors.size(1) == length for m in both)
        real = [m.vectors.new_ones(m.vectors.shape[:2], dtype=torch.bool) if m.mask is None else m.mask for m in both]
        mask = None if even else torch.cat([pad(each, 1, length, left=False) for each in real])
        state = None if self.state is None or other.state is None else self.state.join(other.state)
        ids = (
            None
            if self.ids is None or other.ids is None
            else [pad(x, 1, length, left=False) for x in (self.ids, other.ids)]
        )
        return EncoderOutput(vectors, mask, state, None if ids is None else torch.cat(ids))

    def trimmed(self) -> EncoderOutput:
        """Without the last places, as far as they are padding in every row."""
        if self.mask is None:
            return self
        length = int(self.mask.any(0).nonzero().max()) + 1
        mask = self.mask[:, :length]
        ids = None if self.ids is None else self.ids[:, :length]
        return EncoderOutput(self.vectors[:, :length], None if bool(mask.all()) else mask, self.state, ids)


@dataclass(frozen=True)
class State:
    """Keys/values or hidden vectors of every layer, and which of the tokens seen so far are real."""

    layers: tuple[Layer, ...] = ()
    length: int = 0
    """Tokens seen, padding included."""
    keys: Tensor | None = None
    """(B, length) real tokens; None = all."""
    memory: EncoderOutput | None = field(default=None)
    """The source, in an encoder-decoder."""

    def layer(self, index: int) -> Layer:
        return self.layers[index] if self.layers else {}

    def seen(self, queries: int, mask: Tensor | None) -> Tensor | None:
        """(B, length + T): the mask of all tokens so far when T more with `mask` (B, T) arrive; None = all real."""
        if mask is None and self.keys is None:
            return None
        known = mask if mask is not None else self.keys
        assert known is not None
        full = lambda n: torch.ones(known.size(0), n, dtype=torch.bool, device=known.device)  # noqa: E731
        old = self.keys if self.keys is not None else full(self.length)
        return torch.cat([old, mask if mask is not None else full(queries)], 1)

    def first(self, length: int) -> State | None:
        """The state as it was after `length` tokens; None where only the last one is known (recurrent cells, a source)."""
        if length == self.length:
            return self
        if self.memory is not None or any(layer.keys() - {"key", "value", "cache"} for layer in self.layers):
            return None

        def cut(kept: Any) -> Any:
            return kept[:, :, :length] if isinstance(kept, Tensor) else kept.first(length)

        layers = tuple({name: cut(kept) for name, kept in layer.items()} for layer in self.layers)
        return State(layers, length, None if self.keys is None else self.keys[:, :length])

    def carried(self) -> State:
        """What the next window of a text begins with: the same memory, through which no gradient flows back. Tokens are
        counted anew, so it is for networks that know no positions."""
        return State(tuple({name: kept.detach() for name, kept in layer.items()} for layer in self.layers))

    def forget(self, rows: Tensor) -> State:
        """The state with nothing remembered, which is zeros, in some rows (B,)."""
        if bool(rows.all()):
            return State()

        def emptied(kept: Tensor) -> Tensor:
            return kept.masked_fill(rows.view(-1, *[1] * (kept.dim() - 1)), 0.0)  # (B, ...)

        layers = tuple({name: emptied(kept) for name, kept in layer.items()} for layer in self.layers)
        return State(layers, self.length, self.keys, self.memory)

    def select(self, rows: Tensor) -> State:
        """The same state for other rows of the batch, repeated or left out: how a beam moves."""
        layers = tuple({name: kept.index_select(0, rows) for name, kept in layer.items()} for layer in self.layers)
        keys = None if self.keys is None else self.keys[rows]
        return State(layers, self.length, keys, None if self.memory is None else self.memory.select(rows))

    def real(self) -> Tensor:
        """(B, length): which of the tokens seen so far, of which there are some, are real."""
        if self.keys is not None:
            return self.keys
        own = next(kept for name, kept in self.layers[0].items() if not name.startswith("memory_"))
        return torch.ones(own.size(0), self.length, dtype=torch.bool, device=getattr(own, "device", None))

    def join(self, other: State) -> State:
        """Both batches as one, this one's rows first: the texts of the shorter one are padded on the left, its sources on
        the right. No row sees its padding, so each goes on as it would alone. Both states are given up: packed layers put the new
        rows where nobody needs the old ones."""
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
        """How many of the first places hold no token of any row."""
        return 0 if self.keys is None else int((~self.keys).all(0).long().cumprod(0).sum())

    def trimmed(self) -> State:
        """Without the first places, and the last ones of the source, that no row needs any more. This state is given up, as in
        `join`."""
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
        """Beams move within their sentences: what was written follows `rows` (B * K,), which may be repeated or left out.

        What belongs to the source stands once for all K beams of a sentence and stays where it is; `sentences` says
        which go on, None = all. So K is the number of rows over the number of sentences, wherever both meet. This state is
        given up: packed layers move rows within their memory. `select` leaves it as it is.
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
    """With zeros (False) before or behind, so that the axis is of this length."""
    missing = length - x.size(axis)
    behind = [0, 0] * (x.dim() - 1 - axis)
    return x if missing == 0 else F.pad(x, [*behind, missing, 0] if left else [*behind, 0, missing])
