"""Position schemes: sinusoidal, learned, rotary, relative, T5 bias, ALiBi; DeBERTa's is in disentangled.py, lecture 004's
candidates and learned rotations are in position_candidates.py.

Each acts on the embeddings, on queries and keys, or on the scores. A scheme is called once per forward pass, `scheme(mask)`, and
returns a PositionEncoding that every layer uses.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.masks import Mask


class PositionEncoding:
    """What a scheme contributes to one pass; this one nothing. Schemes override what they need; None stands for no scheme."""

    weighs_values = False
    """Whether `value_bias` adds something, for which the attention weights must be formed."""

    def add_to_input(self, x: Tensor) -> Tensor:
        """Change the input (B, T, C) of a block."""
        return x

    def rotate(self, x: Tensor) -> Tensor:
        """Change queries or new keys (B, H, T, D)."""
        return x

    def score_bias(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Return what is added to the scores of query (B, H, T, D) and key (B, H_kv, S, D): (B or 1, H, T, S)."""
        return None

    def value_bias(self, weights: Tensor) -> Tensor:
        """Return what is added to the mixed values (B, H, T, D), given the attention weights (B, H, T, S)."""
        raise NotImplementedError

    def select(self, heads: Tensor, rows: Tensor) -> PositionEncoding:
        """Return what is added to the scores of some heads (h,) and queries (r,) alone."""
        return self


def sinusoids(positions: Tensor, width: int, base: float = 10_000.0, layout: str = "interleaved") -> Tensor:
    """P(t, 2i) = sin(t / base^(2i/width)), P(t, 2i+1) = cos(the same) (Vaswani et al. 2017); (..., T) -> (..., T, width).

    An odd width drops the last cosine, which is lecture 004's table for width 5. The base is a setting: lecture 003
    uses 100,000, the paper 10,000.
    """
    if positions.is_meta:  # a network on the meta device has shapes only
        return positions.new_empty((*positions.shape, width), dtype=torch.float32)
    half, device = (width + 1) // 2, positions.device
    exact = torch.device("cpu") if device.type == "mps" else device  # has no float64
    rates = base ** (-torch.arange(half, dtype=torch.float64, device=exact) * 2 / width)
    angles = positions.to(exact)[..., None].double() * rates  # (..., T, half)
    if layout == "halves":
        return torch.cat([angles.sin(), angles.cos()], -1)[..., :width].float().to(device)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :width].float().to(device)


class Fixed(nn.Module):
    """A module whose buffers stay float32 in a half-precision network, where position 1000 times a rounded rate would be another
    angle; they still move between devices."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        exact = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in exact.items():
            if not buffer.is_meta:
                self._buffers[name] = buffer.to(self._buffers[name].device)  # type: ignore[union-attr]
        return self


class Sinusoidal(Fixed):
    """A fixed wave per channel. P(t + c) is a rotation of P(t) that depends on c alone (claim C9)."""

    def __init__(self, width: int, base: float = 10_000.0, layout: str = "interleaved"):
        super().__init__()
        self.width, self.base, self.layout = width, base, layout
        self.register_buffer("table", sinusoids(torch.arange(512), width, base, layout), persistent=False)

    def vectors(self, mask: Mask) -> Tensor:
        """Return the vectors of the queries of a pass: (B or 1, T, width)."""
        table: Tensor = self.table  # type: ignore[assignment]
        if mask.length > table.size(0):
            return sinusoids(mask.positions, self.width, self.base, self.layout)
        return table[mask.positions]

    def forward(self, mask: Mask) -> PositionEncoding:
        return InputVectors(self.vectors(mask))


class Learned(nn.Module):
    """One learned vector per position; `offset` rows at the start are never used (BART, RoBERTa)."""

    def __init__(self, length: int, width: int, offset: int = 0):
        super().__init__()
        self.table = nn.Parameter(torch.randn(length + offset, width) * 0.02)
        self.offset = offset

    def vectors(self, mask: Mask) -> Tensor:
        """Return the vectors of the queries of a pass: (B or 1, T, width)."""
        longest = self.table.size(0) - self.offset
        if mask.length > longest and int(mask.positions.max()) >= longest:
            raise QkvError(
                f"{int(mask.positions.max()) + 1} tokens, but learned positions end at {longest}: shorten the text"
            )
        return F.embedding((mask.positions + self.offset).clamp(max=self.table.size(0) - 1), self.table)

    def forward(self, mask: Mask) -> PositionEncoding:
        return InputVectors(self.vectors(mask))


class InputVectors(PositionEncoding):
    """Absolute positions added again at the entrance of every block."""

    def __init__(self, vectors: Tensor):
        self.vectors = vectors  # (B or 1, T, C)

    def add_to_input(self, x: Tensor) -> Tensor:
        return x + self.vectors.to(x.dtype)


class Rotary(Fixed):
    """Rotate each pair of channels by an angle that grows with the position (Su et al. 2021, RoFormer).

    q at m and k at n then meet at an angle that depends on m - n alone (claim C10). Pairs are neighbours
    ("interleaved": the paper, llama2.c) or half a head apart ("halves": Hugging Face).
    """

    def __init__(self, width: int, base: float = 10_000.0, interleaved: bool = False, scaling: object | None = None):
        super().__init__()
        self.interleaved = interleaved
        rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)  # (D/2,)
        if scaling is not None:
            rates = stretch(rates, scaling)
        self.register_buffer("rates", rates.float(), persistent=False)

    def forward(self, mask: Mask) -> PositionEncoding:
        rates: Tensor = self.rates  # type: ignore[assignment]
        angles = mask.positions[:, None, :, None] * rates.float()  # (B or 1, 1, T, D/2)
        return Rotation(angles, self.interleaved)


def stretch(rates: Tensor, scaling: object) -> Tensor:
    """Llama 3: divide the slow rates by `factor`, leave the fast ones, and ramp between the two wavelengths."""
    factor, low, high = scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor  # type: ignore[attr-defined]
    turns = scaling.original_length * rates / (2 * math.pi)  # type: ignore[attr-defined]  # turns within the old context
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 0 = stretched in full, 1 = as it was
    return rates * (kept + (1 - kept) / factor)


class Rotation(PositionEncoding):
    """The angles (B or 1, 1, T, D/2) of one pass, with their cosines and sines."""

    def __init__(self, angles: Tensor, interleaved: bool):
        self.angles, self.cos, self.sin, self.interleaved = angles, angles.cos(), angles.sin(), interleaved

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]  # (B, H, T, D/2) each
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        a, b = x.chunk(2, -1)  # (B, H, T, D/2) each
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class ScoreBias(PositionEncoding):
    """A bias on the scores (B or 1, H, T, S)."""

    def __init__(self, scores: Tensor):
        self.scores = scores

    def score_bias(self, query: Tensor, key: Tensor) -> Tensor:
        return self.scores.to(query.dtype)

    def select(self, heads: Tensor, rows: Tensor) -> PositionEncoding:
        return ScoreBias(self.scores[:, heads[:, None], rows])  # (B or 1, h, r, S)


def distances(mask: Mask) -> Tensor:
    """(B or 1, T, S): key position minus query position."""
    return mask.key_positions[:, None, :] - mask.positions[:, :, None]


class T5Bias(nn.Module):
    """A learned number per head and distance bucket: near distances exact, far ones in logarithmic steps (Raffel et al. 2020)."""

    def __init__(self, n_heads: int, n_buckets: int, max_distance: int, causal: bool):
        super().__init__()
        self.table = nn.Parameter(torch.randn(n_buckets, n_heads) * 0.02)
        self.max_distance, self.causal = max_distance, causal

    def buckets(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance; half of the buckets are for keys ahead when the stack is not causal."""
        n = self.table.size(0) if self.causal else self.table.size(0) // 2
        ahead = torch.zeros_like(distance) if self.causal else (distance > 0) * n
        back = (-distance).clamp(min=0) if self.causal else distance.abs()
        exact = n // 2
        steps = torch.log(back.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (n - exact)
        far = (exact + steps.long()).clamp(max=n - 1)
        return ahead + torch.where(back < exact, back, far)

    def forward(self, mask: Mask) -> PositionEncoding:
        buckets = self.buckets(distances(mask))
        return ScoreBias(F.embedding(buckets, self.table).permute(0, 3, 1, 2))  # (B or 1, H, T, S)


class Alibi(Fixed):
    """A penalty per step of distance, steeper for some heads: -slope_h |i - j| (Press et al. 2022)."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(n_heads), persistent=False)

    def forward(self, mask: Mask) -> PositionEncoding:
        slopes: Tensor = self.slopes  # type: ignore[assignment]
        return ScoreBias(-distances(mask).abs()[:, None] * slopes[:, None, None])  # (B or 1, H, T, S)


def alibi_slopes(n_heads: int) -> Tensor:
    """2^(-8/n), 2^(-16/n), ... for n a power of two; other counts take every second slope of the next power."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]
    return torch.tensor(slopes + between)


class Relative(nn.Module):
    """A learned vector per clipped distance, for keys and for values (Shaw et al. 2018); one scheme per layer.

    score(i, j) = q_i . (k_j + a_(j-i)) * scale; output_i = sum_j w_ij (v_j + b_(j-i)). The vectors serve all heads of the
    layer, (2k+1, D), or with `n_heads` each head has its own, (H, 2k+1, D).
    """

    def __init__(self, width: int, max_distance: int, scale: float, n_heads: int | None = None):
        super().__init__()
        self.max_distance, self.scale = max_distance, scale
        shape = (2 * max_distance + 1, width) if n_heads is None else (n_heads, 2 * max_distance + 1, width)
        self.keys = nn.Parameter(torch.randn(shape) * 0.02)  # a
        self.values = nn.Parameter(torch.randn(shape) * 0.02)  # b

    def forward(self, mask: Mask) -> PositionEncoding:
        clipped = distances(mask).clamp(-self.max_distance, self.max_distance) + self.max_distance  # (B or 1, T, S)
        return RelativeVectors(clipped, self.keys, self.values, self.scale)


class RelativeVectors(PositionEncoding):
    """The clipped distances of one pass with the vectors they select."""

    weighs_values = True

    def __init__(self, clipped: Tensor, keys: Tensor, values: Tensor, scale: float):
        self.clipped, self.keys, self.values, self.scale = clipped, keys, values, scale

    def score_bias(self, query: Tensor, key: Tensor) -> Tensor:
        per_distance = query @ self.keys.transpose(-1, -2) * self.scale  # (B, H, T, 2k+1)
        return per_distance.gather(-1, self._index(per_distance))  # (B, H, T, S)

    def value_bias(self, weights: Tensor) -> Tensor:
        per_distance = weights.new_zeros(*weights.shape[:-1], self.values.size(-2))  # (B, H, T, 2k+1)
        return per_distance.scatter_add(-1, self._index(weights), weights) @ self.values  # (B, H, T, D)

    def select(self, heads: Tensor, rows: Tensor) -> PositionEncoding:
        shared = self.keys.dim() == 2
        keys, values = (self.keys, self.values) if shared else (self.keys[heads], self.values[heads])
        return RelativeVectors(self.clipped[:, rows], keys, values, self.scale)

    def _index(self, like: Tensor) -> Tensor:
        return self.clipped[:, None].expand(like.size(0), like.size(1), -1, -1)
