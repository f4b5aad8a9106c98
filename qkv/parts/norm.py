"""Norms: LayerNorm and RMSNorm, torch's own, with their formulas."""

from __future__ import annotations

from torch import nn


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * gamma + beta over the channels (Ba et al. 2016); x is (..., C).

    gamma is `weight`, beta is `bias`. Lecture 000 prints the mean without 1/d and the root of sigma; this is the formula of
    lecture 001.
    """

    def __init__(self, width: int, eps: float, bias: bool = True):
        super().__init__(width, eps, bias=bias)


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * gamma over the channels (Zhang and Sennrich 2019); x is (..., C)."""
