"""Predictions of `qkv plan` against runs on this machine: time, memory and traffic of an update with 1, 2 and 4 workers.

    python -m benchmarks.plan_check           # measure this machine, then predict and measure; 4 minutes on two idle cores
    python -m benchmarks.plan_check --keep    # with the constants of the last `qkv plan --calibrate`

Workers have one thread each; 4 workers on 2 cores share them. Time is the median of the updates. Memory is the peak of torch's allocations
in a worker, weights and optimiser state included, from its profiler. Traffic is counted twice: the sizes of all collectives, times a
ring's share, and the bytes that the loopback interface has carried.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.batch import Batch
from qkv.config import ModelConfig, TrainConfig
from qkv.distributed import world
from qkv.models.build import build
from qkv.objectives import objective
from qkv.plan.calibrate import calibrate, run_workers
from qkv.plan.job import Job
from qkv.plan.layout import Layout
from qkv.plan.network import network_size
from qkv.plan.plans import TrainingPlan, make_plan
from qkv.plan.this_machine import GLOO, save, this_machine
from qkv.train.loop import prepare
from qkv.train.step import data_parallel, loss_module, step

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # no messages of the profiler
LIMIT = 0.2
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
UPDATES = 6
LAYOUTS = [Layout(data=1), Layout(data=2), Layout(data=4)]


def main(arguments: list[str]) -> None:
    """Print a table of predictions and measurements; exit with 1 if one is off by more than LIMIT."""
    if "--keep" not in arguments:
        save(calibrate())
    machine = this_machine()
    worst = 0.0
    print("| network | layout | time, predicted | measured | memory | measured | sent | counted | loopback |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (c, rows, tokens) in NETWORKS.items():
        size = network_size(c, tokens, tokens if c.family == "encoder-decoder" else 0, table=True)
        job = Job(size, "float32", rows)
        for layout in LAYOUTS:
            plan = make_plan(job, layout.with_rows(job, -(-rows // layout.data)), machine)
            found = run_workers(measure, layout.workers, name, fields_of(layout))
            worst = max(worst, *deviations(plan, found))
            print(line(f"{name} | {layout.name}", plan, found), flush=True)
            if "-v" in arguments:
                print({item: round(value / 1e6, 1) for item, value in plan.memory.items()}, plan.times)
    print(f"\nlargest deviation: {worst:.0%}")
    sys.exit(worst > LIMIT)


def pairs(plan: TrainingPlan, found: dict[str, Any]) -> list[tuple[float, float]]:
    """Return prediction and measurement of time (s), memory (MB) and traffic (MB)."""
    memory, sent = (plan.bytes / 1e6, found["memory"] / 1e6), (sum(plan.traffic.values()) / 1e6, found["sent"] / 1e6)
    return [(plan.seconds, found["seconds"]), memory, sent]


def deviations(plan: TrainingPlan, found: dict[str, Any]) -> list[float]:
    return [abs(predicted / measured - 1) for predicted, measured in pairs(plan, found) if measured]


def line(name: str, plan: TrainingPlan, found: dict[str, Any]) -> str:
    """Return a row of the table."""
    cells = [f"{predicted:.3g} | {measured:.3g} ({predicted / measured - 1:+.0%})" if measured else "0 | 0"
             for predicted, measured in pairs(plan, found)]  # fmt: skip
    return f"| {name} | {' | '.join(cells)} | {found['wire'] / 1e6:.3g} |"


def fields_of(layout: Layout) -> dict[str, Any]:
    """Return the fields of [train] that select a layout."""
    found: dict[str, Any] = {"sharding": "full"} if layout.sharded else {}
    found |= {"tensor_parallel": layout.tensor} if layout.tensor > 1 else {}
    return found | ({"activation_checkpointing": True} if layout.recompute else {})


# --- on the workers


def measure(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Train a network for some updates; return, of rank 0, the time of one, the peak of memory and the bytes sent."""
    c, rows, tokens = NETWORKS[name]
    memory = peak_memory(c, rows, tokens, fields)
    update = make_update(c, rows, tokens, fields)
    update()
    times, before = [], loopback()
    for _ in range(UPDATES):
        start = time.perf_counter()
        update()
        times.append(time.perf_counter() - start)
    wire = (loopback() - before) / UPDATES / world()
    return {"seconds": sorted(times)[UPDATES // 2], "memory": memory, "sent": count_sent(update), "wire": wire}


def check_traffic(config: str, rows: int, tokens: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Count the bytes that an update of a network sends, after one that may also arrange the exchange."""
    update = make_update(ModelConfig.model_validate_json(config), rows, tokens, fields)
    update()
    return {"sent": count_sent(update)}


def make_update(c: ModelConfig, rows: int, tokens: int, fields: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that makes one update of a fresh network on a batch of random rows without padding."""
    torch.manual_seed(0)
    text = torch.randint(3, c.target_size, (rows, tokens + 1))
    source = torch.randint(3, c.vocab_size, (rows, tokens)) if c.family == "encoder-decoder" else None
    batch = Batch(text[:, :-1].contiguous(), source=source, targets=text[:, 1:].contiguous())
    t = prepare(build(c), TrainConfig(precision="float32", device="cpu", **fields))
    model = data_parallel(loss_module(t.network.train(), objective(c), t.half))
    return lambda: step(model, t.optimizer, [batch], 1.0)


def peak_memory(c: ModelConfig, rows: int, tokens: int, fields: dict[str, Any]) -> int:
    """Return the peak of the bytes that torch has allocated between the first weight and the end of the second update."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        update = make_update(c, rows, tokens, fields)
        update()
        update()
    held = peak = 0
    assert found.profiler is not None and found.profiler.kineto_results is not None
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def count_sent(update: Callable[[], Any]) -> float:
    with CountedBytes() as counter:
        update()
    return counter.sent


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


if __name__ == "__main__":
    main(sys.argv[1:])
