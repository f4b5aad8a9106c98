"""Predictions of `qkv plan` against runs on this machine: time, memory and traffic of an update with 1, 2 and 4 workers.

    python -m benchmarks.plan_check           # measure this machine, then predict and measure; 4 minutes on two idle cores
    python -m benchmarks.plan_check --keep    # with the constants of the last `qkv plan --calibrate`

Workers have one thread each; 4 workers on 2 cores share them. Time is the median of the updates. Memory is the peak of torch's allocations
in a worker, weights and optimiser state included, from its profiler. Traffic is counted twice: the sizes of all collectives, times a
ring's share, and the bytes that the loopback interface has carried.
"""

from __future__ import annotations

import sys
import time
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
from qkv.models.build import build
from qkv.objectives import objective
from qkv.plan.calibrate import calibrate, run_workers
from qkv.plan.job import Job
from qkv.plan.layout import Layout
from qkv.plan.network import network_size
from qkv.plan.plans import make_plan
from qkv.plan.this_machine import GLOO, save, this_machine
from qkv.train.loop import prepare
from qkv.train.step import data_parallel, loss_module, step

LIMIT = 0.2
SMALL = dict(d_ff=1024, norm_order="pre", feedforward="gelu", position="learned", dropout=0.0)
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


def main(arguments: list[str]) -> None:
    """Print a table of predictions and measurements; exit with 1 if one is off by more than LIMIT."""
    if "--keep" not in arguments:
        save(calibrate())
    machine = this_machine()
    worst = 0.0
    print("| network | layout | time, s | | memory, MB | | sent, MB | | |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (c, rows, tokens) in NETWORKS.items():
        size = network_size(c, tokens, tokens if c.family == "encoder-decoder" else 0, table=True)
        for layout in (Layout(data=n) for n in (1, 2, 4)):
            job = Job(size, "float32", rows)
            plan = make_plan(job, layout.with_rows(job, -(-rows // layout.data)), machine)
            found = run_workers(measure, layout.workers, name)
            pairs = [(plan.seconds, found["seconds"]), (plan.bytes / 1e6, found["memory"] / 1e6),
                     (sum(plan.traffic.values()) / 1e6, found["sent"] / 1e6)]  # fmt: skip
            worst = max(worst, *(abs(p / m - 1) for p, m in pairs if m))
            cells = [f"{p:.3g} | {m:.3g} ({p / m - 1:+.0%})" if m else "0 | 0" for p, m in pairs]
            wire = found["wire"] / max(found["sent"], 1)
            print(f"| {name} | {layout.name} | {' | '.join(cells)} | {wire:.2f} |", flush=True)
            if "-v" in arguments:
                print({k: round(v / 1e6, 1) for k, v in plan.memory.items()}, plan.times)
    print(f"largest deviation: {worst:.0%}")
    sys.exit(worst > LIMIT)


def measure(name: str) -> dict[str, Any]:
    """Train a network for some updates; return the time of one, the peak of memory, and the bytes sent, on rank 0."""
    c, rows, tokens = NETWORKS[name]
    update = make_update(c, full_batch(c, rows, tokens))
    update()
    memory = peak_memory(c, rows, tokens)
    with CountedBytes() as counter:
        update()
    times, before = [], loopback()
    for _ in range(UPDATES):
        start = time.perf_counter()
        update()
        times.append(time.perf_counter() - start)
    wire = (loopback() - before) / UPDATES / (dist.get_world_size() if dist.is_initialized() else 1)
    return {"seconds": sorted(times)[UPDATES // 2], "memory": memory, "sent": counter.sent, "wire": wire}


def make_update(c: ModelConfig, batch: Batch) -> Any:
    """Return a function that makes one update of a fresh network."""
    torch.manual_seed(0)
    t = prepare(build(c), TrainConfig(precision="float32", device="cpu"))
    model = data_parallel(loss_module(t.network.train(), objective(c), t.half))
    return lambda: step(model, t.optimizer, [batch], 1.0)


def full_batch(c: ModelConfig, rows: int, tokens: int) -> Batch:
    """Return random rows without padding."""
    text = torch.randint(3, c.target_size, (rows, tokens + 1))
    source = torch.randint(3, c.vocab_size, (rows, tokens)) if c.family == "encoder-decoder" else None
    return Batch(text[:, :-1].contiguous(), source=source, targets=text[:, 1:].contiguous())


def peak_memory(c: ModelConfig, rows: int, tokens: int) -> int:
    """Return the peak of the bytes that torch has allocated between the first weight and the second update's end."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        update = make_update(c, full_batch(c, rows, tokens))
        update()
        update()
    held = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


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
