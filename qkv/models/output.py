"""Output: what a network returns. Logits are computed on demand: a loss over a large vocabulary never needs them whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from qkv.parts.state import State


@dataclass(frozen=True)
class Output:
    """The last vectors and the head that reads them."""

    hidden: Tensor
    """(B, T, C) after the final norm."""
    head: nn.Module
    keys: Tensor | None = None
    """(B, T) real tokens; None = all."""
    state: State | None = None
    """What is remembered after the last token, where a state was given before the first."""

    @cached_property
    def logits(self) -> Tensor:
        """(B, T, V) words, (B, n) classes, (B, T, n) tags."""
        return self.head(self.hidden, self.keys)
