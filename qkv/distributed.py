"""Data-parallel workers: processes that train one network together, each on its own rows of every batch.

All hold the same weights: they start alike, take the mean of their gradients (DistributedDataParallel), and agree wherever a
clock, a signal or a score decides. N workers so compute the update that one process computes. They are started by
train/launch.py on one machine, or by torchrun on several (the run's folder is then on a shared disk):

    torchrun --nproc-per-node 2 -m qkv train recipes/demo.toml

A single process acts as rank 0; the helpers are no-ops.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from qkv.errors import QkvError


class WorkerLost(QkvError):
    """The connection to another worker is lost."""


TIMEOUT = timedelta(hours=1)
"""How long a worker waits for the others within an update; one that has died is noticed at once, its connection closes."""
LONGEST = timedelta(days=365)
"""How long the other workers wait while rank 0 prepares data or one of them computes its share of an evaluation."""
waiting_group: dist.ProcessGroup | None = None
"""The workers again, with that timeout."""


@contextmanager
def process_group(store: dist.Store | None = None, rank: int = 0, world: int = 1) -> Iterator[None]:
    """Join the other workers: those of `store`, or those that torchrun has started, if any."""
    if dist.is_initialized() or (world == 1 and not by_torchrun()):
        yield
        return
    # the default arguments of its functions are the group that exists when it is imported. DistributedDataParallel imports it,
    # and the first group of a process would then never close its connections: the other workers would wait for ever
    import torch.distributed.nn

    if by_torchrun():
        # gradients go from GPU to GPU; decisions and random states are on the CPU
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    global waiting_group
    waiting_group = dist.new_group(backend="gloo", timeout=LONGEST)
    try:
        yield
    except BaseException as error:
        release(error)
        raise (
            WorkerLost("another worker has ended; its own message says why") if is_connection_loss(error) else error
        ) from None
    finally:
        gc.collect()
        waiting_group = None
        dist.destroy_process_group()


def release(error: BaseException | None) -> None:
    """Release the objects in the frames of an error: a DistributedDataParallel must be gone before its process group, or torch
    deadlocks (the destructor waits for a thread, holding the interpreter's lock that this thread needs)."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def is_connection_loss(error: BaseException) -> bool:
    """Whether the error means that the connection to another worker is lost."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def by_torchrun() -> bool:
    """Whether torchrun has started this process with others."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def rank() -> int:
    """Return the number of this worker, also before it joins the others; rank 0 writes."""
    if dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if by_torchrun() else 0


def world() -> int:
    """Return the number of workers."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    return rank() == 0


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Let rank 0 run the block before the others, which then find what it has made."""
    if not is_first():
        broadcast([0.0])  # returns when rank 0 sends it
    yield
    if is_first():
        broadcast([0.0])


def all_reduce(value: Tensor) -> Tensor:
    """Sum `value` over all workers, in place."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def agree(seconds: float, signal: int) -> tuple[float, int]:
    """Return the time of rank 0 and the largest signal number of any worker."""
    message = torch.tensor([seconds if rank() == 0 else 0.0, signal], dtype=torch.float64)
    dist.all_reduce(message, dist.ReduceOp.MAX)
    return message[0].item(), int(message[1])


def broadcast(values: Sequence[float]) -> list[float]:
    """Return the numbers of rank 0, however long it takes to compute them."""
    if not dist.is_initialized():
        return list(values)
    message = torch.tensor(values, dtype=torch.float64)
    dist.broadcast(message, 0, waiting_group)
    return message.tolist()


def all_gather(value: Tensor) -> Tensor:
    """Stack the tensors of all workers: (...) -> (world, ...)."""
    if not dist.is_initialized():
        return value[None]
    found = [torch.empty_like(value) for _ in range(world())]
    dist.all_gather(found, value)
    return torch.stack(found)


def all_gather_data(value: Any) -> list[Any]:
    """Return the data of all workers by rank, however long one takes: JSON with tensors in it, so that nothing read is code."""
    if not dist.is_initialized():
        return [value]
    own = to_bytes(value)
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(world())]
    dist.all_gather(lengths, torch.tensor([len(own)]), waiting_group)
    sizes = [int(length) for length in lengths]
    found = [own.new_empty(max(sizes)) for _ in sizes]
    dist.all_gather(found, torch.nn.functional.pad(own, (0, max(sizes) - len(own))), waiting_group)
    return [from_bytes(one[:size]) for one, size in zip(found, sizes, strict=True)]


def to_bytes(value: Any) -> Tensor:
    """Encode JSON data and tensors as bytes; numbers keep all their bits."""

    def encode_tensor(x: Tensor) -> dict[str, Any]:
        array = x.cpu().numpy()
        return {"tensor": base64.b64encode(array.tobytes()).decode(), "type": str(array.dtype), "shape": array.shape}

    return torch.frombuffer(bytearray(json.dumps(value, default=encode_tensor).encode()), dtype=torch.uint8)


def from_bytes(data: Tensor) -> Any:
    """Decode what `to_bytes` has encoded."""

    def decode_tensor(found: dict[str, Any]) -> Any:
        if "tensor" not in found:
            return found
        array = bytearray(base64.b64decode(found["tensor"]))
        return torch.from_numpy(np.frombuffer(array, found["type"]).reshape(found["shape"]))

    return json.loads(data.numpy().tobytes(), object_hook=decode_tensor)
