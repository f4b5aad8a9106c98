"""Mixers: how scores become an average of the values. Each takes and returns heads, (B, H, T, D).

Softmax (softmax.py) compares all pairs, O(n^2). Those here cost less: Window looks at neighbours, Linformer and Compressed shorten
the keys and values, Linear and Performer never form the scores at all. Positions among them are those of the real
tokens (`mask.key_positions`), so padding on either side changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.masks import Mask, padded_right
from qkv.parts.positions import Place
from qkv.parts.softmax import repeat_heads
from qkv.parts.tap import Tap


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """softmax over the allowed keys; a row without any, which is padding, sees all: no 0 / 0."""
    allowed = allowed | ~allowed.any(-1, keepdim=True)
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1)


def packing(mask: Mask, device: torch.device) -> Tensor | None:
    """(B, S): which key stands at each place once real tokens come first, in order; None = they already do."""
    if mask.keys is None or padded_right(mask.keys):
        return None
    return mask.keys.int().argsort(dim=-1, descending=True, stable=True).to(device)


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

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, place: Place) -> Tensor:
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        key, value = repeat_heads(key, query.size(1)), repeat_heads(value, query.size(1))  # (B, H, S, D)
        # a few queries, such as one step of generation, take the whole (T, S) table: T is small; so do packed documents
        local = self.fast and not self.tap_weights.in_use and mask.documents is None
        if local and query.size(2) > 3 * self.size:
            return self.band(query, key, value, mask)
        return self.tap_weights(self.weights(query, key, mask, place)) @ value

    def weights(self, query: Tensor, key: Tensor, mask: Mask, place: Place) -> Tensor:
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


class Linformer(nn.Module):
    """softmax(Q (E K)^T) F V: learned E, F (rank, n) make n keys and values into `rank` (Wang et al. 2020): O(n rank).

    Each of the `rank` rows mixes all positions, the future with the past: there is no causal form.
    """

    def __init__(self, scale: float, max_length: int, rank: int):
        super().__init__()
        self.scale, self.max_length = scale, max_length
        # a sum over n keys then has about the size of one key
        self.project_key = nn.Parameter(torch.randn(rank, max_length) / math.sqrt(max_length))  # E
        self.project_value = nn.Parameter(torch.randn(rank, max_length) / math.sqrt(max_length))  # F

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, place: Place) -> Tensor:
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        if mask.causal:
            raise ValueError("linformer mixes all positions, so it cannot be causal")
        mask.one_document("mixer 'linformer'")
        key, value = self.shorten(key, self.project_key, mask), self.shorten(value, self.project_value, mask)
        scores = query @ repeat_heads(key, query.size(1)).transpose(-1, -2) * self.scale  # (B, H, T, rank)
        return scores.softmax(-1) @ repeat_heads(value, query.size(1))

    def shorten(self, x: Tensor, projection: Tensor, mask: Mask) -> Tensor:
        """(B, H, S, D) -> (B, H, rank, D); padding is zeros and so adds nothing."""
        if x.size(2) > self.max_length:
            longest = int(real_lengths(mask, x.device).max())
            if longest > self.max_length:
                raise QkvError(f"a sequence of {longest} tokens, but linformer's projections end at {self.max_length}")
        x = pack(x, mask)[:, :, : self.max_length]
        return projection[:, : x.size(2)] @ x


class Linear(nn.Module):
    """out_t = sum_j (f(q_t) . f(k_j)) v_j / sum_j f(q_t) . f(k_j), f(x) = elu(x) + 1 (Katharopoulos et al. 2020).

    The sum over j of f(k_j) v_j^T is formed once, (F, D), and read by every query: O(n). The causal form carries it
    along in chunks: what came before a chunk is in the running sum, what is inside is compared pair by pair.
    """

    chunk = 128

    def features(self, x: Tensor) -> Tensor:
        """elu(x) + 1 > 0, also where elu(x) would round to -1: (B, H, S, D) -> (B, H, S, F)."""
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())

    def query_features(self, query: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, H, T, F), up to a factor per query, which the division removes."""
        return self.features(query)

    def key_features(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, S, D) -> (B, H, S, F) and the logarithm of a factor per key (B, H, S): f(k) = exp(size) features."""
        return self.features(key), key.new_zeros(key.shape[:-1])

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, place: Place) -> Tensor:
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        mask.one_document("a linear mixer")
        dtype, heads = query.dtype, query.size(1)
        wide = torch.promote_types(dtype, torch.float32)  # long sums drown in half precision
        reads = self.query_features(query.to(wide))  # (B, H, T, F)
        features, sizes = self.key_features(repeat_heads(key, heads).to(wide))  # (B, H, S, F), (B, H, S)
        if mask.keys is not None:
            # beside any real key padding then weighs exp(-infinity) = 0; finite, so that alone it is no 0 / 0
            sizes = sizes.masked_fill(~mask.keys.to(key.device)[:, None], torch.finfo(wide).min)
        value = repeat_heads(value, heads).to(wide)
        value = F.pad(value, (0, 1), value=1.0)  # (B, H, S, D + 1): the last column sums the weights themselves

        past = key.size(2) - query.size(2) if mask.causal else key.size(2)  # keys that every query sees
        memory = Sum.empty(features, value).add(features[:, :, :past], sizes[:, :, :past], value[:, :, :past])
        if mask.causal:
            mixed = self.prefixes(reads, features[:, :, past:], sizes[:, :, past:], value[:, :, past:], memory)
        else:
            mixed = reads @ memory.total  # (B, H, T, D + 1)
        least = torch.finfo(wide).tiny ** 0.75  # extreme queries and keys may round to 0; gradients divide twice
        return (mixed[..., :-1] / mixed[..., -1:].clamp(min=least)).to(dtype)

    def prefixes(self, reads: Tensor, features: Tensor, sizes: Tensor, value: Tensor, memory: Sum) -> Tensor:
        """Each query on what came before these T tokens and on the tokens up to its own: (B, H, T, D + 1)."""
        mixed = []
        for q, k, size, v in zip(*(x.split(self.chunk, 2) for x in (reads, features, sizes, value)), strict=True):
            top = torch.cat([memory.size, size], -1).cummax(-1).values[..., 1:]  # (B, H, c): largest so far
            future = torch.ones(q.size(2), q.size(2), dtype=torch.bool, device=q.device).triu(1)
            factors = (size[..., None, :] - top[..., None]).masked_fill(future, float("-inf")).exp()  # (B, H, c, c)
            inside = (q @ k.transpose(-1, -2) * factors) @ v
            mixed.append(inside + q @ memory.total * (memory.size - top).exp()[..., None])
            memory = memory.add(k, size, v)
        return torch.cat(mixed, 2)


class Sum(NamedTuple):
    """sum_j f(k_j) v_j^T = exp(size) total over the keys so far, where `size` is the largest of theirs."""

    total: Tensor  # (B, H, F, D + 1)
    size: Tensor  # (B, H, 1)

    @classmethod
    def empty(cls, features: Tensor, value: Tensor) -> Sum:
        batch, heads, _, width = features.shape
        lowest = torch.finfo(features.dtype).min
        return cls(
            features.new_zeros(batch, heads, width, value.size(-1)), features.new_full((batch, heads, 1), lowest)
        )

    def add(self, features: Tensor, sizes: Tensor, value: Tensor) -> Sum:
        top = torch.cat([self.size, sizes], -1).amax(-1, keepdim=True)  # (B, H, 1)
        new = (features * (sizes - top).exp()[..., None]).transpose(-1, -2) @ value  # (B, H, F, D + 1)
        return Sum(self.total * (self.size - top).exp()[..., None] + new, top)


class Performer(Linear):
    """Softmax attention by random features, FAVOR+ (Choromanski et al. 2021): O(n).

    exp(q . k) = E[f(q) . f(k)] with f(x) = exp(w . x - |x|^2 / 2) over normal w; positive, so the average is one.
    The w are drawn orthogonal, which lowers the variance, and stay fixed.
    """

    def __init__(self, scale: float, d_head: int, n_features: int):
        super().__init__()
        self.scale = scale
        self.register_buffer("projection", orthogonal_normal(n_features, d_head))  # (F, D)

    def project(self, x: Tensor) -> Tensor:
        """w . x with the root of the scale on each side: (B, H, S, D) -> (B, H, S, F)."""
        return x * math.sqrt(self.scale) @ self.projection.to(x.dtype).T  # type: ignore[operator, union-attr]

    def query_features(self, query: Tensor) -> Tensor:
        """The largest feature of each query is made 1; that factor, and exp(-|q|^2 / 2), cancel in the division."""
        exponent = self.project(query)
        return (exponent - exponent.amax(-1, keepdim=True)).exp()

    def key_features(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """The largest feature of each key is made 1 and its logarithm kept apart.

        A factor per key does not cancel, and one shared by all keys (their maximum, as is common) would let a later key
        or padding decide what rounds to zero now. So `Sum` scales by the largest of the keys a query may see.
        """
        exponent = self.project(key) - key.square().sum(-1, keepdim=True) * self.scale / 2  # (B, H, S, F)
        sizes = exponent.detach().amax(-1)  # a constant: whatever it is, the product f(k) is the same
        return (exponent - sizes[..., None]).exp(), sizes


def orthogonal_normal(rows: int, width: int) -> Tensor:
    """(rows, width): each row normal, orthogonal to the others of its group of `width` rows."""
    groups = -(-rows // width)
    q, r = torch.linalg.qr(torch.randn(groups, width, width))
    # QR fixes the signs by its own rule; those of R's diagonal make every direction equally likely
    directions = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).transpose(-1, -2).flatten(0, 1)[:rows]
    return directions * torch.randn(rows, width).norm(dim=-1, keepdim=True)


class Compressed(nn.Module):
    """Attention on keys and values shortened by a strided convolution (Liu et al. 2018): O(n^2 / stride).

    Slot s holds the positions from s * stride to (s + 1) * stride - 1. Its vector is their sum, each through a (D, D)
    matrix of its place and key head; with fresh matrices it is the average of the slot's tokens.

    Without the causal rule a query sees every slot that holds a token. With it, one sees the slots that are complete
    at its position and, as they are, the tokens of the next one up to itself: all of the past, nothing of the future.
    """

    def __init__(self, scale: float, n_kv_heads: int, d_head: int, stride: int):
        super().__init__()
        self.scale, self.stride = scale, stride
        average = torch.eye(d_head).repeat(n_kv_heads, stride, 1, 1) / stride  # (H_kv, stride, D, D)
        self.key_kernel, self.value_kernel = nn.Parameter(average), nn.Parameter(average.clone())

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, place: Place) -> Tensor:
        """(B, H, T, D), (B, H_kv, S, D), (B, H_kv, S, D) -> (B, H, T, D)."""
        mask.one_document("mixer 'compressed'")
        heads, device = query.size(1), query.device
        key, value = self.slots(pack(key, mask)), self.slots(pack(value, mask))  # (B, H_kv, N, stride, D)
        short_key = repeat_heads(convolve(key, self.key_kernel), heads)  # (B, H, N, D)
        short_value = repeat_heads(convolve(value, self.value_kernel), heads)
        query = query * self.scale
        scores = query @ short_key.transpose(-1, -2)  # (B, H, T, N)
        slots = torch.arange(key.size(2), device=device)
        if not mask.causal:
            filled = slots * self.stride < real_lengths(mask, device)[:, None, None, None]  # (1 or B, 1, 1, N)
            return masked_softmax(scores, filled) @ short_value

        positions = mask.positions.to(device)[:, None, :, None]  # (1 or B, 1, T, 1)
        complete = (positions + 1) // self.stride  # how many slots end at or before each query
        next_slot = complete.clamp(max=key.size(2) - 1)[..., None]  # (1 or B, 1, T, 1, 1)
        next_key = repeat_heads(key.take_along_dim(next_slot, 2), heads)  # (B, H, T, stride, D)
        next_value = repeat_heads(value.take_along_dim(next_slot, 2), heads)
        next_scores = (next_key * query[..., None, :]).sum(-1)  # (B, H, T, stride)
        begun = complete * self.stride + torch.arange(self.stride, device=device) <= positions  # (1 or B, 1, T, stride)
        allowed = torch.cat([slots < complete, begun], -1)
        weights = masked_softmax(torch.cat([scores, next_scores], -1), allowed)  # (B, H, T, N + stride)
        of_slots, of_tokens = weights.split([key.size(2), self.stride], -1)
        return of_slots @ short_value + (of_tokens[..., None] * next_value).sum(-2)

    def slots(self, x: Tensor) -> Tensor:
        """(B, H_kv, S, D) -> (B, H_kv, N, stride, D), the last slot filled up with zeros."""
        return F.pad(x, (0, 0, 0, -x.size(2) % self.stride)).unflatten(2, (-1, self.stride))


def convolve(slots: Tensor, kernel: Tensor) -> Tensor:
    """The convolution: (B, H_kv, N, stride, D), (H_kv, stride, D, D) -> (B, H_kv, N, D)."""
    return torch.einsum("bhnrd,hrde->bhne", slots, kernel)
