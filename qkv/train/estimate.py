"""Estimate the memory of training before it starts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.device import isolate_random_state
from qkv.models.example import example
from qkv.train.optimizer import local
from qkv.train.sharding import without_memory
from qkv.train.state import Training
from qkv.train.step import Objective

LENGTH = 24
"""Tokens of the sentences that are tried."""
BETWEEN = 1.5
"""On top of what is kept comes what the passes need in between and what the allocator holds: measured on two sizes."""


def memory(c: ModelConfig, t: Training, objective: Objective, tokens: int) -> tuple[int, int]:
    """Bytes of weights, gradients, Adam's two tables and the average of one worker; bytes of activations with `tokens` a side."""
    weights = sum(local(p).nbytes for p in t.network.parameters())
    learned = sum(local(p).nbytes for p in t.network.parameters() if p.requires_grad)  # frozen ones have no gradient
    fixed = weights * (2 if t.average is not None else 1) + 3 * learned
    network = t.network if t.sharded is None else without_memory(t.sharded)
    return fixed, int(BETWEEN * activations(c, network, objective, tokens))


def activations(c: ModelConfig, network: nn.Module, objective: Objective, tokens: int) -> int:
    """Bytes that the backward pass needs from the forward pass: a little of it done twice, and a line drawn through both."""
    device = next(network.parameters()).device
    length = min(LENGTH, c.max_length - 1)
    # the trial must not change the results of training
    with isolate_random_state(device), torch.compiler.set_stance("force_eager"):
        batches = [example(c, rows, length=length).to(device) for rows in (2, 4)]
        first, second = (activation_bytes(network.train(), objective, batch) for batch in batches)
    each = (second - first) / (2 * length)
    return int(first + each * max(tokens - 2 * length, 0))


def activation_bytes(network: nn.Module, objective: Objective, batch: Batch) -> int:
    """Bytes that autograd keeps for this batch, each storage counted once, the weights not."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = objective(network(batch), batch)  # held, so that no storage is freed and counted again
    del loss
    return sum(kept.values())
