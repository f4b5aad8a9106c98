"""Bidirectional: two one-directional layers (gated linear attention, state spaces) for an encoder, one of them from right to left."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.parts.masks import Mask
from qkv.parts.mixers import to_front
from qkv.parts.positions import PositionEncoding
from qkv.parts.state import Layer


class Bidirectional(nn.Module):
    """forth(x) + reverse(back(reverse(x))): each token reads those before it and those after it, for encoders.

    The two layers have separate weights. Padding stays where it is; only real tokens change places.
    """

    def __init__(self, forth: nn.Module, back: nn.Module):
        super().__init__()
        self.forth, self.back = forth, back

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Attention.forward: (B, T, C) -> (B, T, C); an encoder has no state, so {} is returned."""
        assert state is None, "later tokens cannot be added to what was read from the end"
        order = reversal(mask, x.device)[..., None]  # (1 or B, T, 1)
        forth, _ = self.forth(x, mask)
        back, _ = self.back(x.take_along_dim(order, 1), mask)
        return forth + back.take_along_dim(order, 1), {}


def reversal(mask: Mask, device: torch.device) -> Tensor:
    """Return for each position the index of the token that takes its place when the real tokens of a row are reversed, (1 or B, T).

    The permutation is its own inverse.
    """
    places = torch.arange(mask.queries, device=device)[None]  # (1, T)
    if mask.real is None:
        return places.flip(-1)
    real = mask.real.to(device)
    front = to_front(real)  # (B, T): the i-th real token stands at place front[i]
    front = places.expand(len(real), -1) if front is None else front
    after = real.sum(-1, keepdim=True) - real.cumsum(-1)  # (B, T): how many real tokens follow
    return torch.where(real, front.take_along_dim(after, 1), places)
