"""Sharded training: networks whose weights, gradients and optimiser state are divided among the workers."""

from __future__ import annotations

from torch import nn

from qkv.train.checkpoint import Training


def whole_network(t: Training) -> nn.Module:
    """Return the network to evaluate and to keep, with whole weights: their moving average where there is one.

    All workers call it together, and each gets the network.
    """
    return t.network if t.average is None else t.average.module  # type: ignore[no-any-return]
