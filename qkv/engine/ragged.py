"""Packing without padding: the sentences of a batch concatenated in a single row, as documents that do not attend to each other.

    without_padding(network, batch)       # what network(batch) gives

A batch of sentences from 16 to 128 tokens, padded to the longest, is 44 % padding, and all products are done for it too.
Only attention needs to know where a sentence ends, and it is cut there; positions count from each beginning.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qkv.batch import Batch
from qkv.models.output import Output
from qkv.parts.positions import Learned, Rotary
from qkv.parts.softmax import Softmax
from qkv.parts.stack import Stack


def without_padding(network: Any, batch: Batch) -> Output:
    """network(batch), where padded places are 0; to train or to use."""
    if not possible(network, batch):
        output: Output = network(batch)
        return output
    assert batch.mask is not None
    found = network(concatenate_rows(batch)).hidden[0]  # (N, C)
    hidden = found.new_zeros(*batch.mask.shape, found.size(-1))
    hidden = hidden.index_put(tuple(batch.mask.nonzero().unbind(1)), found)  # (B, T, C)
    return Output(hidden, network.head, batch.mask)


def concatenate_rows(batch: Batch) -> Batch:
    """The real tokens of all rows as one row (1, N), in their order; what each belongs to is its document."""
    assert batch.mask is not None
    row, place = batch.mask.nonzero().unbind(1)  # (N,) each

    def real(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[row, place][None]  # (1, N)

    return Batch(inputs=real(batch.inputs), segments=real(batch.segments), documents=row[None])


def possible(network: nn.Module, batch: Batch) -> bool:
    """Whether there is padding, on a CPU, and a network of one stack that keeps documents apart without a table of all
    pairs."""
    stack = getattr(network, "stack", None)
    return (
        batch.mask is not None
        and batch.inputs is not None
        and getattr(network, "separator", None) is None
        and batch.inputs.device.type == "cpu"
        and batch.documents is None
        and isinstance(stack, Stack)
        and all(isinstance(position, Rotary | Learned) for position in stack.positions)
        and all(isinstance(block_mixer(block), Softmax) for block in stack.blocks)
    )


def block_mixer(block: Any) -> nn.Module | None:
    attention = getattr(block.attention, "layer", block.attention)  # a sublayer within its residual, or side by side
    return getattr(attention, "mixer", None)  # a state space has none
