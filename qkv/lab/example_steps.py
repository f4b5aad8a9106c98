"""Elements of a worked example: lines of text and small tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExampleTable:
    """A small table of one step; cells are text."""

    titles: list[str]
    rows: list[list[str]]
    words: bool = False
    """Whether all columns hold words, which are flush left."""


Step = str | ExampleTable
"""A line that begins with `qkv ` is a command."""


def heads(*vectors: Sequence[float]) -> Tensor:
    """Vectors as one head of one sequence: (1, 1, T, D)."""
    return torch.tensor(vectors, dtype=torch.float32)[None, None]


def numbers(x: Tensor, digits: int) -> list[str]:
    return [f"{v:.{digits}f}" for v in x.flatten().tolist()]
