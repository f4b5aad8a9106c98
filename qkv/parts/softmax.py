"""Softmax attention, the mixer of the 2017 Transformer: as a readable formula, and with torch's fused kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.dropout import Dropout
from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding
from qkv.parts.scores import Additive, Dot
from qkv.parts.tap import Tap


def repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, H_kv, S, D) -> (B, H, S, D): each key head serves a group of H / H_kv query heads."""
    return x if x.size(1) == n_heads else x.repeat_interleave(n_heads // x.size(1), 1)


class Softmax(nn.Module):
    """softmax(score(Q, K) + position bias) V, with the fused kernel where it supports score, encoding and dropout."""

    def __init__(self, score: Dot | Additive, dropout: float = 0.0):
        super().__init__()
        self.score = score
        self.dropout = Dropout(dropout)
        self.tap_weights = Tap()
        self.fast = True
        """False: never use the kernel."""
        self.attend: Callable[..., Tensor] = attend
        """The kernel; engine/training_kernels.py puts a faster one here."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, encoding: PositionEncoding | None = None
                ) -> Tensor:  # fmt: skip
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        if not self.can_use_kernel(query, encoding):
            return self.readable(query, key, value, mask, encoding)
        bias = None if encoding is None else encoding.score_bias(query, key)  # (B or 1, H, T, S)
        score: Dot = self.score  # type: ignore[assignment]
        query = query if score.plain else score.fold(query)
        scale, dropout = score.scale, self.dropout.p if self.training else 0.0
        if bias is None:
            return self.attend(query, key, value, mask, scale, dropout)
        return attend(query, key, value, mask, scale, dropout, bias)

    def can_use_kernel(self, query: Tensor, encoding: PositionEncoding | None = None) -> bool:
        """Whether the kernel supports this: a score that is a dot product of (transformed) queries and keys, no hook on the
        weights, no position term on the values, and no dropout on a CPU, where torch's kernel with dropout is slower than
        the formula."""
        dropping = self.training and self.dropout.p > 0 and not query.is_cuda
        biased = encoding is not None and encoding.weighs_values
        return self.fast and self.score.foldable and not biased and not self.tap_weights._forward_hooks and not dropping

    def readable(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, encoding: PositionEncoding | None
                 ) -> Tensor:  # fmt: skip
        """Compute the formula step by step; tests compare the kernel with it."""
        weights = self.tap_weights(self.weights(query, key, mask, encoding))  # (B, H, T, S)
        weights = self.dropout(weights)
        mixed = weights @ repeat_heads(value, query.size(1))  # (B, H, T, D)
        return mixed if encoding is None or not encoding.weighs_values else mixed + encoding.value_bias(weights)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, encoding: PositionEncoding | None = None) -> Tensor:
        """Return the attention weights (B, H, T, S), rows sum to 1; the kernel computes the same but does not return them."""
        scores = self.score(query, repeat_heads(key, query.size(1)))  # (B, H, T, S)
        bias = None if encoding is None else encoding.score_bias(query, key)
        scores = scores if bias is None else scores + bias
        return scores.masked_fill(~mask.dense, float("-inf")).softmax(-1)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float = 0.0,
           bias: Tensor | None = None) -> Tensor:  # fmt: skip
    """Compute softmax(Q K^T scale + bias) V with torch's kernel: (B, H, T, D), (B, H_kv, S, D) twice -> (B, H, T, D)."""
    if bias is None and mask.documents is not None and len(query) == 1 and mask.keys is None:
        return attend_documents(query, key, value, mask, scale, dropout)
    table, causal = mask.kernel if bias is None else (bias.masked_fill(~mask.dense, float("-inf")), False)
    # enable_gqa makes no copy per group: 10 x as fast for one query over 512 keys
    return F.scaled_dot_product_attention(query, key, value, table, dropout, causal, scale=scale,
                                          enable_gqa=key.size(1) != query.size(1))  # fmt: skip


def attend_documents(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
    """Attend within each document of a single packed row, (1, H, T, D), without the table of all pairs."""
    lengths = (mask.document_spans[:, 2] - mask.document_spans[:, 1]).tolist()
    parts = zip(*(x.split(lengths, 2) for x in (query, key, value)), strict=True)
    outputs = [attend(q, k, v, Mask(q.size(2), causal=mask.causal), scale, dropout) for q, k, v in parts]
    return torch.cat(outputs, 2)  # (1, H, T, D)
