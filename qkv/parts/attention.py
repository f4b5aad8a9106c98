"""Multi-head attention: self or cross, causal or not, with as many key and value heads as query heads or fewer (grouped-query)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding
from qkv.parts.state import Layer
from qkv.parts.tap import Tap


class Attention(nn.Module):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V for H heads at once (Vaswani et al. 2017).

    Shapes: B rows, T queries, S keys, C = d_model, H query heads, H_kv key and value heads (fewer than H in grouped-query
    attention), D channels per head. `mixer` computes the formula per head, or a variant of it (window, Linformer, linear).
    `bias` names the projections that have one: "all", "qkv" (all but the output), "all-but-key", "none".
    Without `projections` queries, keys and values are the input itself and there is no output map: softmax(x x^T / sqrt(D)) x.
    Cross-attention takes keys and values from `memory`, the encoder's output; they are computed once and stored in the state.
    Each `tap_*` is an identity at which hooks read or change an activation (parts/tap.py).
    """

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, d_head: int, mixer: nn.Module, bias: str = "all",
                 cross: bool = False, d_key: int | None = None, projections: bool = True,
                 d_memory: int | None = None):  # fmt: skip
        super().__init__()
        self.n_heads, self.d_head, self.cross = n_heads, d_head, cross
        self.d_key = d_key or d_head  # differs only in linear attention, whose keys may be narrower than its values
        project: Any = nn.Linear if projections else nn.Identity
        self.query = project(d_model, n_heads * self.d_key, bias != "none")
        d_memory = d_memory or d_model  # width of the vectors that cross-attention reads
        self.key = project(d_memory, n_kv_heads * self.d_key, bias not in ("none", "all-but-key"))
        self.value = project(d_memory, n_kv_heads * d_head, bias != "none")
        self.output = project(n_heads * d_head, d_model, bias.startswith("all"))
        self.mixer = mixer
        self.tap_query, self.tap_key, self.tap_value, self.tap_mixed = Tap(), Tap(), Tap(), Tap()

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """Attend: x (B, T, C), memory (B, S, C) for cross-attention -> (B, T, C) and the layer's new state; {} where `state` is None."""
        query = self.split(self.query(x))  # (B, H, T, D)
        query = self.tap_query(query if encoding is None else encoding.rotate(query))
        key, value, new_state = self.read_memory(memory, state) if self.cross else self.extend(x, encoding, state)
        mix = self.mixer if len(key) == len(query) else self.mix_beams  # beam search: K rows of queries per source
        mixed = self.tap_mixed(mix(query, key, value, mask, encoding))  # (B, H, T, D)
        return self.output(mixed.transpose(1, 2).flatten(2)), new_state  # (B, H, T, D) -> (B, T, H * D) -> (B, T, C)

    def extend(self, x: Tensor, encoding: PositionEncoding | None, state: Layer | None) -> tuple[Tensor, Tensor, Layer]:
        """Append the keys and values of these T tokens to the KV cache in `state`; return those of all S tokens and the new state."""
        key = self.split(self.key(x))  # (B, H_kv, T, D)
        key = self.tap_key(key if encoding is None else encoding.rotate(key))
        value = self.tap_value(self.split(self.value(x)))  # (B, H_kv, T, D)
        if state is None:
            return key, value, {}
        if "key" in state:
            key = torch.cat([state["key"], key], 2)  # (B, H_kv, S, D)
            value = torch.cat([state["value"], value], 2)
        return key, value, {"key": key, "value": value}

    def read_memory(self, memory: Tensor | None, state: Layer | None) -> tuple[Tensor, Tensor, Layer]:
        """Return the keys and values of the memory, which the first call computes and stores, and the new state."""
        if state is not None and "memory_key" in state:
            return state["memory_key"], state["memory_value"], state
        assert memory is not None, "cross-attention needs a memory"
        key = self.tap_key(self.split(self.key(memory)))  # (B, H_kv, S, D)
        value = self.tap_value(self.split(self.value(memory)))
        return key, value, {} if state is None else {"memory_key": key, "memory_value": value}

    def split(self, x: Tensor, width: int | None = None) -> Tensor:
        """Split vectors into heads of this width (None = d_head): (B, T, H * D) -> (B, T, H, D) -> (B, H, T, D)."""
        return x.unflatten(-1, (-1, width or self.d_head)).transpose(1, 2)

    def mix_beams(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, encoding: PositionEncoding | None
                  ) -> Tensor:  # fmt: skip
        """Attend with the K beams of each sentence, query (B * K, H, T, D), to the keys and values (B, H_kv, S, D) of its source.

        The source is stored once, not once per beam.
        """
        mixed = self.mixer(join_beams(query, len(key)), key, value, mask, encoding)
        return split_beams(mixed, query.size(2))


def join_beams(query: Tensor, sentences: int) -> Tensor:
    """Make the K beams of each of B sentences its queries: (B * K, H, T, D) -> (B, K, H, T, D) -> (B, H, K, T, D) -> (B, H, K * T, D)."""
    return query.unflatten(0, (sentences, -1)).transpose(1, 2).flatten(2, 3)


def split_beams(mixed: Tensor, queries: int) -> Tensor:
    """Undo `join_beams`, T = `queries`: (B, H, K * T, D) -> (B, H, K, T, D) -> (B, K, H, T, D) -> (B * K, H, T, D)."""
    return mixed.unflatten(2, (-1, queries)).transpose(1, 2).flatten(0, 1)


class SummaryAttention(Attention):
    """Cross-attention to a summary of the memory, of fixed size however long the source is.

    The summary is sums of features (linear attention) or a few keys and values (Linformer). The mixer has
    `summarise(key, value, mask)` and `read(query, summary)`; its forward is both in a row. The summary, a NamedTuple of tensors with
    the batch first, is computed once and stored in the state in place of keys and values.
    """

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Attention.forward; queries and keys have the width D_k = d_key."""
        query = self.tap_query(self.split(self.query(x), self.d_key))  # (B, H, T, D_k)
        mixer: Any = self.mixer
        if state:
            summary = mixer.summary(*(state[f"memory_{name}"] for name in mixer.summary._fields))
        else:
            assert memory is not None, "cross-attention needs a memory"
            key = self.tap_key(self.split(self.key(memory), self.d_key))  # (B, H_kv, S, D_k)
            value = self.tap_value(self.split(self.value(memory)))  # (B, H_kv, S, D)
            if state is None:  # as a module, so that its hooks run; linear attention also returns its sum
                mixed = mixer(query, key, value, mask, None)
                return self.join_heads(mixed[0] if isinstance(mixed, tuple) else mixed), {}
            summary = mixer.summarise(key, value, mask)
        mixed = mixer.read(join_beams(query, len(summary[0])), summary)  # (B, H, K * T, D)
        new_state = {f"memory_{name}": part for name, part in summary._asdict().items()}
        return self.join_heads(split_beams(mixed, query.size(2))), new_state

    def join_heads(self, mixed: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, H * D) -> (B, T, C)."""
        return self.output(self.tap_mixed(mixed).transpose(1, 2).flatten(2))
