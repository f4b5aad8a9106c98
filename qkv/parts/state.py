"""State: what a model remembers between steps, passed in and returned, never stored on a module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Layer = dict[str, Any]
"""What one layer remembers: keys and values, or hidden vectors. Tensors with the batch first, or something else that knows
how to `index_select` its rows."""


@dataclass(frozen=True)
class Memory:
    """What an encoder hands to a decoder: its vectors (B, S, C), which of them are real (B, S), its last state."""

    vectors: Tensor
    mask: Tensor | None = None
    state: State | None = None

    def select(self, rows: Tensor) -> Memory:
        mask = None if self.mask is None else self.mask[rows]
        return Memory(self.vectors[rows], mask, None if self.state is None else self.state.select(rows))


@dataclass(frozen=True)
class State:
    """Keys/values or hidden vectors of every layer, and which of the tokens seen so far are real."""

    layers: tuple[Layer, ...] = ()
    length: int = 0
    """Tokens seen, padding included."""
    keys: Tensor | None = None
    """(B, length) real tokens; None = all."""
    memory: Memory | None = field(default=None)
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
        if self.memory is not None or any(layer.keys() - {"key", "value"} for layer in self.layers):
            return None
        layers = tuple({name: kept[:, :, :length] for name, kept in layer.items()} for layer in self.layers)
        return State(layers, length, None if self.keys is None else self.keys[:, :length])

    def select(self, rows: Tensor) -> State:
        """The same state for other rows of the batch, repeated or left out: how a beam moves."""
        layers = tuple({name: kept.index_select(0, rows) for name, kept in layer.items()} for layer in self.layers)
        keys = None if self.keys is None else self.keys[rows]
        return State(layers, self.length, keys, None if self.memory is None else self.memory.select(rows))

    def move(self, rows: Tensor, sentences: Tensor | None = None) -> State:
        """Beams move within their sentences: what was written follows `rows` (B * K,), which may be repeated or left out.

        What belongs to the source stands once for all K beams of a sentence and stays where it is; `sentences` says
        which go on, None = all. So K is the number of rows over the number of sentences, wherever both meet.
        """

        def moved(name: str, kept: Any) -> Any:
            if name.startswith("memory_"):
                return kept if sentences is None else kept.index_select(0, sentences)
            return kept.index_select(0, rows)

        layers = tuple({name: moved(name, kept) for name, kept in layer.items()} for layer in self.layers)
        keys = None if self.keys is None else self.keys[rows]
        memory = self.memory if self.memory is None or sentences is None else self.memory.select(sentences)
        return State(layers, self.length, keys, memory)
