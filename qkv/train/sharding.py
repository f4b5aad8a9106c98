"""Sharded training: weights, gradients and optimiser state divided among the workers, by PyTorch's FSDP2 and DTensor.

The workers form a mesh with three dimensions, (replicate, shard, tensor):

    train.sharding = "full"      (1, D, T)   each of D groups of workers has 1 / D of the weights and computes 1 / D of the rows
    train.tensor_parallel = T    (D, 1, T)   each group has T workers, which compute the same rows and divide heads and inner widths

A parameter is then a DTensor, of which a worker stores its shard. While a block computes, `fully_shard` replaces its parameters
by full tensors (or, with tensor parallelism, by the part of this worker), gathered from the other groups; after the backward pass
it sums the gradients of all groups, and every worker keeps the shard for its part of the optimiser state.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv.config import TrainConfig
from qkv.distributed import rank, world_size
from qkv.errors import ConfigError
from qkv.parts.attention import Attention
from qkv.parts.feedforward import FeedForward
from qkv.parts.stack import Stack
from qkv.train.state import Sharded, Training
from qkv.train.step import loss_module


def shard(network: nn.Module, c: TrainConfig, half: bool) -> Sharded | None:
    """Divide a network, which is the same on all workers, among them; None if the recipe does not divide it or there is one worker."""
    if world_size() % c.tensor_parallel:
        raise ConfigError(
            f"train.tensor_parallel = {c.tensor_parallel} does not divide the number of workers, {world_size()}: "
            f"start a multiple of {c.tensor_parallel} with --workers or torchrun"
        )
    if world_size() == 1 or (c.sharding == "none" and c.tensor_parallel == 1):
        return None
    # imported here, because importing them takes a second
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # it warns about every layer
    groups = world_size() // c.tensor_parallel
    shape = (1, groups) if c.sharding == "full" else (groups, 1)
    device = next(network.parameters()).device.type
    mesh = init_device_mesh(device, (*shape, c.tensor_parallel), mesh_dim_names=("replicate", "shard", "tensor"))
    skeleton = without_values(network)
    if c.tensor_parallel > 1:
        divide_layers(network, mesh["tensor"])
    model = loss_module(network, no_objective, half)
    model.replica, model.replicas, model.sharded = rank() // c.tensor_parallel, groups, True
    # the products of the blocks are in bfloat16; norms, the residual stream and everything outside of the blocks in float32
    policy = MixedPrecisionPolicy(torch.bfloat16 if half else None, torch.float32, cast_forward_inputs=False)
    blocks = [block for stack in network.modules() if isinstance(stack, Stack) for block in stack.blocks]
    for block in dict.fromkeys(blocks):  # each once: a stack may have one block in all places (ALBERT)
        for layer in no_products(block) if half else ():
            fully_shard(layer, mesh=mesh["replicate", "shard"])
        fully_shard(block, mesh=mesh["replicate", "shard"], mp_policy=policy)
    fully_shard(model, mesh=mesh["replicate", "shard"])  # embeddings and head, which the objective reads
    timeout = timedelta(minutes=c.worker_timeout)
    for name in ("replicate", "shard", "tensor"):  # otherwise torch's, 10 or 30 minutes
        dist.distributed_c10d._set_pg_timeout(timeout, mesh.get_group(name))
    return Sharded(model, skeleton, dist.new_group(backend="gloo", timeout=timedelta(minutes=c.idle_timeout)))


def no_products(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that have parameters other than matrices: norms, the rates of a state space model. Norms on a CPU
    do not support bfloat16, and rates need more precision than it has."""
    if isinstance(module, nn.Linear):
        return
    if any(True for _ in module.parameters(recurse=False)):
        yield module
        return
    for child in module.children():
        yield from no_products(child)


def no_objective(*_: object) -> Any:
    raise AssertionError("a sharded network has no objective before training starts")


def divide_layers(network: nn.Module, mesh: Any) -> None:
    """Divide heads and inner widths among the workers of a mesh with one dimension (Shoeybi et al. 2019, Megatron-LM).

    The first matrices of a layer are divided by outputs, the last one by inputs: worker r has its heads from the query to their
    average, and its part of the sum over heads, y = sum_r x_r W_r. The workers exchange only this sum and, in the backward pass,
    that of the gradients of the layer's input.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for module in network.modules():
        if isinstance(module, Attention | FeedForward):
            last = module.output if isinstance(module, Attention) else module.down
            if isinstance(last, nn.Linear):
                module.register_forward_pre_hook(partial(share_input, mesh))
            for linear in module.children():
                if isinstance(linear, nn.Linear):
                    plan = RowwiseParallel() if linear is last else ColwiseParallel()
                    parallelize_module(linear, mesh, plan, src_data_rank=None)  # all workers have the same weights


def share_input(mesh: Any, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make each tensor that a layer reads one DTensor for all of its first matrices: the gradients of query, key and value are added
    on every worker and then summed over the workers once, not three times."""
    from torch.distributed.tensor import DTensor, Replicate

    share = partial(DTensor.from_local, device_mesh=mesh, placements=[Replicate()], run_check=False)
    return tuple(share(x) if isinstance(x, Tensor) else x for x in arguments)


def replica(t: Training) -> int:
    """Return the number of this worker among those that compute different rows; it is the same for all workers of a tensor-parallel
    group, which must draw the same random numbers."""
    return rank() if t.sharded is None else t.sharded.model.replica


# --- unsharded networks


def without_values(network: nn.Module) -> nn.Module:
    """Copy the structure of a network, with parameters on the meta device; tied ones stay tied."""
    return replace_parameters(network, {name: p.detach().to("meta") for name, p in network.named_parameters()})


def replace_parameters(network: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
    """Copy a network with these tensors as its parameters."""
    parameters = dict(network.named_parameters())
    new = {id(p): nn.Parameter(tensors[name], tensors[name].requires_grad) for name, p in parameters.items()}
    return copy.deepcopy(network, new)  # uses the entry under the id of an object as its copy


def shards_of(network: nn.Module, sharded: Sharded) -> Any:
    """Copy a network with copies of this worker's shards, the initial state of their moving average. It has no forward pass."""
    return replace_parameters(sharded.skeleton, {name: p.detach().clone() for name, p in network.named_parameters()})


def without_memory(sharded: Sharded) -> Any:
    """Return a network that can be run, with a single stored number per weight matrix: its activations have the same sizes."""
    numbers = {n: torch.zeros(()).expand(p.shape).requires_grad_() for n, p in sharded.skeleton.named_parameters()}
    return replace_parameters(sharded.skeleton, numbers)


def unsharded_network(t: Training) -> Any:
    """Return the network to evaluate and to save, with unsharded weights: their moving average if there is one.

    All workers must call it together, and each gets the network; for a sharded network it is a copy.
    """
    network: Any = t.network if t.average is None else t.average.module
    if t.sharded is None:
        return network
    learned = {name: p.requires_grad for name, p in t.network.named_parameters()}
    whole = {name: gather(p).requires_grad_(learned[name]) for name, p in network.named_parameters()}
    return replace_parameters(t.sharded.skeleton, whole)


def gather(p: Any) -> Tensor:
    """Gather a parameter of which each worker has a shard."""
    return p.detach().full_tensor()  # type: ignore[no-any-return]
