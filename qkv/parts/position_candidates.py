"""Alternatives to sinusoidal positions (lecture 004): linear, geometric, exponential, binary, and powers of an orthogonal matrix.

A good scheme gives every position its own vector, within fixed bounds, and P(t + c) from P(t) by one linear map M_c that does
not depend on t. Sinusoids have all of these properties; of the candidates, powers of an orthogonal matrix do:

    scheme        P(t)                          unique  bounded  P(t + c) = M_c P(t)   equal steps
    linear        t r                           yes     no       no (plus c r)         yes
    geometric     exp(-r t)                     yes     yes      yes                   no: they shrink to 0
    exponential   P(t + 1) = exp(P(t) r / e)    hardly  yes      no                    no: it converges
    binary        bits of t                     yes     yes      no                    no
    unitary       M^t P(0), M orthogonal        yes     yes      yes                   yes

r are the rates of the sinusoids, one per channel: base^(-i / width).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.masks import Mask
from qkv.parts.positions import Fixed, InputVectors, PositionEncoding, Rotary

CANDIDATES = ("linear", "geometric", "exponential", "binary")
"""The schemes of `candidate_vectors`, which have no weights."""


def candidate_vectors(kind: str, length: int, width: int, base: float = 10_000.0) -> Tensor:
    """Return the vectors (length, width) of the positions 0, 1, ... by the formulas above, computed in float64."""
    t = torch.arange(length)[:, None]  # (length, 1)
    if t.is_meta:  # a network on the meta device has shapes only
        return t.new_empty((length, width), dtype=torch.float32)
    if kind == "binary":
        channels = torch.arange(width)
        return torch.where(channels < 63, t >> channels.clamp(max=62) & 1, 0).float()
    rates = base ** (-torch.arange(width, dtype=torch.float64) / width)  # (width,)
    if kind == "linear":
        return (t * rates).float()
    if kind == "geometric":
        return (-t * rates).exp().float()
    rows = [torch.zeros_like(rates)]
    for _ in range(length - 1):
        rows.append((rows[-1] * rates / math.e).exp())  # exp(a P) converges for 0 < a <= 1 / e; larger a would overflow
    return torch.stack(rows).float()


class CandidatePosition(Fixed):
    """A fixed vector per position, computed by one of the CANDIDATES and added to the input."""

    def __init__(self, kind: str, width: int, base: float = 10_000.0):
        super().__init__()
        self.kind, self.width, self.base = kind, width, base
        self.register_buffer("table", candidate_vectors(kind, 512, width, base), persistent=False)

    def vectors(self, mask: Mask) -> Tensor:
        """Return the vectors of the queries of a pass: (B or 1, T, width)."""
        table: Tensor = self.table  # type: ignore[assignment]
        if mask.length > table.size(0):
            table = candidate_vectors(self.kind, mask.length, self.width, self.base).to(table.device)
        return table[mask.positions]

    def forward(self, mask: Mask) -> PositionEncoding:
        return InputVectors(self.vectors(mask))


class Unitary(nn.Module):
    """P(t) = M^t P(0) with a learned orthogonal M = exp(A - A^T) and a learned P(0): the norm of P(t) is that of P(0).

    At the start M rotates pairs of channels by the sinusoids' rates, and P(0) = (0, 1, 0, 1, ...): P is the sinusoid table.
    """

    undecayed = ("generator",)

    def __init__(self, width: int, base: float = 10_000.0):
        super().__init__()
        pairs = torch.arange(0, width - 1, 2)
        self.generator = nn.Parameter(torch.zeros(width, width))  # A
        self.first = nn.Parameter(torch.arange(width).remainder(2).float())  # P(0)
        with torch.no_grad():
            self.generator[pairs, pairs + 1] = base ** (-pairs / width)

    def matrix(self) -> Tensor:
        """Return M (C, C)."""
        generator = self.generator.float()
        return torch.linalg.matrix_exp(generator - generator.T)

    def vectors(self, mask: Mask) -> Tensor:
        """Return the vectors of the queries of a pass: (B or 1, T, C)."""
        power, table = self.matrix(), self.first.float()[None]  # M, (1, C)
        while table.size(0) < mask.length:  # M^n maps the vectors of the first n positions to those of the next n
            table = torch.cat([table, table @ power.T])
            power = power @ power if table.size(0) < mask.length else power
        return F.embedding(mask.positions, table)

    def forward(self, mask: Mask) -> PositionEncoding:
        return InputVectors(self.vectors(mask))


class LearnedRotary(Rotary):
    """Rotary positions with learned rates, one per pair of channels and layer; they start as the fixed ones.

    Rotating queries and keys by the powers of any learned orthogonal matrix U would give no other family of scores: U = V R V^T; R
    rotates pairs of channels, and the projections of queries and keys can absorb V.
    """

    def __init__(self, width: int, base: float = 10_000.0):
        super().__init__(width, base)
        rates = self._buffers.pop("rates")
        assert rates is not None
        self.register_parameter("rates", nn.Parameter(rates))
