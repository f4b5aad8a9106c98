"""Mixers: how scores become an average of the values. Each takes and returns heads, (B, H, T, D).

Softmax (softmax.py) compares all pairs, O(n^2). Those here cost less: Window attends to neighbours, Linformer and Compressed shorten
the keys and values; those of linear_attention.py never form the scores at all. Positions among them are those of the real
tokens (`mask.key_positions`), so padding on either side changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding
from qkv.parts.softmax import repeat_heads
from qkv.parts.tap import Tap


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """softmax over the allowed keys; a row without any, which is padding, sees all: no 0 / 0."""
    allowed = allowed | ~allowed.any(-1, keepdim=True)
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1)


def packing(mask: Mask, device: torch.device) -> Tensor | None:
    """(B, S): which key stands at each place once real tokens come first, in order; None = they already do."""
    order = to_front(mask.keys)
    return None if order is None else order.to(device)


def to_front(real: Tensor | None) -> Tensor | None:
    """(B, S): which of the tokens `real` (B, S) stands at each place once the real ones come first, in order."""
    if real is None or bool((real[:, 1:] <= real[:, :-1]).all()):  # padded on the right
        return None
    return real.int().argsort(dim=-1, descending=True, stable=True)


def arrange(x: Tensor, order: Tensor | None) -> Tensor:
    """(B, H, S, D) with its places in the given order (B, S)."""
    return x if order is None else x.take_along_dim(order[:, None, :, None], 2)


def real_lengths(mask: Mask, device: torch.device) -> Tensor:
    """(1 or B,): how many keys are real."""
    return torch.tensor([mask.length], device=device) if mask.keys is None else mask.keys.sum(-1).to(device)


def pack(x: Tensor, mask: Mask) -> Tensor:
    """(B, H, S, D): each real token at its own position, zeros for padding after them."""
    if mask.keys is None:
        return x
    places = torch.arange(x.size(2), device=x.device)
    padding = places >= real_lengths(mask, x.device)[:, None]  # (B, S)
    return arrange(x, packing(mask, x.device)).masked_fill(padding[:, None, :, None], 0.0)


class Window(nn.Module):
    """Each query sees the keys at most `size` places away (Longformer, Beltagy et al. 2020): O(n size), not O(n^2).

    The first `n_global` tokens see all and are seen by all, the causal rule still holding. They share the others'
    projections (Longformer gives them their own).
    """

    def __init__(self, scale: float, size: int, n_global: int = 0):
        super().__init__()
        self.scale, self.size, self.n_global = scale, size, n_global
        self.tap_weights = Tap()
        self.fast = True
        """False: always the readable path."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, encoding: PositionEncoding | None = None
                ) -> Tensor:  # fmt: skip
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        key, value = repeat_heads(key, query.size(1)), repeat_heads(value, query.size(1))  # (B, H, S, D)
        # a few queries, such as one step of generation, take the whole (T, S) table: T is small; so do packed documents
        local = self.fast and not self.tap_weights._forward_hooks and mask.documents is None
        if local and query.size(2) > 3 * self.size:
            return self.band(query, key, value, mask)
        return self.tap_weights(self.weights(query, key, mask)) @ value

    def weights(self, query: Tensor, key: Tensor, mask: Mask, encoding: PositionEncoding | None = None) -> Tensor:
        """The readable path: all scores, and a table of those that count. (B, H, T, S)."""
        scores = query @ repeat_heads(key, query.size(1)).transpose(-1, -2) * self.scale  # (B, H, T, S)
        rows, columns = mask.positions[:, None, :, None], mask.key_positions[:, None, None, :]
        near = (rows - columns).abs() <= self.size  # (1 or B, 1, T, S)
        everywhere = (rows < self.n_global) | (columns < self.n_global)
        return masked_softmax(scores, (mask.dense & (near | everywhere)).to(scores.device))

    def band(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """The same in blocks of `size` queries: a block sees itself, the block before and the one after."""
        queries, length = query.size(2), key.size(2)
        order = packing(mask, query.device)
        query = arrange(F.pad(query, (0, 0, length - queries, 0)), order)  # (B, H, S, D), the cached ones as zeros
        key, value = arrange(key, order), arrange(value, order)
        real = real_lengths(mask, query.device)[:, None, None, None]  # (1 or B, 1, 1, 1)

        mixed = self.local(query, key, value, real, mask.causal)  # (B, H, S, D)
        if self.n_global:
            first = self.central(query[:, :, : self.n_global], key, value, real, mask.causal)
            mixed = torch.cat([first, mixed[:, :, self.n_global :]], 2)
        mixed = mixed if order is None else arrange(mixed, order.argsort(dim=-1))
        return mixed[:, :, length - queries :]

    def local(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor, causal: bool) -> Tensor:
        """All queries on their windows and on the global keys: (B, H, S, D)."""
        length, size = query.size(2), self.size
        extra = -length % size  # places that fill the last block
        blocks = F.pad(query * self.scale, (0, 0, 0, extra)).unflatten(2, (-1, size))  # (B, H, N, size, D)
        around_key, around_value = (
            F.pad(x, (0, 0, size, size + extra)).unfold(2, 3 * size, size) for x in (key, value)
        )  # (B, H, N, D, 3 size): a view, the blocks overlap
        global_key, global_value = (x[:, :, None, : self.n_global] for x in (key, value))  # (B, H, 1, G, D)
        scores = torch.cat([blocks @ around_key, blocks @ global_key.transpose(-1, -2)], -1)
        allowed = self.band_table(blocks.size(2), global_key.size(3), real[..., None], causal)
        weights = masked_softmax(scores, allowed)  # (B, H, N, size, 3 size + G)
        of_window, of_global = weights.split([3 * size, global_key.size(3)], -1)
        mixed = of_window @ around_value.transpose(-1, -2) + of_global @ global_value  # (B, H, N, size, D)
        return mixed.flatten(2, 3)[:, :, :length]  # (B, H, S, D)

    def band_table(self, n_blocks: int, n_global: int, real: Tensor, causal: bool) -> Tensor:
        """(1 or B, 1, N, size, 3 size + G): who sees whom in `local`; a global key counts once, among the last G."""
        size, device = self.size, real.device
        rows = torch.arange(n_blocks * size, device=device).view(n_blocks, size, 1)
        around = torch.arange(-size, (n_blocks + 1) * size, device=device).unfold(0, 3 * size, size)  # (N, 3 size)
        first = torch.arange(n_global, device=device).expand(n_blocks, n_global)  # (N, G)
        columns = torch.cat([around, first], -1)[:, None]  # (N, 1, 3 size + G)
        near = ((rows - columns).abs() <= size) & (columns >= n_global)  # (N, size, 3 size + G)
        near[..., 3 * size :] = True
        near = near & (columns <= rows) if causal else near
        return near & (columns < real)

    def central(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor, causal: bool) -> Tensor:
        """The global queries (B, H, G, D), the first ones, on all keys: (B, H, G, D)."""
        columns = torch.arange(key.size(2), device=key.device)
        allowed = columns < real  # (1 or B, 1, 1, S)
        if causal:
            allowed = allowed & (columns <= torch.arange(query.size(2), device=key.device)[:, None])
        return masked_softmax(query @ key.transpose(-1, -2) * self.scale, allowed) @ value


class Short(NamedTuple):
    """The keys and values of Linformer."""

    short_key: Tensor  # (B, H_kv, rank, D)
    short_value: Tensor  # (B, H_kv, rank, D)


class Linformer(nn.Module):
    """softmax(Q (E K)^T) F V: learned E, F (rank, n) make n keys and values into `rank` (Wang et al. 2020): O(n rank).

    Each of the `rank` rows mixes all positions, the future with the past: there is no causal form.
    """

    summary = Short

    def __init__(self, scale: float, max_length: int, rank: int):
        super().__init__()
        self.scale, self.max_length = scale, max_length
        # a sum over n keys then has about the size of one key
        self.project_key = nn.Parameter(torch.randn(rank, max_length) / math.sqrt(max_length))  # E
        self.project_value = nn.Parameter(torch.randn(rank, max_length) / math.sqrt(max_length))  # F

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, encoding: PositionEncoding | None = None
                ) -> Tensor:  # fmt: skip
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        if mask.causal:
            raise ValueError("linformer mixes all positions, so it cannot be causal")
        mask.forbid_packing("mixer 'linformer'")
        return self.read(query, self.summarise(key, value, mask))

    def summarise(self, key: Tensor, value: Tensor, mask: Mask) -> Short:
        """(B, H_kv, S, D) twice -> (B, H_kv, rank, D) twice."""
        return Short(self.shorten(key, self.project_key, mask), self.shorten(value, self.project_value, mask))

    def read(self, query: Tensor, short: Short) -> Tensor:
        """(B, H, T, D) and the shortened keys and values -> (B, H, T, D)."""
        scores = query @ repeat_heads(short.short_key, query.size(1)).transpose(-1, -2) * self.scale  # (B, H, T, rank)
        return scores.softmax(-1) @ repeat_heads(short.short_value, query.size(1))

    def shorten(self, x: Tensor, projection: Tensor, mask: Mask) -> Tensor:
        """(B, H, S, D) -> (B, H, rank, D); padding is zeros and so adds nothing."""
        if x.size(2) > self.max_length:
            longest = int(real_lengths(mask, x.device).max())
            if longest > self.max_length:
                raise QkvError(f"a sequence of {longest} tokens, but linformer's projections end at {self.max_length}")
        x = pack(x, mask)[:, :, : self.max_length]
        return projection[:, : x.size(2)] @ x
