"""Attention rollout: how much of each input token is in each output vector, all layers together (Abnar and Zuidema 2020).

Each layer passes on half of what was there (the residual) and half of what its heads gather, on average:
R_l = (I + mean_h A_l) / 2 . R_(l-1). Layers without weights are passed over. Of a Vision Transformer the row of the [class]
vector is the picture of what it looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import Site, chosen, visit
from qkv.look.pictures import Heatmap, Picture
from qkv.look.result import LookResult

LONGEST = 4096
"""The table of all pairs is formed, and while a layer is passed a second one: 64 MB each at this length."""


@dataclass(frozen=True)
class Rollout(LookResult):
    """Rows are output vectors, columns the tokens (or patches) they come from; each row adds up to 1."""

    EXPLANATION: ClassVar[str] = (
        "Product of the attention weights of all layers: the contribution of each input (column, or patch) to each output (row)."
    )

    tokens: list[str]
    weights: Tensor
    """(T, T)."""
    grid: Tensor | None = None
    """(side, side) of an image: what the [class] vector looked at, its own share left out."""

    def picture(self) -> Picture:
        if self.grid is None:
            return Heatmap("attention rollout", {"": self.weights}, self.tokens, self.tokens)
        sides = [str(i) for i in range(len(self.grid))]
        return Heatmap("attention rollout from the [class] token to the patches", {"": self.grid}, sides, sides)


def rollout(network: Any, batch: Batch, kind: str | None = None) -> Tensor:
    """(B, T, T) of self-attention: of an encoder-decoder the encoder's, or with kind = "decoder" that one's."""
    own = chosen(network, None, kind or ("encoder" if hasattr(network, "encoder") else "self"), weighs=True)
    if own[0].kind == "cross":
        raise QkvError("rollout goes through the layers of one stack: 'encoder' or 'decoder'")
    total = torch.empty(0)
    new: list[Tensor] = []  # the rows of the next total, as far as they are known

    def fold(site: Site, rows: Tensor, weights: Tensor) -> None:
        nonlocal total
        length = weights.size(-1)
        if length > LONGEST:
            raise QkvError(f"rollout forms the table of all pairs: {length} tokens are more than {LONGEST}")
        if not total.numel():
            total = torch.eye(length, device=weights.device).expand(weights.size(0), -1, -1)  # (B, T, T)
        new.append((total[:, rows] + weights.mean(1) @ total) / 2)  # (B, r, T)
        if sum(part.size(1) for part in new) == length:
            total = torch.cat(new, 1)
            new.clear()

    visit(network, batch, own, fold)
    return total


def on_the_grid(weights: Tensor) -> Tensor:
    """(1 + patches, 1 + patches) -> (side, side): the first row, that of the [class] vector, where its patches stand."""
    patches = weights[0, 1:]
    side = round(len(patches) ** 0.5)
    return patches.view(side, side) / patches.sum()
