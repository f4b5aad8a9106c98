"""Measure this machine: throughput and memory bandwidth of workers with one thread each, gloo's collectives on the loopback interface, and
the Python overhead of FSDP2 and DTensor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from qkv.batch import Batch
from qkv.config import ModelConfig, TrainConfig
from qkv.device import cores as usable_cores
from qkv.device import memory_size
from qkv.models.build import build
from qkv.models.flops import training_flops
from qkv.objectives import causal, objective
from qkv.plan.layout import Layout
from qkv.plan.network import network_size
from qkv.plan.this_machine import ThisMachine, describe_host
from qkv.plan.workers import call_on_workers
from qkv.tasks.base import Say
from qkv.train.loop import prepare, trained_model, use_bfloat16
from qkv.train.step import gradients, loss_module, step

WIDTHS = {"float32": (64, 128, 256, 512, 1024), "bfloat16": (512, 1024)}
"""Precision -> widths of networks; bfloat16 where the processor has units for it."""
ROWS, TOKENS, VOCABULARY = 8, 64, 2048
"""Batch of a training step, and words of the network."""
COPIED = 256 * 2**20
"""Bytes that are read and written to measure memory bandwidth: far more than a processor caches."""
SIZES = (2**12, 2**16, 2**20, 2**23, 25 * 2**20, 2**27)
"""Bytes of the tensors of collectives, up to five times DistributedDataParallel's bucket."""
DIVISIONS = {"data": Layout(data=2), "sharded": Layout(data=2, sharded=True), "tensor": Layout(tensor=2, rows=2)}
TINY = 64, 4
"""Width and layers of a network whose time is spent in Python and in communication."""
MOMENT = 0.4
"""Minimum duration of a measurement in seconds; the current repetition is completed."""


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
        found = call_on_workers(measure_compute, workers)
        memory_rates[str(workers)] = found["memory"]
        peaks = peaks or found["peaks"]
        for precision in precisions():
            rates[precision][str(workers)] = found["rates"][precision]
    collectives: dict[str, dict[str, dict[str, float]]] = {}
    for workers in sorted({2, 4, cores} - {1}):
        say(f"collectives of {workers} workers")
        for kind, seconds in call_on_workers(measure_collectives, workers).items():
            collectives.setdefault(kind, {})[str(workers)] = seconds
    say("2 workers with a sharded network")
    overheads = call_on_workers(measure_divisions, 2)
    return ThisMachine(describe_host(), cores, float(memory_size()), peaks, rates, memory_rates, collectives, overheads)


# --- measurement


def seconds_of(run: Callable[[], Any], least: float = MOMENT) -> float:
    """Return the median time of a call that all workers make at the same time; the first call is a warm-up."""
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
    """Return the throughput of this worker while the others measure theirs."""
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
    c = language_model(width, layers=2)
    t = prepare(build(c), TrainConfig(precision=precision, device="cpu"))  # type: ignore[arg-type]
    model = loss_module(t.network.train(), causal, t.half)
    batches = [random_batch(c, ROWS, TOKENS)]
    wait_for_others()
    return training_flops(c, [(ROWS, TOKENS, 0)]) / seconds_of(lambda: gradients(model, batches))


def language_model(width: int, layers: int) -> ModelConfig:
    return ModelConfig(
        family="decoder", vocab_size=VOCABULARY, d_model=width, n_layers=layers, n_heads=max(2, width // 64), d_ff=4 * width,
        norm_order="pre", feedforward="gelu", position="learned", max_length=TOKENS, dropout=0.0,
    )  # fmt: skip


def random_batch(c: ModelConfig, rows: int, tokens: int) -> Batch:
    """Return rows of random tokens without padding, the same on all workers."""
    draw = torch.Generator().manual_seed(1)
    text = torch.randint(3, c.target_size, (rows, tokens + 1), generator=draw)
    source = torch.randint(3, c.vocab_size, (rows, tokens), generator=draw) if c.family == "encoder-decoder" else None
    return Batch(text[:, :-1].contiguous(), source=source, targets=text[:, 1:].contiguous())


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


def mean_seconds(run: Callable[[], Any], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the mean time of a collective; every worker must call it equally often. The first calls open connections."""
    for _ in range(3):
        run()
    wait_for_others()
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


# --- division of a network


def make_update(c: ModelConfig, rows: int, tokens: int, train: TrainConfig) -> Callable[[], Any]:
    """Return a function that performs one update of a new network, as in training, on `train.accumulate` batches with `rows` rows in
    total."""
    torch.manual_seed(0)
    t = prepare(build(c), train)
    model = trained_model(t, objective(c))
    t.network.train()
    batches = [random_batch(c, rows // train.accumulate, tokens) for _ in range(train.accumulate)]
    return lambda: step(model, t.optimizer, batches, 1.0)


def measure_divisions() -> dict[str, float]:
    """Return the seconds that Python takes in each pass for a parameter under FSDP2, and for a matrix that tensor parallelism
    divides, from differences in the CPU time of updates of a network so small that its computation is negligible."""
    c, seconds = language_model(*TINY), {}
    for kind, at in DIVISIONS.items():
        update = make_update(c, 2, 2, TrainConfig(precision="float32", device="cpu", **at.train_fields()))
        seconds[kind] = mean_seconds(update, 30, time.process_time)
    size = network_size(c, 2)
    sharded, tensor = seconds["sharded"] - seconds["data"], seconds["tensor"] - seconds["sharded"]
    return {"sharded": max(sharded, 0) / size.tensors, "tensor": max(tensor, 0) / size.maps}
