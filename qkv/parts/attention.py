"""Attention: queries, keys and values from vectors, mixed per head, joined again. Self or cross, causal or not, grouped."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.parts.masks import Mask
from qkv.parts.positions import NOWHERE, Place
from qkv.parts.state import Layer
from qkv.parts.tap import Tap


class Attention(nn.Module):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V for H heads at once (Vaswani et al. 2017).

    Which score, which positions and which average is in the `mixer` slot. `cross` attention reads a memory, whose keys
    and values are computed once and kept in the state.
    """

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, d_head: int, mixer: nn.Module, bias: str = "all",
                 cross: bool = False, d_key: int | None = None):  # fmt: skip
        super().__init__()
        self.d_head, self.cross = d_head, cross
        self.d_key = d_key or d_head  # only in linear attention, where nothing says that values are as wide
        self.query = nn.Linear(d_model, n_heads * self.d_key, bias != "none")
        self.key = nn.Linear(d_model, n_kv_heads * self.d_key, bias != "none")
        self.value = nn.Linear(d_model, n_kv_heads * d_head, bias != "none")
        self.output = nn.Linear(n_heads * d_head, d_model, bias == "all")
        self.mixer = mixer
        self.tap_query, self.tap_key, self.tap_value, self.tap_mixed = Tap(), Tap(), Tap(), Tap()

    def forward(self, x: Tensor, mask: Mask, place: Place = NOWHERE, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """x (B, T, C), memory (B, S, C) for cross-attention -> (B, T, C) and what this layer remembers."""
        query = self.tap_query(place.turn(self.split(self.query(x))))  # (B, H, T, D)
        if self.cross:
            key, value, kept = self.read_memory(memory, state)
        else:
            key, value, kept = self.extend(x, place, state)
        mixed = self.mixer(side_by_side(query, key.size(0)), key, value, mask, place)
        mixed = self.tap_mixed(one_by_one(mixed, query.size(0)))  # (B, H, T, D)
        return self.output(self.join(mixed)), kept

    def extend(self, x: Tensor, place: Place, state: Layer | None) -> tuple[Tensor, Tensor, Layer]:
        """Keys and values of all tokens so far: the remembered ones and these T."""
        key = self.tap_key(place.turn(self.split(self.key(x))))  # (B, H_kv, T, D)
        value = self.tap_value(self.split(self.value(x)))  # (B, H_kv, T, D)
        if state is None:
            return key, value, {}
        if "key" in state:
            key = torch.cat([state["key"], key], 2)  # (B, H_kv, S, D)
            value = torch.cat([state["value"], value], 2)
        return key, value, {"key": key, "value": value}

    def read_memory(self, memory: Tensor | None, state: Layer | None) -> tuple[Tensor, Tensor, Layer]:
        """Keys and values of the source, computed once."""
        if state is not None and "memory_key" in state:
            return state["memory_key"], state["memory_value"], state
        assert memory is not None, "cross-attention needs a memory"
        key = self.tap_key(self.split(self.key(memory)))  # (B, H_kv, S, D)
        value = self.tap_value(self.split(self.value(memory)))
        return key, value, {} if state is None else {"memory_key": key, "memory_value": value}

    def split(self, x: Tensor, width: int | None = None) -> Tensor:
        """(B, T, H * D) -> (B, H, T, D)."""
        return x.unflatten(-1, (-1, width or self.d_head)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, H * D)."""
        return x.transpose(1, 2).flatten(2)


def side_by_side(query: Tensor, sentences: int) -> Tensor:
    """(B * K, H, T, D) -> (B, H, K * T, D): K beams ask the one memory of their sentence together."""
    if query.size(0) == sentences:
        return query
    return query.unflatten(0, (sentences, -1)).transpose(1, 2).flatten(2, 3)


def one_by_one(mixed: Tensor, rows: int) -> Tensor:
    """The way back: (B, H, K * T, D) -> (B * K, H, T, D)."""
    if mixed.size(0) == rows:
        return mixed
    return mixed.unflatten(2, (rows // mixed.size(0), -1)).transpose(1, 2).flatten(0, 1)
