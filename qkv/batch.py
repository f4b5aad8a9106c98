"""Batch and Loss, the interface of data, networks and objectives: data yields Batches, networks read them, objectives return Losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

IGNORED = -100
"""The target of a position that does not count. Of ids, classes and places only: scores (float) all count, -100 is one of them."""


@dataclass(frozen=True)
class Batch:
    """One step's worth of examples. Shifts and masks are made once, by the collate function; masks are bool, True = real."""

    inputs: Tensor | None = None
    """(B, T) ids that the network reads; in an encoder-decoder, the target shifted right."""
    mask: Tensor | None = None
    """(B, T) which inputs are real; None = all."""
    targets: Tensor | None = None
    """(B, T) ids or tags to predict, IGNORED where nothing counts; (B,) classes, or scores (float); (B, 2) spans."""
    source: Tensor | None = None
    """(B, S) ids of the source side of an encoder-decoder."""
    source_mask: Tensor | None = None
    """(B, S) which source tokens are real; None = all."""
    segments: Tensor | None = None
    """(B, T) segment numbers (BERT)."""
    answers: Tensor | None = None
    """(B,) of a second question beside `targets`: the class of the whole sequence."""
    documents: Tensor | None = None
    """(B, T) which document of its row a token belongs to, where several are packed into one; they do not see each other."""
    images: Tensor | None = None
    """(B, channels, height, width)."""
    weights: Tensor | None = None
    """(B, T) how much each target counts in the sum of the loss; None = 1."""
    fresh: Tensor | None = None
    """(B,) rows that begin a text, where the others go on from a state that is carried to them; None = no row does."""

    @property
    def count(self) -> int:
        """How many targets count: what a loss is divided by."""
        if self.targets is None:
            return 0
        return self.targets.numel() if self.targets.is_floating_point() else int((self.targets != IGNORED).sum())

    @property
    def row_counts(self) -> Tensor:
        """(B,) how many targets of each row count."""
        assert self.targets is not None
        real = torch.ones_like(self.targets) if self.targets.is_floating_point() else self.targets != IGNORED
        return real.flatten(1).sum(1) if real.dim() > 1 else real.long()

    @property
    def size(self) -> int:
        """How many rows it has, B."""
        return next(len(v) for f in fields(self) if (v := getattr(self, f.name)) is not None)

    def rows(self, index: slice | Tensor) -> Batch:
        """Some examples of the batch."""
        return Batch(**{f.name: v if (v := getattr(self, f.name)) is None else v[index] for f in fields(self)})

    def to(self, device: torch.device | str) -> Batch:
        return Batch(**{f.name: v if (v := getattr(self, f.name)) is None else v.to(device) for f in fields(self)})


def pad(rows: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor | None]:
    """Make a table (B, T) of ragged rows, with `filler` at their ends, and a mask (B, T) of what is real; None = all."""
    width = max(map(len, rows))
    lengths = torch.tensor([len(row) for row in rows])
    table = torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
    mask = torch.arange(width)[None] < lengths[:, None]
    return table, None if mask.all() else mask


@dataclass(frozen=True)
class Loss:
    """A sum and how many targets it is over. The loop divides once, by the count of the whole step, so accumulated
    micro-batches, several workers and one big batch give the same gradient."""

    sum: Tensor
    count: int

    @property
    def mean(self) -> Tensor:
        return self.sum / max(self.count, 1)
