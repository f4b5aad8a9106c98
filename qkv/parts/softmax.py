"""Softmax, the mixer of the 2017 Transformer: all pairs are compared, the readable way beside the fast kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.dropout import Dropout
from qkv.parts.masks import Mask
from qkv.parts.positions import Place
from qkv.parts.scores import Additive, Dot
from qkv.parts.tap import Tap


def repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, H_kv, S, D) -> (B, H, S, D): each key head serves a group of H / H_kv query heads."""
    return x if x.size(1) == n_heads else x.repeat_interleave(n_heads // x.size(1), 1)


class Softmax(nn.Module):
    """softmax(score(Q, K) + position) V: readable, and the same by the fast kernel where that can do it."""

    def __init__(self, score: Dot | Additive, dropout: float = 0.0):
        super().__init__()
        self.score = score
        self.dropout = Dropout(dropout)
        self.tap_weights = Tap()
        self.fast = True
        """False: always the readable path."""
        self.attend = attend
        """What computes it where the kernel can."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, place: Place) -> Tensor:
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        if self.kernel_can(query, place):
            return self.kernel(query, key, value, mask, place)
        weights = self.tap_weights(self.weights(query, key, mask, place))  # (B, H, T, S)
        weights = self.dropout(weights)
        mixed = weights @ repeat_heads(value, query.size(1))  # (B, H, T, D)
        return mixed + place.of_values(weights) if place.weighs_values else mixed

    def weights(self, query: Tensor, key: Tensor, mask: Mask, place: Place) -> Tensor:
        """The attention weights, exact whichever path the forward takes: (B, H, T, S), rows sum to 1."""
        scores = self.score(query, repeat_heads(key, query.size(1)))  # (B, H, T, S)
        bias = place.bias(query)
        scores = scores if bias is None else scores + bias
        return scores.masked_fill(~mask.dense, float("-inf")).softmax(-1)

    def kernel_can(self, query: Tensor, place: Place) -> bool:
        """Whether scaled_dot_product_attention computes this: a foldable score, nobody reading the weights, and no
        dropout on a CPU, where it would leave the flash path and be slower than the readable one."""
        dropping = self.training and self.dropout.p > 0 and not query.is_cuda
        return (
            self.fast and self.score.folds and not place.weighs_values and not self.tap_weights.in_use and not dropping
        )

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, place: Place) -> Tensor:
        bias, query, dropout = place.bias(query), self.score.fold(query), self.dropout.p if self.training else 0.0  # type: ignore[operator]
        if bias is None:
            return self.attend(query, key, value, mask, self.score.scale, dropout)  # type: ignore[arg-type]
        table = bias.masked_fill(~mask.dense, float("-inf"))  # (B or 1, H, T, S)
        return sdpa(query, key, value, table, False, self.score.scale, dropout)  # type: ignore[arg-type]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(Q K^T scale) V by torch's kernel: (B, H, T, D), (B, H_kv, S, D) twice -> (B, H, T, D)."""
    spans = mask.spans(query.size(0)) if mask.documents is not None and query.size(0) == 1 else None
    if spans is None:
        return sdpa(query, key, value, mask.allowed, mask.kernel_causal, scale, dropout)
    cuts = (spans[:, 2] - spans[:, 1]).tolist()  # documents in one row: each by itself, never the table of all pairs
    parts = zip(*(x.split(cuts, 2) for x in (query, key, value)), strict=True)
    return torch.cat([sdpa(q, k, v, None, mask.causal, scale, dropout) for q, k, v in parts], 2)


def sdpa(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float
         ) -> Tensor:  # fmt: skip
    # enable_gqa makes no copy per group: 10 x as fast for one query over 512 keys
    return F.scaled_dot_product_attention(query, key, value, allowed, dropout, causal, scale=scale,
                                          enable_gqa=key.size(1) != query.size(1))  # fmt: skip
