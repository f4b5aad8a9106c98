"""Norms: LayerNorm and RMSNorm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * gamma + beta over the channels (Ba et al. 2016); x is (..., C).

    Lecture 000 prints the mean without 1/d and the root of sigma; this is the formula of lecture 001.
    """

    def __init__(self, width: int, eps: float, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))  # gamma
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None  # beta
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * gamma over the channels (Zhang and Sennrich 2019); x is (..., C)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
