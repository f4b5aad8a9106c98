"""Data-parallel workers: processes that train one network together, each on its own rows of every batch.

All have the same weights: they start with the same ones, average their gradients (DistributedDataParallel), and agree on every
decision that depends on a clock, a signal or a score. N workers therefore compute the update that one process computes. They are
started by torch's elastic agent, either by train/launch.py (one machine) or by torchrun (one or several machines, which share the
folder of the run):

    torchrun --nproc-per-node 2 -m qkv train recipes/demo.toml

Both agents set the same environment variables, and restart all workers when one of them is lost. A single process acts as
rank 0; the helpers are no-ops.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from qkv.errors import QkvError


class WorkerLost(QkvError):
    """The connection to another worker is lost: all workers have to be restarted from the last checkpoint."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


MINUTES = 10.0
"""How long workers wait for each other, at the start and within an update, unless the recipe says otherwise. The end of a process is
noticed immediately, since its connections close; that of a machine that has vanished is not."""
IDLE_MINUTES = 24 * 60.0
"""How long workers wait outside of updates, unless the recipe says otherwise: while rank 0 reads or writes, or others compute."""
waiting_group: dist.ProcessGroup | None = None
"""A second group of the same workers, with that timeout."""


@contextmanager
def process_group(minutes: float = MINUTES, idle_minutes: float = IDLE_MINUTES) -> Iterator[None]:
    """Join the process group of the workers that an agent has started, if any. Timeouts: `minutes` within an update, `idle_minutes`
    outside of updates."""
    if dist.is_initialized() or not launched_by_agent():
        yield
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(os.getppid())
    # the default arguments of its functions are the group that exists when it is imported. DistributedDataParallel imports it,
    # and the first group of a process would then never close its connections: the other workers would wait forever
    import torch.distributed.nn  # noqa: F401

    global waiting_group
    try:
        join(timedelta(minutes=minutes))
        waiting_group = dist.new_group(backend="gloo", timeout=timedelta(minutes=idle_minutes))
        yield
    except BaseException as error:
        ignore_termination()
        release(error)
        raise (
            WorkerLost(describe_loss(error, minutes, idle_minutes)) if is_connection_loss(error) else error
        ) from None
    finally:
        gc.collect()
        waiting_group = None
        if dist.is_initialized():
            dist.destroy_process_group()


def join(timeout: timedelta) -> None:
    """Create the process group of the workers that were started together."""
    start = timedelta(minutes=MINUTES)
    store, number, count = next(rendezvous("env://", timeout=start))
    # gradients go from GPU to GPU; decisions and random states are on the CPU
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = new_store(store, number, count, time.monotonic() + start.total_seconds())
    dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=timeout)


def new_store(store: dist.Store, number: int, count: int, deadline: float) -> dist.Store:
    """Return a namespace of the agents' store that only these workers use.

    An agent keeps its store when it restarts workers, and the addresses of the previous workers are still in it. Therefore rank 0
    chooses a new prefix, and replies to the requests of the others with it until all have received it. The keys of requests are
    the same at every start, those of replies are not: no worker reads a reply to a previous one.
    """
    own = uuid.uuid4().hex
    if number > 0:
        store.set(f"request/{number}", own)
        name = store.get(f"reply/{own}").decode()
        store.add(f"{name}/joined", 1)
        return dist.PrefixStore(name, store)
    while store.add(f"{own}/joined", 0) < count - 1:
        for request in (f"request/{other}" for other in range(1, count)):
            if store.check([request]):
                store.set(f"reply/{store.get(request).decode()}", own)
        if time.monotonic() > deadline:
            raise WorkerLost(f"not all of the {count} workers have started within {MINUTES:g} minutes")
        time.sleep(0.01)
    return dist.PrefixStore(own, store)


def end_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL: workers have sessions of their own, nothing else would end them."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ignore_termination() -> None:
    """Ignore SIGTERM from now on, in a process that ends because of an error. An agent sends SIGTERM to all workers as soon as one
    of them has ended, and this error may be the cause to report."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def release(error: BaseException | None) -> None:
    """Release the objects in the frames of an error: a DistributedDataParallel must be gone before its process group, or torch
    deadlocks (the destructor waits for a thread, holding the interpreter's lock that this thread needs)."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def is_connection_loss(error: BaseException) -> bool:
    """Whether the error means that the connection to another worker is lost."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def describe_loss(error: BaseException, minutes: float, idle_minutes: float) -> str:
    """Describe the loss of a connection; after a timeout nothing is known about the other worker."""
    if "timed out" in str(error).lower() or "timeout" in str(error).lower():
        return f"another worker does not answer (train.worker_timeout = {minutes:g}, train.idle_timeout = {idle_minutes:g} minutes)"
    return "another worker has ended, or the connection to it was interrupted; see its own message"


def launched_by_agent() -> bool:
    """Whether an agent, such as torchrun, has started this process with others."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def restart_count() -> int:
    """Return how often the agent has restarted the workers after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def rank() -> int:
    """Return the number of this worker, also before it joins the others; rank 0 writes."""
    if dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if launched_by_agent() else 0


def world_size() -> int:
    """Return the number of workers."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_rank_zero() -> bool:
    return rank() == 0


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Let rank 0 run the block before the others, which can then use its results."""
    if not is_rank_zero():
        wait_for_rank_zero()
    yield
    if is_rank_zero():
        wait_for_rank_zero()


def wait_for_rank_zero() -> None:
    """Wait for rank 0, the only one that writes files, with the timeout for waiting outside of updates."""
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
    """Return the numbers of rank 0; computing them may take long."""
    if not dist.is_initialized():
        return list(values)
    message = torch.tensor(values, dtype=torch.float64)
    dist.broadcast(message, 0, waiting_group)
    return message.tolist()


def all_gather(value: Tensor) -> Tensor:
    """Stack the tensors of all workers: (...) -> (world_size, ...)."""
    if not dist.is_initialized():
        return value[None]
    found = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(found, value)
    return torch.stack(found)


def broadcast_data(value: Any) -> Any:
    """Return the data of rank 0 (JSON that may contain tensors); creating them may take long."""
    if not dist.is_initialized():
        return value
    data = to_bytes(value)
    (size,) = broadcast([len(data)])
    data = data if is_rank_zero() else data.new_empty(int(size))
    dist.broadcast(data, 0, waiting_group)
    return from_bytes(data)


def all_gather_data(value: Any) -> list[Any]:
    """Return the data of all workers by rank, one of which may take long: JSON that may contain tensors, so no code is deserialised."""
    if not dist.is_initialized():
        return [value]
    own = to_bytes(value)
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(world_size())]
    dist.all_gather(lengths, torch.tensor([len(own)]), waiting_group)
    sizes = [int(length) for length in lengths]
    found = [own.new_empty(max(sizes)) for _ in sizes]
    dist.all_gather(found, torch.nn.functional.pad(own, (0, max(sizes) - len(own))), waiting_group)
    return [from_bytes(one[:size]) for one, size in zip(found, sizes, strict=True)]


def to_bytes(value: Any) -> Tensor:
    """Encode JSON data and tensors as bytes, without loss of precision."""

    def encode_tensor(x: Tensor) -> dict[str, Any]:
        array = x.cpu().numpy()
        return {"tensor": base64.b64encode(array.tobytes()).decode(), "type": str(array.dtype), "shape": array.shape}

    return torch.frombuffer(bytearray(json.dumps(value, default=encode_tensor).encode()), dtype=torch.uint8)


def from_bytes(data: Tensor) -> Any:
    """Decode bytes from `to_bytes`."""

    def decode_tensor(found: dict[str, Any]) -> Any:
        if found.keys() != {"tensor", "type", "shape"}:
            return found
        array = bytearray(base64.b64decode(found["tensor"]))
        return torch.from_numpy(np.frombuffer(array, found["type"]).reshape(found["shape"]))

    return json.loads(data.numpy().tobytes(), object_hook=decode_tensor)
