"""C23: the quadratic cost of attention is real, and memory traffic matters more than arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import torch
from torch import nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import Estimate, difference, estimate, exceeds
from qkv.lab.timing import sample
from qkv.lab.training import make_recipe, train_network
from qkv.lab.workers import report_killed_process
from qkv.look.charts import curves
from qkv.models.build import build
from qkv.models.flops import forward_flops
from qkv.parts.softmax import Softmax

FAST, READABLE = "full, fast kernel", "full, readable"
METHODS: dict[str, dict[str, Any]] = {
    FAST: {}, READABLE: {}, "window (Longformer)": {"mixer": "window", "window": 128},
    "Linformer": {"mixer": "linformer", "mixer_rank": 64},
    "Performer": {"mixer": "performer", "mixer_rank": 64}, "compressed (DMCA)": {"mixer": "compressed", "compression": 3},
}  # fmt: skip
APPROXIMATIONS = tuple(name for name in METHODS if name not in (FAST, READABLE))
WIDTH, HEADS = 128, 2
QUADRATIC, LESS_TIME, LESS_MEMORY = 1.6, 0.8, 0.5
"""Smallest exponent that counts as quadratic; largest shares of the time and memory of the plain formula for the exact kernel."""
REPEATS = 3
Times = dict[str, dict[int, list[float]]]
"""Method -> length -> seconds of each repeat."""


def config(name: str, n: int) -> ModelConfig:
    """One bidirectional attention layer without feed-forward layer, so that its cost is that of attention."""
    return ModelConfig(family="encoder", head="none", vocab_size=100, d_model=WIDTH, n_layers=1, n_heads=HEADS, feedforward="none",
                       norm_order="pre", max_length=n, dropout=0.0, **METHODS[name])  # fmt: skip


def make_network(name: str, n: int) -> nn.Module:
    torch.manual_seed(0)
    network = build(config(name, n)).train()
    for module in network.modules():
        if isinstance(module, Softmax) and name == READABLE:
            module.fast = False
    return network


def pass_over(network: Any, ids: torch.Tensor) -> None:
    """Forward and backward over one text."""
    network.zero_grad(set_to_none=True)
    network(Batch(ids)).hidden.sum().backward()


def seconds(name: str, n: int, repeats: int) -> list[float]:
    """Seconds of a pass over one text of n tokens, forward and backward: each value is the faster of two passes."""
    network, ids = make_network(name, n), torch.randint(0, 100, (1, n))
    pass_over(network, ids)
    return [min(sample(lambda: pass_over(network, ids), 1) for _ in range(2)) for _ in range(repeats)]


def peak_megabytes(name: str, n: int) -> float:
    """Peak memory of this process during a pass over a text of n tokens, beyond what it held before.

    For a fresh process: memory that an earlier pass freed would be used again, and the peak would be too low.
    """
    pass_over(make_network(name, 256), torch.randint(0, 100, (1, 256)))  # loads the libraries
    network, ids = make_network(name, n), torch.randint(0, 100, (1, n))
    before = reset_peak()
    pass_over(network, ids)
    return max(read_peak() - before, 0.0)


def reset_peak() -> float:
    """Set the recorded peak of this process' memory to what it holds now, where the system can, and return it in MB."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return read_peak()


def read_peak() -> float:
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_memory(name: str, lengths: Sequence[int]) -> list[float]:
    """Peak memory at each length, every one in a process of its own."""
    with report_killed_process(), ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as fresh:
        return list(fresh.map(peak_megabytes, [name] * len(lengths), lengths))


def loss(name: str, steps: int, seed: int) -> float:
    """Held-out loss of masked tokens of Python's standard library in windows of 256 tokens."""
    model = {"family": "encoder", "head": "masked", "d_model": 64, "n_layers": 2, "n_heads": 2, "d_ff": 128, "norm_order": "pre",
             "embed_scale": True, "max_length": 256, "tie": "output", **METHODS[name]}  # fmt: skip
    if name.startswith("window"):
        model["window"] = 32
    data = {"train": [{"stdlib": True, "share": [0.0, 0.04]}], "valid": {"stdlib": True, "share": [0.0, 0.1]}, "vocab_size": 400,
            "tokenizer": "byte-bpe", "max_length": 256, "batch_tokens": 2048}  # fmt: skip
    recipe = make_recipe("masked", model, data, train={"steps": steps, "seed": seed, "learning_rate": 3e-3})
    return train_network(recipe).last["loss"]


def run(lab: Experiment) -> ClaimResult:
    lengths, steps = ((1024, 2048, 4096, 8192, 16_384), 2000) if lab.full else ((1024, 2048, 4096), 150)
    longest = {name: [n for n in lengths if name != READABLE or n <= 8192] for name in METHODS}  # 16,384: 10 GB
    time: Times = {
        name: {n: lab.measure(f"time, {name}, {n}", seconds, name, n, REPEATS) for n in own}
        for name, own in longest.items()
    }
    memory = {
        name: dict(zip(own, lab.measure(f"memory, {name}", measure_memory, name, own), strict=True))
        for name, own in longest.items()
    }
    work = {name: {n: forward_flops(config(name, n), [(1, n, 0)]) for n in own} for name, own in longest.items()}
    quality = {
        name: estimate(own)
        for name, own in lab.grid(loss, {name: (name, steps) for name in METHODS if name != READABLE}).items()
    }
    first, last = longest[READABLE][0], longest[READABLE][-1]
    growth = estimate([exponent({n: time[READABLE][n][i] for n in longest[READABLE]}) for i in range(REPEATS)])
    memory_growth, share = exponent(memory[READABLE]), memory[FAST][last] / max(memory[READABLE][last], 1e-9)
    speed = {name: speed_of_kernel(time, name, last) for name in METHODS if name != FAST}
    ahead = {name: exceeds(speed[name]) for name in APPROXIMATIONS}
    parts = (exceeds(growth, QUADRATIC), memory_growth > QUADRATIC, exceeds(speed[READABLE], -math.log(LESS_TIME)),
             share < LESS_MEMORY, competes(list(ahead.values())))  # fmt: skip
    rows = [
        [name, f"{work[name][last]:.2e}", *(f"{1000 * mean(time[name][n]):.3g}" if n in time[name] else "" for n in lengths),
         *(f"{memory[name][n]:.0f}" if n in memory[name] else "" for n in lengths), quality[name].text(3) if name in quality else ""]
        for name in METHODS
    ]  # fmt: skip
    return ClaimResult(
        judge(*parts),
        f"From {first:,} to {last:,} tokens the time of the plain PyTorch formula grows as n^{growth.text(2)}, its memory as "
        f"n^{memory_growth:.2f}. At {last:,} tokens the exact kernel, with the same {work[FAST][last]:.1e} operations, takes "
        f"{math.exp(-speed[READABLE].mean):.0%} of its time and {share:.0%} of its memory. Time of approximations relative to the exact "
        "kernel: " + ", ".join(f"{name} {math.exp(speed[name].mean):.2f} with {work[name][last] / work[FAST][last]:.0%} of the operations"
                               for name in APPROXIMATIONS)
        + ". Loss of masked tokens, in nats: " + ", ".join(f"{one.text(2)} ({name})" for name, one in quality.items()) + ".",
        Table(["method", f"operations, n = {last:,}", *(f"n = {n:,}, ms" for n in lengths), *(f"n = {n:,}, MB" for n in lengths),
               "held-out loss, 256 tokens"], rows),
        picture(time, memory),
        f"{REPEATS} repeats (time); {lab.basis} (loss)",
    )  # fmt: skip


def speed_of_kernel(time: Times, name: str, n: int) -> Estimate:
    """Log of the time of a method divided by that of the exact kernel, over the repeats; above 0 where the kernel is faster."""
    return difference(*([math.log(one) for one in time[which][n]] for which in (name, FAST)))


def competes(ahead: Sequence[bool | None]) -> bool | None:
    """Whether the exact kernel is faster than at least half of the approximations; None where undecided ones could tip it."""
    half = len(ahead) / 2
    return True if ahead.count(True) >= half else False if ahead.count(False) > half else None


def exponent(values: dict[int, float]) -> float:
    """Slope of log(value) over log(n) from the first length to the last."""
    first, last = min(values), max(values)
    return math.log(max(values[last], 1e-9) / max(values[first], 1e-9)) / math.log(last / first)


def picture(time: Times, memory: dict[str, dict[int, float]]) -> str:
    """Draw time and memory of each method against the length; memory that is too small to be measured as 0.1 MB."""
    panels = {
        "time, ms": {name: [(n, 1000 * mean(own)) for n, own in time[name].items()] for name in METHODS},
        "peak memory, MB": {name: [(n, max(own, 0.1)) for n, own in memory[name].items()] for name in METHODS},
    }
    return curves(panels, "One attention layer, forward and backward", "tokens per text", True, True, height=300)


CLAIM = Claim(
    "C23",
    "The quadratic cost of attention is real, and memory traffic matters more than arithmetic: an exact kernel that keeps the attention "
    "weights in fast memory competes with approximations that compute less.",
    "000",
    "One bidirectional attention layer, forward and backward, over texts of 1,024 to 4,096 tokens (full: 16,384): time, peak memory, "
    'operations. "Full, readable" is the plain PyTorch formula, "full, fast kernel", the exact kernel, computes the same in blocks. Masked '
    "language models of Python's standard library with each method: held-out loss.",
    f"Time or memory of the plain PyTorch formula that grows more slowly than n^{QUADRATIC}; an exact kernel that takes {LESS_TIME:.0%} or "
    f"more of its time, or {LESS_MEMORY:.0%} or more of its memory, with the same operations; an exact kernel that is slower than more "
    "than half of the approximations. All at the longest text that the plain formula fits; times by 95 % intervals over "
    f"{REPEATS} repeats. Only some of the five parts shown: holds in part.",
    run,
    2.5,
)
