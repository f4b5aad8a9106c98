"""DeBERTa's disentangled attention: scores between contents, from content to position, and from position to content."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.parts.dropout import dropout_layer
from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding, distances
from qkv.parts.softmax import repeat_heads


class Disentangled(nn.Module):
    """score(i, j) = (q_i . k_j + q_i . K_d + Q_d . k_j) / sqrt(3 D), d the distance i - j (He et al. 2021); one instance per layer.

    K = P W_k and Q = P W_q + b project the vectors P (2k, C) of the distances -k ... k - 1; larger distances are clipped to these.
    All layers share P; each has its own W_k and W_q. The paper writes d(j, i) in the third term; its code, and so this
    class, takes i - j in both. The first term is computed by the mixer, whose score must have the same `scale`, 1 / sqrt(3 D).
    """

    def __init__(self, vectors: nn.Parameter, n_heads: int, d_head: int, scale: float, dropout: float = 0.0):
        super().__init__()
        self.vectors = vectors  # P
        self.key = nn.Linear(vectors.size(1), n_heads * d_head, bias=False)
        self.query = nn.Linear(vectors.size(1), n_heads * d_head)
        self.n_heads, self.scale = n_heads, scale
        self.dropout = dropout_layer(dropout)

    def forward(self, mask: Mask) -> PositionEncoding:
        """Project the vectors of the distances that occur in a pass: 2 reach of the 2k."""
        largest = self.vectors.size(0) // 2  # k
        reach = min(mask.length, largest)
        vectors = self.dropout(self.vectors[largest - reach : largest + reach])  # (2 reach, C)
        key, query = (  # (2 reach, C) -> (2 reach, H, D) -> (H, 2 reach, D)
            layer(vectors).unflatten(-1, (self.n_heads, -1)).transpose(0, 1) for layer in (self.key, self.query)
        )
        clipped = (reach - distances(mask)).clamp(0, 2 * reach - 1)  # (B or 1, T, S): index of i - j
        return DistanceVectors(clipped, key, query, self.scale)


def distance_vectors(max_distance: int, width: int) -> nn.Parameter:
    """Return P (2k, C), k = `max_distance`: a vector per distance, which all layers share."""
    return nn.Parameter(torch.randn(2 * max_distance, width) * 0.02)


class DistanceVectors(PositionEncoding):
    """The distances (B or 1, T, S) of one pass as indices 0 ... 2k - 1, with the keys and queries (H, 2k, D) of the distances."""

    def __init__(self, clipped: Tensor, keys: Tensor, queries: Tensor, scale: float):
        self.clipped, self.keys, self.queries, self.scale = clipped, keys, queries, scale

    def score_bias(self, query: Tensor, key: Tensor) -> Tensor:
        key = repeat_heads(key, query.size(1))  # (B, H, S, D)
        to_position = query @ self.keys.transpose(-1, -2).to(query.dtype)  # (B, H, T, 2k)
        from_position = key @ self.queries.transpose(-1, -2).to(key.dtype)  # (B, H, S, 2k)
        index = self.clipped[:, None].expand(query.size(0), query.size(1), -1, -1)  # (B, H, T, S)
        both = to_position.gather(-1, index) + from_position.gather(-1, index.transpose(-1, -2)).transpose(-1, -2)
        return both * self.scale  # (B, H, T, S)

    def select(self, heads: Tensor, rows: Tensor) -> PositionEncoding:
        return DistanceVectors(self.clipped[:, rows], self.keys[heads], self.queries[heads], self.scale)
