"""Workers: several processes that train one network together, started by torchrun. Each takes every n-th batch.

    torchrun --nproc-per-node 2 -m qkv train recipes/demo.toml

All hold the same weights: they start alike, add their gradients up, and take every decision that a clock or a signal has
a part in from the first worker. Alone, a process is the first of one, and nothing here costs anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


@contextmanager
def together() -> Iterator[tuple[int, int]]:
    """Join the other workers, if torchrun started some: (which one this is, how many there are)."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or dist.is_initialized():
        yield rank(), world()
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield rank(), world()
    finally:
        dist.destroy_process_group()


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
        dist.barrier()
    yield
    if is_first() and world() > 1:
        dist.barrier()


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


def from_first(values: Sequence[float], device: torch.device | str = "cpu") -> list[float]:
    """The numbers that the first worker has."""
    if not dist.is_initialized():
        return list(values)
    message = torch.tensor(values, dtype=torch.float64, device=device)
    dist.broadcast(message, 0)
    return message.tolist()


def from_all(value: Tensor) -> Tensor:
    """The tensors of all workers, stacked: (...) -> (world, ...)."""
    if not dist.is_initialized():
        return value[None]
    found = [torch.empty_like(value) for _ in range(world())]
    dist.all_gather(found, value)
    return torch.stack(found)
