"""Batches that do not fit into memory: their rows are computed in parts, and the gradient is the same.

The gradient of an update is a sum over rows, divided once. If a part does not fit, the update is restarted in parts of half
the size, with the initial weights, states and random numbers and no gradient. Every worker has a limit of its own; only that of rank
0 is reported.
"""

from __future__ import annotations

import gc
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.errors import QkvError, is_memory_error
from qkv.parts.state import State


class DoesNotFit(QkvError):
    """A part of a batch does not fit into memory."""

    def __init__(self, part: Batch):
        self.rows, self.size = part.size, size(part)
        rows = f"{self.rows} row{'' if self.rows == 1 else 's'} of {self.size // self.rows:,} tokens"
        super().__init__(
            f"{rows} do not fit into memory: lower data.batch_tokens or data.max_length, or set train.activation_checkpointing = true"
        )

    def half(self) -> int:
        """Return half the size of the part; QkvError for a single row, which cannot be divided."""
        if self.rows == 1:
            raise QkvError(str(self)) from None
        return self.size // 2


def explain_memory_error(error: Exception, part: Batch, final: bool) -> Exception:
    """Return the error of a pass: DoesNotFit if memory was lacking, QkvError if the update cannot be restarted (`final`)."""
    if not is_memory_error(error):
        return error
    reason = DoesNotFit(part)
    return QkvError(str(reason)) if final else reason


def size(batch: Batch) -> int:
    """Return the number of tokens of a batch, padding included, on its longer side (for images: the number of values)."""
    return max(v.numel() for f in fields(batch) if (v := getattr(batch, f.name)) is not None)


def parts(batch: Batch, limit: int) -> list[slice]:
    """Return the rows of parts of at most `limit` tokens, or of a single row."""
    rows = batch.size if size(batch) <= limit else max(1, limit * batch.size // size(batch))
    return [slice(first, first + rows) for first in range(0, batch.size, rows)]


def rows_of(state: State, rows: slice) -> State:
    """Return some rows of a carried state."""
    return State(tuple({name: x[rows] for name, x in layer.items()} for layer in state.layers))


def join_rows(states: list[Any]) -> Any:
    """Undo `rows_of`; None if no state is carried."""
    if states[0] is None:
        return None
    layers = zip(*(state.layers for state in states), strict=True)
    return State(tuple({name: torch.cat([layer[name] for layer in each]) for name in each[0]} for each in layers))


def prepare_retry(random: Tensor, random_cuda: Tensor | None) -> None:
    """Free the memory of the failed pass, and restore the random state."""
    gc.collect()  # the frames of the error held its activations
    torch.set_rng_state(random)
    if random_cuda is not None:
        torch.cuda.empty_cache()
        torch.cuda.set_rng_state(random_cuda)
