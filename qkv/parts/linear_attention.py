"""Linear attention: the past is a sum of fixed size in place of all its keys and values, so every token costs the same.

    S_t = S_(t-1) + f(k_t) v_t^T          out_t = f(q_t) S_t / sum_(j <= t) f(q_t) . f(k_j)

Linear, Performer and Taylor have different feature maps f: elu(x) + 1, random features, the first terms of exp. The gated one (GLA)
has neither f nor division; each channel of S decays at a rate that the token sets. A whole text is computed chunk by chunk;
generation continues from S as its state.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.attention import Attention
from qkv.parts.masks import Mask
from qkv.parts.norm import RMSNorm
from qkv.parts.positions import PositionEncoding
from qkv.parts.softmax import repeat_heads
from qkv.parts.state import Layer


def wide(x: Tensor) -> torch.dtype:
    """Return float32 or wider: long sums lose their small terms in half precision."""
    return torch.promote_types(x.dtype, torch.float32)


class LinearAttention(Attention):
    """Attention whose mixer, a Linear, carries a sum over all tokens as its state in place of keys and values."""

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Attention.forward: (B, T, C) -> (B, T, C) and the sum over all tokens so far."""
        query = self.split(self.query(x), self.d_key)  # (B, H, T, D_k)
        key = self.split(self.key(x), self.d_key)  # (B, H_kv, T, D_k)
        if encoding is not None and self.mixer.rotates:
            query, key = encoding.rotate(query), encoding.rotate(key)
        query, key = self.tap_query(query), self.tap_key(key)
        value = self.tap_value(self.split(self.value(x)))  # (B, H_kv, T, D)
        past = Sum(state["total"], state["size"]) if state else None
        mixed, total = self.mixer(query, key, value, mask, past)
        y = self.output(self.tap_mixed(mixed).transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, C)
        return y, {} if state is None else total._asdict()


class Sum(NamedTuple):
    """sum_j f(k_j) v_j^T = exp(size) total over the keys so far; `size` is the largest of their sizes, so that nothing overflows."""

    total: Tensor  # (B, H, F, D + 1)
    size: Tensor  # (B, H, 1)

    @classmethod
    def empty(cls, features: Tensor, value: Tensor) -> Sum:
        """Return the sum over no keys, for features (B, H, S, F) and values (B, H, S, D + 1)."""
        batch, heads, _, width = features.shape
        lowest = torch.finfo(features.dtype).min
        return cls(
            features.new_zeros(batch, heads, width, value.size(-1)), features.new_full((batch, heads, 1), lowest)
        )

    def add(self, features: Tensor, sizes: Tensor, value: Tensor) -> Sum:
        """Add S more keys: features (B, H, S, F), sizes (B, H, S), values (B, H, S, D + 1)."""
        top = torch.cat([self.size, sizes], -1).amax(-1, keepdim=True)  # (B, H, 1)
        new = (features * (sizes - top).exp()[..., None]).transpose(-1, -2) @ value  # (B, H, F, D + 1)
        return Sum(self.total * (self.size - top).exp()[..., None] + new, top)


class Linear(nn.Module):
    """out_t = sum_j (f(q_t) . f(k_j)) v_j / sum_j f(q_t) . f(k_j), f(x) = elu(x) + 1 (Katharopoulos et al. 2020).

    The sum over j of f(k_j) v_j^T is formed once, (F, D), and read by every query: O(n). The causal form goes chunk by chunk: what
    came before the chunk is in the running sum, and the pairs within it are compared directly.
    """

    chunk = 128
    summary = Sum
    rotates = True
    """Whether rotary positions rotate its queries and keys; the configuration forbids them with elu(x) + 1, which loses the relative
    position."""

    def features(self, x: Tensor) -> Tensor:
        """Compute elu(x) + 1, which stays above 0 where elu(x) would round to -1: (B, H, S, D) -> (B, H, S, F)."""
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())

    def query_features(self, query: Tensor) -> Tensor:
        """Map (B, H, T, D) -> (B, H, T, F), up to a factor per query, which the division removes."""
        return self.features(query)

    def key_features(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, H, S, D) -> features (B, H, S, F) and sizes (B, H, S), with f(k) = exp(size) features."""
        return self.features(key), key.new_zeros(key.shape[:-1])

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, past: Sum | None = None
                ) -> tuple[Tensor, Sum]:  # fmt: skip
        """Mix: (B, H, T, D_k), (B, H_kv, T, D_k), (B, H_kv, T, D) and the sum before them -> (B, H, T, D) and the sum after."""
        mask.forbid_packing("a linear mixer")
        heads = query.size(1)
        features, sizes, value = self.prepare(repeat_heads(key, heads), repeat_heads(value, heads), mask)
        total = Sum.empty(features, value) if past is None else past
        if not mask.causal:
            total = total.add(features, sizes, value)
            return self.read(query, total), total
        reads = self.query_features(query.to(wide(query)))  # (B, H, T, F)
        mixed, total = self.prefixes(reads, features, sizes, value, total)
        return divide(mixed).to(query.dtype), total

    def prepare(self, key: Tensor, value: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """Prepare the last S keys (B, H, S, D_k) and values (B, H, S, D) of the mask for a sum.

        Return features (B, H, S, F), sizes (B, H, S), and values with a last column of ones (B, H, S, D + 1), which sums the weights.
        """
        dtype = wide(key)
        features, sizes = self.key_features(key.to(dtype))
        real = mask.real if key.size(2) == mask.queries else mask.keys  # in self-attention only the new keys
        if real is not None:
            # next to a real key, padding weighs exp(-huge) = 0; finite, so that a row of padding only is not 0 / 0
            sizes = sizes.masked_fill(~real.to(key.device)[:, None], torch.finfo(dtype).min)
        return features, sizes, F.pad(value.to(dtype), (0, 1), value=1.0)

    def summarise(self, key: Tensor, value: Tensor, mask: Mask) -> Sum:
        """Return the sum over all keys (B, H_kv, S, D_k) and values (B, H_kv, S, D)."""
        features, sizes, value = self.prepare(key, value, mask)
        return Sum.empty(features, value).add(features, sizes, value)

    def read(self, query: Tensor, total: Sum) -> Tensor:
        """Let each query (B, H, T, D_k) read the sum over all keys: (B, H, T, D)."""
        reads = self.query_features(query.to(wide(query)))  # (B, H, T, F)
        return divide(reads @ repeat_heads(total.total, query.size(1))).to(query.dtype)

    def prefixes(self, reads: Tensor, features: Tensor, sizes: Tensor, value: Tensor, total: Sum) -> tuple[Tensor, Sum]:
        """Let each query read the sum before these T tokens and the tokens up to its own: (B, H, T, D + 1) and the new sum."""
        mixed = []
        for q, k, size, v in zip(*(x.split(self.chunk, 2) for x in (reads, features, sizes, value)), strict=True):
            top = torch.cat([total.size, size], -1).cummax(-1).values[..., 1:]  # (B, H, c): largest size so far
            factors = (size[..., None, :] - top[..., None]).masked_fill(future(q), float("-inf")).exp()  # (B, H, c, c)
            inside = (q @ k.transpose(-1, -2) * factors) @ v  # (B, H, c, D + 1): pairs within the chunk
            mixed.append(inside + q @ total.total * (total.size - top).exp()[..., None])
            total = total.add(k, size, v)
        return torch.cat(mixed, 2), total


def divide(mixed: Tensor) -> Tensor:
    """Divide weighted sums by the sums of the weights, their last column: (B, H, T, D + 1) -> (B, H, T, D)."""
    least = torch.finfo(mixed.dtype).tiny ** 0.75  # the sum may underflow to 0; its square, in the gradient, must not
    return mixed[..., :-1] / mixed[..., -1:].clamp(min=least)


def future(query: Tensor) -> Tensor:
    """(c, c): True where key j comes after query i, for queries (..., c, D)."""
    return torch.ones(query.size(-2), query.size(-2), dtype=torch.bool, device=query.device).triu(1)


class Performer(Linear):
    """Approximate softmax attention with random features, FAVOR+ (Choromanski et al. 2021): O(n).

    exp(q . k) = E_w[f(q) . f(k)] with f(x) = exp(w . x - |x|^2 / 2) and normal w. All features are positive, so the output is a
    weighted mean of the values. The w are drawn orthogonal, which lowers the variance, and stay fixed. Rotary positions rotate q
    and k before f: the expectation then depends on relative positions only, and the estimate nearly so, the more features it has.
    """

    def __init__(self, scale: float, d_head: int, n_features: int):
        super().__init__()
        self.scale = scale
        self.register_buffer("projection", orthogonal_normal(n_features, d_head))  # (F, D)

    def project(self, x: Tensor) -> Tensor:
        """Compute w . x, with the root of the scale on x: (B, H, S, D) -> (B, H, S, F)."""
        return x * math.sqrt(self.scale) @ self.projection.to(x.dtype).T  # type: ignore[operator, union-attr]

    def query_features(self, query: Tensor) -> Tensor:
        """Scale the largest feature of each query to 1; this factor, and exp(-|q|^2 / 2), cancel in the division."""
        exponent = self.project(query)
        return (exponent - exponent.amax(-1, keepdim=True)).exp()

    def key_features(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Scale the largest feature of each key to 1 and return the logarithm of the factor apart.

        A factor per key does not cancel in the division. One factor for all keys (their maximum, as is common) would let a later
        key or padding decide what rounds to zero now, so `Sum` scales by the largest of the keys that a query may see.
        """
        exponent = self.project(key) - key.square().sum(-1, keepdim=True) * self.scale / 2  # (B, H, S, F)
        sizes = exponent.detach().amax(-1)  # (B, H, S); detached, as f(k) = exp(sizes) features does not depend on it
        return (exponent - sizes[..., None]).exp(), sizes


def orthogonal_normal(rows: int, width: int) -> Tensor:
    """Draw (rows, width) normal vectors, each orthogonal to the others of its group of `width` rows."""
    groups = -(-rows // width)
    q, r = torch.linalg.qr(torch.randn(groups, width, width))
    # QR has its own convention for signs; with the signs of R's diagonal every direction is equally likely
    directions = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).transpose(-1, -2).flatten(0, 1)[:rows]
    return directions * torch.randn(rows, width).norm(dim=-1, keepdim=True)


class Taylor(Linear):
    """f(q) . f(k) = 1 + s + s^2 / 2 >= 1/2 with s = q . k scale: exp(s) up to its square term (Based, Arora et al. 2024).

    f(x) = [1, x, x x^T / sqrt(2)] has 1 + D + D^2 numbers, so queries and keys are narrow (D_k = 16). It attends to any distance but
    not sharply: Based alternates it with window layers, and only those have rotary positions.
    """

    rotates = False

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def features(self, x: Tensor) -> Tensor:
        """(B, H, S, D) -> (B, H, S, F), F = 1 + D + D^2."""
        x = x * math.sqrt(self.scale)
        squares = (x[..., :, None] * x[..., None, :]).flatten(-2) / math.sqrt(2)  # (B, H, S, D^2)
        return torch.cat([torch.ones_like(x[..., :1]), x, squares], -1)


# --- gated

TEMPERATURE = 16
"""The initial gate is sigmoid(0)^(1/16) = 0.96: after 16 tokens, half of a contribution is left."""
GATE_RANK = 16
FASTEST = -2.0
"""Lower bound of log a (the gate's sigmoid would have to fall below e^-32). `GatedSum.in_chunks` divides by the decay of a chunk,
at least e^(-2 * 32) = e^-64: the quotient stays far below the largest float32, e^88."""


class GatedLinear(Attention):
    """S_t = diag(a_t) S_(t-1) + k_t v_t^T, out_t = q_t S_t / sqrt(D_k) (GLA, Yang et al. 2023).

    a_t = sigmoid(U W x_t + b)^(1/16), U W of low rank, is how much of each channel is kept; y = W_o (norm(out) * silu(W_r x)).
    It needs no position encoding: older tokens have decayed more.
    """

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, d_head: int, bias: str = "all",
                 d_key: int | None = None, eps: float = 1e-3):  # fmt: skip
        super().__init__(d_model, n_heads, n_kv_heads, d_head, GatedSum(), bias, d_key=d_key)
        self.decay_down = nn.Linear(d_model, GATE_RANK, bias=False)  # W
        self.decay_up = nn.Linear(GATE_RANK, n_kv_heads * self.d_key)  # U, b
        self.gate = nn.Linear(d_model, n_heads * d_head, bias != "none")  # W_r
        self.norm = RMSNorm(d_head, eps)

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Attention.forward: (B, T, C) -> (B, T, C) and S after the last token."""
        mask.forbid_packing("mixer 'gated-linear'")
        query = self.tap_query(self.split(self.query(x), self.d_key))  # (B, H, T, D_k)
        key = self.tap_key(self.split(self.key(x), self.d_key))  # (B, H_kv, T, D_k)
        value = self.tap_value(self.split(self.value(x)))  # (B, H_kv, T, D)
        decay = self.split(self.decay_up(self.decay_down(x)), self.d_key)  # (B, H_kv, T, D_k)
        decay = (F.logsigmoid(decay.to(wide(x))) / TEMPERATURE).clamp(min=FASTEST)  # log a_t = log sigmoid(...) / 16
        if mask.real is not None:  # padding adds nothing to S and does not decay it
            padding = ~mask.real.to(x.device)[:, None, :, None]
            key, decay = key.masked_fill(padding, 0.0), decay.masked_fill(padding, 0.0)
        key, value, decay = (repeat_heads(part, query.size(1)) for part in (key, value, decay))
        mixed, total = self.mixer(query * self.d_key**-0.5, key, value, decay, state["total"] if state else None)
        y = self.norm(self.tap_mixed(mixed)).transpose(1, 2).flatten(2) * F.silu(self.gate(x))  # (B, T, H * D)
        return self.output(y), {} if state is None else {"total": total}


class GatedSum(nn.Module):
    """S_t = diag(a_t) S_(t-1) + k_t v_t^T, out_t = q_t S_t, computed token by token or, with the same result, in chunks."""

    chunk = 32

    def __init__(self) -> None:
        super().__init__()
        self.fast = True
        """False: always token by token, the readable path."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, past: Tensor | None = None
                ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Mix: query, key (B, H, T, D_k), value (B, H, T, D), decay = log a (B, H, T, D_k), S before -> (B, H, T, D), S after."""
        dtype = query.dtype
        query, key, value = (x.to(decay.dtype) for x in (query, key, value))
        if past is None:
            past = decay.new_zeros(*query.shape[:2], query.size(-1), value.size(-1))  # (B, H, D_k, D)
        way = self.in_chunks if self.fast and query.size(2) > 1 else self.step_by_step
        mixed, total = way(query, key, value, decay, past)
        return mixed.to(dtype), total

    def step_by_step(self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, total: Tensor
                     ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Compute the equation token by token, which is also one step of generation."""
        mixed = []
        for q, k, v, a in zip(*(x.unbind(2) for x in (query, key, value, decay.exp())), strict=True):  # (B, H, ·)
            total = a[..., None] * total + k[..., None] * v[..., None, :]  # (B, H, D_k, D)
            mixed.append((q[..., None, :] @ total)[..., 0, :])
        return torch.stack(mixed, 2), total

    def in_chunks(self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, total: Tensor
                  ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Compute all chunks of c tokens at once, except for the recurrence from chunk to chunk.

        With b the sum of log a since the chunk began, token j contributes to token i with the factor exp(b_i - b_j) =
        exp(b_i) exp(-b_j): one factor for the queries, one for the keys, as a matrix product needs.
        """
        length = query.size(2)
        q, k, v, a = (
            F.pad(x, (0, 0, 0, -length % self.chunk)).unflatten(2, (-1, self.chunk)) for x in (query, key, value, decay)
        )  # (B, H, N, c, ·); the padding of the last chunk adds nothing and decays nothing
        b = a.cumsum(-2)  # (B, H, N, c, D_k)
        q, end = q * b.exp(), b[..., -1:, :]
        new = (k * (end - b).exp()).transpose(-1, -2) @ v  # (B, H, N, D_k, D): what each chunk adds to S
        before = []  # S before each chunk
        for fade, new_sum in zip(end.exp().transpose(-1, -2).unbind(2), new.unbind(2), strict=True):
            before.append(total)
            total = fade * total + new_sum  # (B, H, D_k, 1) * (B, H, D_k, D)
        pairs = q @ (k * (-b).exp()).transpose(-1, -2)  # (B, H, N, c, c)
        mixed = pairs.masked_fill(future(q), 0.0) @ v + q @ torch.stack(before, 2)
        return mixed.flatten(2, 3)[:, :, :length], total
