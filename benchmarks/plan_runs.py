"""Updates of small networks on the workers of benchmarks/plan_check.py: their time, memory and traffic."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.config import ModelConfig, TrainConfig
from qkv.distributed import world_size
from qkv.plan.calibrate import make_update
from qkv.plan.this_machine import GLOO

Update = Callable[[], Any]
SMALL: dict[str, Any] = {
    "d_ff": 1024,
    "norm_order": "pre",
    "feedforward": "gelu",
    "position": "learned",
    "dropout": 0.0,
}
NETWORKS: dict[str, tuple[ModelConfig, int, int]] = {
    "language model, width 256": (
        ModelConfig(family="decoder", vocab_size=4000, d_model=256, n_layers=4, n_heads=4, max_length=128, **SMALL), 16, 128),
    "Transformer, width 192": (
        ModelConfig(family="encoder-decoder", vocab_size=3000, d_model=192, n_layers=3, n_heads=6, **SMALL | {"d_ff": 768, "position":
                    "sinusoidal", "tie": "all"}), 64, 24),
    "language model, width 512": (
        ModelConfig(family="decoder", vocab_size=8000, d_model=512, n_layers=6, n_heads=8, max_length=128,
                    **SMALL | {"d_ff": 2048}), 16, 128),
}  # fmt: skip
"""Name -> configuration, rows, tokens of a row."""


def measure_run(name: str, fields: dict[str, Any], updates: int) -> dict[str, float]:
    """Measure a network with these fields of [train], after a small one: the modules that it imports take memory, too."""
    new_update(
        ModelConfig(family="decoder", vocab_size=64, d_model=64, n_layers=2, n_heads=4, d_ff=64), 16, 8, fields
    )()
    return measure(*NETWORKS[name], fields, updates)


def measure(c: ModelConfig, rows: int, tokens: int, fields: dict[str, Any], updates: int) -> dict[str, float]:
    """Train a network for some updates; return, of rank 0, the time of one, the peak of memory and the bytes sent.

    Memory and bytes are those of the second update: before it there is no state of the optimiser.
    """
    gc.collect()
    empty = allocated()
    update = new_update(c, rows, tokens, fields)
    update()
    with PeakMemory() as memory:
        sent = count_sent(update)
    times, before = [], loopback()
    for _ in range(updates):
        start = time.perf_counter()
        update()
        times.append(time.perf_counter() - start)
    wire = (loopback() - before) / updates / world_size()
    return {
        "seconds": sorted(times)[updates // 2],
        "memory": memory.bytes - empty,
        "sent": sent,
        "wire": wire,
    }


def check_traffic(config: str, rows: int, tokens: int, layouts: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the bytes that an update of a network sends with the fields of each layout, after one that may also arrange the
    exchange."""
    sent = []
    for fields in layouts:
        update = new_update(ModelConfig.model_validate_json(config), rows, tokens, fields)
        update()
        sent.append(count_sent(update))
    return {"sent": sent}


def new_update(c: ModelConfig, rows: int, tokens: int, fields: dict[str, Any]) -> Update:
    """Return a function that makes one update of a fresh network, with these fields of [train]."""
    return make_update(c, rows, tokens, TrainConfig(precision="float32", device="cpu", **fields))


def count_sent(update: Update) -> float:
    """Count the bytes that an update sends."""
    with CountedBytes() as counter:
        update()
    return counter.sent


class MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc's malloc.h."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


def allocated() -> int:
    """Return the bytes that this process has allocated, in all its threads: gloo's threads also free tensors."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


class PeakMemory(TorchDispatchMode):
    """Find the largest number of bytes allocated after any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.bytes = max(self.bytes, allocated())
        return found


class CountedBytes(TorchDispatchMode):
    """Count the bytes that this worker sends: the full tensor of every collective, times the share that gloo sends of it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        kind = next((kind for kind in GLOO if kind.replace("_", "") in func.__name__.replace("_", "")), None)
        if func.namespace in ("c10d", "_c10d_functional") and kind:
            largest = max(x.nbytes for x in tree_leaves((args, found)) if isinstance(x, torch.Tensor))
            n = group_size(args)
            self.sent += GLOO[kind] * (n - 1) / n * largest
        return found


def group_size(arguments: Any) -> int:
    """Return the number of workers of a collective, from its arguments: a group, or the name of one."""
    for x in arguments:
        if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x._type()):
            return dist.ProcessGroup.unbox(x).size()
        if isinstance(x, str) and x.isdecimal():
            return _resolve_process_group(x).size()
    raise ValueError(f"no group among {arguments}")


def loopback() -> int:
    """Return the bytes that the loopback interface has carried."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))
