"""Dropout, with a mask that is cheap to draw on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 65_536
"""A lane of a random number has 16 bits, so p is exact to within 1 / 131,072."""


class Dropout(nn.Module):
    """In training, each number becomes 0 with probability p and is divided by 1 - p otherwise (Srivastava et al. 2014).

    torch draws one number after the other for its mask, 130 million a second, whichever the threads. Here each draw of
    64 bits is cut into four lanes that are compared with a threshold: three to four times as fast, same generator, so
    torch.manual_seed still decides everything.
    """

    def __init__(self, p: float = 0.0):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * keep_mask(x, self.p) if x.device.type == "cpu" else F.dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout_layer(p: float) -> nn.Module:
    """Return dropout with probability p; with p = 0 there is nothing to call."""
    return Dropout(p) if p > 0 else nn.Identity()


def keep_mask(like: Tensor, p: float) -> Tensor:
    """A tensor of the same shape: 0 with probability p, else 1 / (1 - p), for the p that LEVELS can tell."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)  # every bit is random
    lanes = draws.view(torch.int16)[: like.numel()].view(like.shape)  # uniform on -32768 ... 32767
    return (lanes >= dropped - LEVELS // 2).to(like.dtype).mul_(LEVELS / (LEVELS - dropped))
