"""Measure this machine: training and memory rates of workers with one thread each, and gloo's collectives on the loopback interface."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from qkv.batch import Batch
from qkv.config import ModelConfig, TrainConfig
from qkv.convert.files import read_json, write_json
from qkv.memory import keep_freed_memory
from qkv.models.build import build
from qkv.models.flops import training_flops
from qkv.objectives import causal
from qkv.plan.this_machine import ThisMachine, describe_host
from qkv.tasks.base import Say
from qkv.train.agent import LOOPBACK
from qkv.train.launch import cores as usable_cores
from qkv.train.loop import prepare, use_bfloat16
from qkv.train.step import gradients, loss_module

WIDTHS = {"float32": (64, 128, 256, 512, 1024), "bfloat16": (512, 1024)}
"""Precision -> widths of networks; bfloat16 where the processor has units for it."""
ROWS, TOKENS, VOCABULARY = 8, 64, 2048
"""Batch of a training step, and words of the network."""
COPIED = 256 * 2**20
"""Bytes that the memory is read and written with: far more than a processor caches."""
SIZES = (2**12, 2**16, 2**20, 2**23, 25 * 2**20, 2**27)
"""Bytes of the tensors of collectives, up to five times DistributedDataParallel's bucket."""
MOMENT = 0.4
"""Seconds of a measurement, at least; it ends with the repetition under way."""
Work = Callable[..., dict[str, Any]]


def precisions() -> list[str]:
    return [precision for precision in WIDTHS if precision == "float32" or use_bfloat16(torch.device("cpu"), "auto")]


def calibrate(say: Say = lambda _: None) -> ThisMachine:
    """Measure with 1 worker, with one per core, and collectives with 2 and 4 workers."""
    cores = usable_cores()
    counts = sorted({1, cores})
    rates: dict[str, dict[str, dict[str, float]]] = {precision: {} for precision in precisions()}
    memory_rates: dict[str, float] = {}
    peaks: dict[str, float] = {}
    for workers in counts:
        say(f"training with {workers} worker{'s' * (workers > 1)}, one thread each")
        found = run_workers(measure_compute, workers)
        memory_rates[str(workers)] = found["memory"]
        peaks = peaks or found["peaks"]
        for precision in precisions():
            rates[precision][str(workers)] = found["rates"][precision]
    collectives: dict[str, dict[str, dict[str, float]]] = {}
    for workers in sorted({2, 4, cores} - {1}):
        say(f"collectives of {workers} workers")
        for kind, seconds in run_workers(measure_collectives, workers).items():
            collectives.setdefault(kind, {})[str(workers)] = seconds
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ThisMachine(describe_host(), cores, float(memory), peaks, rates, memory_rates, collectives)


# --- workers


def run_workers(work: Work, count: int, *arguments: Any) -> dict[str, Any]:
    """Run `work` on so many workers, which are processes with one thread each in a gloo group; return what rank 0 returns."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (count, folder, work, arguments), nprocs=count)  # type: ignore[no-untyped-call]
        return read_json(Path(folder) / "found.json")  # type: ignore[no-any-return]


def worker(rank: int, count: int, folder: str, work: Work, arguments: tuple[Any, ...]) -> None:
    """Run `work` as one of the workers."""
    import torch.distributed.nn  # noqa: F401  before the group: see distributed.process_group

    if sys.platform in LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    torch.set_num_threads(1)
    keep_freed_memory()
    if count > 1:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", count), rank=rank, world_size=count)
    found = work(*arguments)
    if rank == 0:
        write_json(Path(folder) / "found.json", found)
    if count > 1:
        gc.collect()  # a DistributedDataParallel must be gone before its group
        dist.destroy_process_group()


def seconds_of(run: Callable[[], Any], least: float = MOMENT) -> float:
    """Return the median time of a call, all workers at once; the first call only warms up."""
    run()
    once: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < least or len(once) < 3:
        start = time.perf_counter()
        run()
        once.append(time.perf_counter() - start)
    return sorted(once)[len(once) // 2]


def wait_for_others() -> None:
    """Wait for the other workers."""
    if dist.is_initialized():
        dist.barrier()


# --- computation


def measure_compute() -> dict[str, Any]:
    """Return the rates of this worker while the others do the same."""
    rates: dict[str, dict[str, float]] = {}
    for precision in precisions():
        rates[precision] = {str(width): training_rate(width, precision) for width in WIDTHS[precision]}
    wait_for_others()
    source, target = torch.ones(COPIED // 4), torch.empty(COPIED // 4)
    memory = 2 * COPIED / seconds_of(lambda: target.copy_(source))
    return {
        "rates": rates,
        "memory": memory,
        "peaks": {precision: product_rate(precision) for precision in precisions()},
    }


def training_rate(width: int, precision: str) -> float:
    """Return the operations per second of forward and backward passes of a language model of this width."""
    c = ModelConfig(
        family="decoder", vocab_size=VOCABULARY, d_model=width, n_layers=2, n_heads=max(1, width // 64), d_ff=4 * width,
        norm_order="pre", feedforward="gelu", position="learned", max_length=TOKENS, dropout=0.0,
    )  # fmt: skip
    t = prepare(build(c), TrainConfig(precision=precision, device="cpu"))  # type: ignore[arg-type]
    model = loss_module(t.network.train(), causal, t.half)
    text = torch.randint(0, VOCABULARY, (ROWS, TOKENS + 1))
    batch = Batch(text[:, :-1].contiguous(), targets=text[:, 1:].contiguous())
    wait_for_others()
    return training_flops(c, [(ROWS, TOKENS, 0)]) / seconds_of(lambda: gradients(model, [batch]))


def product_rate(precision: str, size: int = 2048) -> float:
    """Return the operations per second of a product of square matrices."""
    a = torch.randn(size, size, dtype=getattr(torch, precision))
    return 2 * size**3 / seconds_of(lambda: a @ a)


# --- communication


def measure_collectives() -> dict[str, dict[str, float]]:
    """Return the seconds of every collective for tensors of several sizes."""
    count = dist.get_world_size()
    found: dict[str, dict[str, float]] = {"all_reduce": {}, "all_gather": {}, "reduce_scatter": {}}
    for size in SIZES:
        full = torch.ones(size // 4 // count * count)
        part = torch.ones(len(full) // count)
        for kind, run in (
            ("all_reduce", lambda full=full: dist.all_reduce(full)),
            ("all_gather", lambda full=full, part=part: dist.all_gather_single(full, part)),
            ("reduce_scatter", lambda full=full, part=part: dist.reduce_scatter_single(part, full)),
        ):
            found[kind][str(size)] = mean_seconds(run, 200 if size < 2**20 else 20 if size < 2**24 else 5)
    return found


def mean_seconds(run: Callable[[], Any], times: int) -> float:
    """Return the mean time of a collective; every worker must run it equally often. The first ones open connections."""
    for _ in range(3):
        run()
    wait_for_others()
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times
