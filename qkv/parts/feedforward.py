"""Feed-forward layers: the part of a block that is not an average (claim C6)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.dropout import dropout_layer
from qkv.parts.masks import Mask
from qkv.parts.tap import Tap


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by GPT-2's approximation, x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. A function rather than a partial,
    so that a copy of a network has the same one, which the engine recognises."""
    return F.gelu(x, approximate="tanh")


def identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": gelu_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
    "bilinear": identity,
    "linear": identity,
}

GATED = {"reglu": "relu", "geglu": "gelu", "geglu-tanh": "gelu-tanh", "swiglu": "silu", "bilinear": "bilinear"}
"""Gated kinds and the activation of their gate (Shazeer 2020)."""


class FeedForward(nn.Module):
    """down(f(up(x))), or down(f(gate(x)) * up(x)) when gated; x is (B, T, C), the inside (B, T, d_ff)."""

    def __init__(self, d_model: int, d_ff: int, kind: str, bias: bool = True, dropout: float = 0.0):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias)
        self.gate = nn.Linear(d_model, d_ff, bias) if kind in GATED else None
        self.down = nn.Linear(d_ff, d_model, bias)
        self.activation = ACTIVATIONS[GATED.get(kind, kind)]
        self.dropout = dropout_layer(dropout)
        self.tap_inner = Tap()

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C), or (N, C) -> (N, C); `mask` is for layers that treat padding apart (Experts)."""
        if self.gate is None:
            inner = self.activation(self.up(x))  # (B, T, d_ff)
        else:
            inner = self.activation(self.gate(x)) * self.up(x)  # (B, T, d_ff)
        return self.down(self.dropout(self.tap_inner(inner)))
