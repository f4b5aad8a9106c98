"""Attention rollout: how much of each input token is in each output vector, through all layers (Abnar and Zuidema 2020).

Each layer keeps half of its input (the residual connection) and adds half of the mean over its heads:
R_l = (I + mean_h A_l) / 2 . R_(l-1); without residual connections
R_l = mean_h A_l . R_(l-1). Layers without weights are skipped. In a Vision Transformer the row of the [class] vector shows which
patches it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import Site, select_sites, visit
from qkv.look.pictures import Heatmap, Picture
from qkv.look.result import LookResult
from qkv.parts.block import NoResidual

LONGEST = 4096
"""Maximum number of tokens: two tables (T, T) are held, 64 MB each at this length."""


@dataclass(frozen=True)
class Rollout(LookResult):
    """Rows are output vectors, columns the input tokens (or patches); each row adds up to 1."""

    EXPLANATION: ClassVar[str] = (
        "Product of the attention weights of all layers: the contribution of each input (column, or patch) to each output (row)."
    )

    tokens: list[str]
    weights: Tensor
    """(T, T)."""
    grid: Tensor | None = None
    """(side, side) of an image: the patches in the [class] vector, without its own share."""

    def picture(self) -> Picture:
        if self.grid is None:
            return Heatmap("attention rollout", {"": self.weights}, self.tokens, self.tokens)
        sides = [str(i) for i in range(len(self.grid))]
        return Heatmap("attention rollout from the [class] token to the patches", {"": self.grid}, sides, sides)


def rollout(network: Any, batch: Batch, kind: str | None = None) -> Tensor:
    """Return the rollout of self-attention, (B, T, T); in an encoder-decoder the encoder's, or with kind = "decoder" the decoder's."""
    own = select_sites(network, None, kind or ("encoder" if hasattr(network, "encoder") else "self"), weighs=True)
    if own[0].kind == "cross":
        raise QkvError("rollout needs self-attention: choose kind 'encoder' or 'decoder', not 'cross'")
    total = torch.empty(0)
    new: list[Tensor] = []  # the rows of the next total so far

    def fold(site: Site, rows: Tensor, weights: Tensor) -> None:
        nonlocal total
        length = weights.size(-1)
        if length > LONGEST:
            raise QkvError(
                f"rollout needs a table of all pairs of tokens: {length} tokens given, at most {LONGEST} allowed"
            )
        if not total.numel():
            total = torch.eye(length, device=weights.device).expand(weights.size(0), -1, -1)  # (B, T, T)
        mixed = weights.mean(1) @ total  # (B, r, T)
        new.append(mixed if replaces_stream(network, site) else (total[:, rows] + mixed) / 2)
        if sum(part.size(1) for part in new) == length:
            total = torch.cat(new, 1)
            new.clear()

    visit(network, batch, own, fold)
    return total


def replaces_stream(network: Any, site: Site) -> bool:
    """Whether the layer has no residual connection."""
    return isinstance(network.get_submodule(site.name.rpartition(".")[0]), NoResidual)


def patch_grid(weights: Tensor) -> Tensor:
    """Arrange the [class] vector's row of (1 + patches, 1 + patches) weights as the image's patches: (side, side)."""
    patches = weights[0, 1:]
    side = round(len(patches) ** 0.5)
    return patches.view(side, side) / patches.sum()
