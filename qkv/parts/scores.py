"""Attention scores, lecture 000's five: dot, scaled dot, bilinear, low-rank bilinear, additive; q (B, H, T, D), k (B, H, S, D).
The bilinear ones take queries and keys of different widths, D and E.

The multiplicative ones are a dot product after the query has been changed ("folded"), q M k = (q M) . k, so the fast
kernel serves them all. The additive one is not, and takes the readable path.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


class Dot(nn.Module):
    """score(q, k) = q . k * scale. It grows with the width (lecture 000: 8, 12, 20), hence scale = 1/sqrt(D)."""

    foldable, plain = True, True
    """Whether the score is a dot product after the query is folded, and whether folding changes nothing."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def fold(self, query: Tensor) -> Tensor:
        """Return the query q' for which score(q, k) = q' . k * scale."""
        return query

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.fold(query) @ key.transpose(-1, -2) * self.scale  # (B, H, T, S)


class Bilinear(Dot):
    """score(q, k) = q W k with one W (D, E) per head (Luong et al. 2015, "general"); k may have another width E than q."""

    plain = False

    def __init__(self, n_heads: int, width: int, key_width: int | None = None):
        super().__init__(1.0)
        identity = torch.eye(width, key_width or width)
        self.weight = nn.Parameter(identity.repeat(n_heads, 1, 1) / math.sqrt(width))

    def fold(self, query: Tensor) -> Tensor:
        return query @ self.weight  # (B, H, T, D) @ (H, D, E)


class LowRankBilinear(Dot):
    """score(q, k) = (U q) . (V k) = q U^T V k: W of rank r, r (D + E) weights in place of D E."""

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
        inside = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, H, T, S, D)
        return torch.einsum("bhtsd,hd->bhts", inside, self.weight)


def make_score(kind: str, n_heads: int, width: int, rank: int | None = None, key_width: int | None = None
               ) -> Dot | Additive:  # fmt: skip
    """Return the score of that name for H heads of width D, and keys of width E if that differs (bilinear ones only)."""
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
    """Return the score of some heads (h,) alone: all its weights have one row per head."""
    few = copy.copy(score)
    few._parameters = {name: nn.Parameter(w.detach()[heads], False) for name, w in score.named_parameters()}
    return few
