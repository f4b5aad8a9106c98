"""Workers: several processes that train one network together, started by torchrun. Each takes every n-th batch.

    torchrun --nproc-per-node 2 -m qkv train recipes/demo.toml

All hold the same weights: they start alike, add their gradients up, and decide together where a clock, a signal or a score
has a part in it. The run's folder is one for all, so on several machines it is on a shared disk. Alone, a process is the
first of one, and nothing here costs anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from qkv.errors import QkvError


@contextmanager
def together() -> Iterator[None]:
    """Join the other workers, if torchrun started some."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or dist.is_initialized():
        yield
        return
    # gradients go from GPU to GPU; decisions and random states are on the CPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    except RuntimeError as error:
        raise QkvError("another worker has ended; what it said tells why") if lost(error) else error from None
    finally:
        dist.destroy_process_group()


def lost(error: RuntimeError) -> bool:
    """Whether it says that another worker does not answer."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def rank() -> int:
    """Which worker this is; the first, 0, writes and scores."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many workers there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    return rank() == 0


@contextmanager
def first_before_others() -> Iterator[None]:
    """The first worker goes through before the others do: they find what it has made."""
    if not is_first():
        from_first([0.0])  # comes when the first one sends it
    yield
    if is_first():
        from_first([0.0])


def everywhere(value: Tensor) -> Tensor:
    """The sum of `value` over all workers; the value itself where there is one."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def sum_gradients(parameters: Sequence[Tensor]) -> None:
    """Gradients become their sums over all workers, in one message: many small ones cost more than one large one."""
    if not dist.is_initialized():
        return
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    gradients = [p.grad for p in parameters if p.grad is not None]
    message = everywhere(torch.cat([g.flatten() for g in gradients]))
    for gradient, own in zip(gradients, message.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(own.view_as(gradient))


def from_first(values: Sequence[float]) -> list[float]:
    """The numbers that the first worker has."""
    if not dist.is_initialized():
        return list(values)
    message = torch.tensor(values, dtype=torch.float64)
    dist.broadcast(message, 0)
    return message.tolist()


def from_all(value: Tensor) -> Tensor:
    """The tensors of all workers, stacked: (...) -> (world, ...)."""
    if not dist.is_initialized():
        return value[None]
    found = [torch.empty_like(value) for _ in range(world())]
    dist.all_gather(found, value)
    return torch.stack(found)
