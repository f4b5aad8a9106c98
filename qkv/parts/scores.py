"""Attention scores: dot, scaled dot, bilinear, low-rank bilinear, additive (lecture 000); q (B, H, T, D), k (B, H, S, D).

The bilinear ones take queries and keys of different widths, D and E. The multiplicative ones are a dot product with a
transformed ("folded") query, q M k = (q M) . k, so the fast kernel computes them all; the additive one takes the readable path.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


class Dot(nn.Module):
    """score(q, k) = q . k * scale. Its standard deviation grows as sqrt(D), hence scale = 1 / sqrt(D) (Vaswani et al. 2017, 3.2.1)."""

    foldable, plain = True, True
    """Whether the score is a dot product after `fold`, and whether `fold` is the identity."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def fold(self, query: Tensor) -> Tensor:
        """Return the query q' for which score(q, k) = q' . k * scale."""
        return query

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.fold(query) @ key.transpose(-1, -2) * self.scale  # (B, H, T, S)


class Bilinear(Dot):
    """score(q, k) = q W k with one W (D, E) per head (Luong et al. 2015, "general"); k may have a width E other than q's D."""

    plain = False

    def __init__(self, n_heads: int, width: int, key_width: int | None = None):
        super().__init__(1.0)
        identity = torch.eye(width, key_width or width)
        self.weight = nn.Parameter(identity.repeat(n_heads, 1, 1) / math.sqrt(width))

    def fold(self, query: Tensor) -> Tensor:
        return query @ self.weight  # (B, H, T, D) @ (H, D, E)


class LowRankBilinear(Dot):
    """score(q, k) = (U q) . (V k) = q U^T V k: W = U^T V of rank r, with r (D + E) weights in place of D E."""

    plain = False

    def __init__(self, n_heads: int, width: int, rank: int, key_width: int | None = None):
        super().__init__(1.0)
        self.left = nn.Parameter(torch.randn(n_heads, width, rank) * (width * rank) ** -0.25)
        self.right = nn.Parameter(torch.randn(n_heads, rank, key_width or width) * (width * rank) ** -0.25)

    def fold(self, query: Tensor) -> Tensor:
        return query @ self.left @ self.right  # (B, H, T, D) @ (H, D, r) @ (H, r, E)


class Additive(nn.Module):
    """score(q, k) = v . tanh(q + k), where q and k are already projected (Bahdanau et al. 2015)."""

    foldable, plain = False, False

    def __init__(self, n_heads: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_heads, width) / math.sqrt(width))  # v

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, H, T, 1, D) + (B, H, 1, S, D)
        return torch.einsum("bhtsd,hd->bhts", hidden, self.weight)


def make_score(kind: str, n_heads: int, width: int, rank: int | None = None, key_width: int | None = None
               ) -> Dot | Additive:  # fmt: skip
    """Return the score named `kind` for H heads of width D, with keys of width E if that differs (bilinear ones only)."""
    assert kind in ("bilinear", "low-rank") or key_width in (None, width), f"{kind} needs keys as wide as queries"
    if kind == "additive":
        return Additive(n_heads, width)
    if kind == "bilinear":
        return Bilinear(n_heads, width, key_width)
    if kind == "low-rank":
        assert rank is not None
        return LowRankBilinear(n_heads, width, rank, key_width)
    return Dot(1 / math.sqrt(width) if kind == "scaled-dot" else 1.0)


def of_heads(score: Dot | Additive, heads: Tensor) -> Dot | Additive:
    """Return the score of some heads (h,) only: every weight has a row per head."""
    few = copy.copy(score)
    few._parameters = {name: nn.Parameter(w.detach()[heads], False) for name, w in score.named_parameters()}
    return few
