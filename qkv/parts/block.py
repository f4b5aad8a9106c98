"""Blocks: residual slots around attention, cross-attention and feed-forward.

The attention slot takes any layer with the signature of Attention.forward: attention, linear attention, a state space.
"""

from __future__ import annotations

from torch import Tensor, nn

from qkv.parts.dropout import dropout_layer
from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding
from qkv.parts.state import Layer
from qkv.parts.tap import Tap

MEMORY = "memory_"
"""Prefix of those entries of a layer's state that belong to cross-attention."""


class Residual(nn.Module):
    """after(x + dropout(layer(before(x)))). Pre-norm fills `before`, post-norm fills `after`; the other is Identity.

    There is no forward: a Block calls `layer` itself, since attention and feed-forward take different arguments.
    """

    def __init__(self, layer: nn.Module, before: nn.Module | None = None, after: nn.Module | None = None,
                 dropout: float = 0.0):  # fmt: skip
        super().__init__()
        self.before = before or nn.Identity()
        self.layer = layer
        self.dropout = dropout_layer(dropout)
        self.after = after or nn.Identity()
        self.tap_out, self.tap_stream = Tap(), Tap()  # the sublayer's output, and the residual stream after it

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sublayer's output y to the residual stream x, (B, T, C) both."""
        return self.tap_stream(self.after(x + self.dropout(self.tap_out(y))))


class NoResidual(Residual):
    """after(dropout(layer(before(x)))): a sublayer without a residual connection, whose output replaces the stream."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sublayer's output y (B, T, C) in place of the stream x."""
        return self.tap_stream(self.after(self.dropout(self.tap_out(y))))


class Block(nn.Module):
    """One layer of a stack, x -> attention -> (cross-attention) -> (feed-forward), each with its residual; x is (B, T, C) throughout."""

    def __init__(self, attention: Residual, feedforward: Residual | None = None, cross: Residual | None = None):
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feedforward = feedforward

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                memory_mask: Mask | None = None, state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """Return the residual stream (B, T, C) and the layer's new state, of self- and cross-attention together."""
        y, new = self.attention.layer(self.attention.before(x), mask, encoding, None, state)
        x = self.attention.add(x, y)
        if self.cross is not None:
            # cross-attention gets its own entries only: with none, it computes them from the memory
            past = None if state is None else {name: kept for name, kept in state.items() if name.startswith(MEMORY)}
            y, memory_state = self.cross.layer(self.cross.before(x), memory_mask, None, memory, past)
            x, new = self.cross.add(x, y), {**new, **memory_state}
        if self.feedforward is not None:
            x = self.feedforward.add(x, self.feedforward.layer(self.feedforward.before(x), mask))
        return x, new


class ParallelBlock(nn.Module):
    """x + attention(norm(x)) + feedforward(norm(x)): one norm, both sublayers in parallel (PaLM, GPT-J)."""

    def __init__(self, norm: nn.Module, attention: nn.Module, feedforward: nn.Module, dropout: float = 0.0):
        super().__init__()
        self.norm = norm
        self.attention = attention
        self.feedforward = feedforward
        self.dropout = dropout_layer(dropout)
        self.tap_out, self.tap_stream = Tap(), Tap()

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                memory_mask: Mask | None = None, state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Block.forward; there is no cross-attention."""
        normed = self.norm(x)
        y, new = self.attention(normed, mask, encoding, None, state)
        return self.tap_stream(x + self.dropout(self.tap_out(y + self.feedforward(normed, mask)))), new
