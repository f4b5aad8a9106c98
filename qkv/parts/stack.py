"""Stack: blocks one after another. RecurrentStack in recurrent.py has the same signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.parts.masks import Mask
from qkv.parts.state import EncoderOutput, State


def recompute(block: nn.Module, *arguments: Any) -> Any:
    """Call a block so that autograd keeps the arguments alone: the backward pass computes it again, with the same dropout masks."""
    return checkpoint(block, *arguments, use_reentrant=False)


class Stack(nn.Module):
    """norm(block_n(... block_1(x))); `positions` holds none, one scheme for all blocks, or one per block."""

    def __init__(self, blocks: Sequence[nn.Module], norm: nn.Module | None = None, positions: Sequence[nn.Module] = ()):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm or nn.Identity()
        self.positions = nn.ModuleList(positions)
        self.call: Callable[..., Any] = nn.Module.__call__
        """How a block is computed; `recompute` saves memory in training (activation checkpointing)."""

    def forward(self, x: Tensor, mask: Mask, memory: EncoderOutput | None = None, state: State | None = None
                ) -> tuple[Tensor, State | None]:  # fmt: skip
        """(B, T, C) -> (B, T, C). With a state, T more tokens are added to those it holds; without one, none is kept."""
        encodings = [position(mask) for position in self.positions] or [None]
        vectors = None if memory is None else memory.vectors
        memory_mask = None if memory is None else Mask.for_memory(x.size(1), memory)
        layers = []
        for index, block in enumerate(self.blocks):
            encoding = encodings[index % len(encodings)]
            kept = None if state is None else state.layer(index)
            x = x if encoding is None else encoding.add_to_input(x)
            x, kept = self.call(block, x, mask, encoding, vectors, memory_mask, kept)
            layers.append(kept)
        x = self.norm(x)
        return x, None if state is None else State(tuple(layers), mask.length, mask.keys, memory)
