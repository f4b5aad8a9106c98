"""C23: the quadratic cost of attention is real, and memory traffic matters more than arithmetic."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import estimate
from qkv.lab.timing import sample
from qkv.lab.training import make_recipe, train_network
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
WIDTH, HEADS = 128, 2


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


def seconds(name: str, n: int, repeats: int) -> float:
    """Fastest of some passes, forward and backward, over one text of n tokens."""
    network, ids = make_network(name, n), torch.randint(0, 100, (1, n))
    pass_over(network, ids)
    return min(sample(lambda: pass_over(network, ids), 1) for _ in range(repeats))


def peak_megabytes(name: str, lengths: tuple[int, ...]) -> list[float]:
    """Peak memory of this process during a pass over texts of each length, beyond what it held before: for a fresh process."""
    pass_over(make_network(name, 256), torch.randint(0, 100, (1, 256)))  # loads the libraries
    found = []
    for n in lengths:
        network, ids = make_network(name, n), torch.randint(0, 100, (1, n))
        before = reset_peak()
        pass_over(network, ids)
        found.append(max(read_peak() - before, 0.0))
    return found


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


def measure_memory(name: str, lengths: tuple[int, ...]) -> list[float]:
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(peak_megabytes, name, lengths).result()


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
    lengths, repeats, steps = ((1024, 2048, 4096, 8192, 16_384), 5, 2000) if lab.full else ((1024, 2048, 4096), 3, 150)
    longest = {
        name: [n for n in lengths if name != READABLE or n <= 8192] for name in METHODS
    }  # the table of 16,384 takes 10 GB
    time = {
        name: {n: lab.measure(f"time, {name}, {n}", seconds, name, n, repeats) for n in own}
        for name, own in longest.items()
    }
    memory = {
        name: dict(zip(own, lab.measure(f"memory, {name}", measure_memory, name, tuple(own)), strict=True))
        for name, own in longest.items()
    }
    work = {name: {n: forward_flops(config(name, n), [(1, n, 0)]) for n in own} for name, own in longest.items()}
    quality = {
        name: estimate(own)
        for name, own in lab.grid(loss, {name: (name, steps) for name in METHODS if name != READABLE}).items()
    }
    last = longest[READABLE][-1]
    growth = {key: exponent(table[READABLE]) for key, table in (("time", time), ("memory", memory))}
    quadratic = min(growth.values()) > 1.6
    traffic = time[FAST][last] < 0.8 * time[READABLE][last] and memory[FAST][last] < 0.5 * memory[READABLE][last]
    rows = [
        [name, f"{work[name][last]:.2e}", *(f"{1000 * time[name][n]:.3g}" if n in time[name] else "" for n in lengths),
         *(f"{memory[name][n]:.0f}" if n in memory[name] else "" for n in lengths), quality[name].text(3) if name in quality else ""]
        for name in METHODS
    ]  # fmt: skip
    panels = {title: {name: [(n, factor * max(value, 0.1 / factor)) for n, value in table[name].items()] for name in METHODS}
              for title, table, factor in (("time, ms", time, 1000.0), ("peak memory, MB", memory, 1.0))}  # fmt: skip
    quicker = [name for name in METHODS if name not in (FAST, READABLE) and time[name][last] < time[FAST][last]]
    return ClaimResult(
        decide(quadratic and traffic, quadratic or traffic),
        f"From {longest[READABLE][0]:,} to {last:,} tokens time and memory of the readable formula grow as n^{growth['time']:.2f} and "
        f"n^{growth['memory']:.2f}. The fast kernel, with the same {work[FAST][last]:.1e} operations, takes "
        f"{time[FAST][last] / time[READABLE][last]:.0%} of its time and "
        f"{memory[FAST][last] / max(memory[READABLE][last], 1e-9):.0%} of its "
        f"memory at {last:,} tokens. Faster still: {', '.join(quicker) or 'none'}. Loss of masked tokens: "
        + ", ".join(f"{one.text(2)} ({name})" for name, one in quality.items()) + ".",
        Table(["method", f"operations, n = {last:,}", *(f"n = {n:,}, ms" for n in lengths), *(f"n = {n:,}, MB" for n in lengths),
               "held-out loss, 256 tokens"], rows),
        curves(panels, "One attention layer, forward and backward", "tokens in a text", True, True, height=300),
        f"fastest of {repeats} (time); {lab.basis} (loss)",
    )  # fmt: skip


def exponent(values: dict[int, float]) -> float:
    """Slope of log(value) over log(n) from the first length to the last."""
    first, last = min(values), max(values)
    return math.log(max(values[last], 1e-9) / max(values[first], 1e-9)) / math.log(last / first)


CLAIM = Claim(
    "C23",
    "The quadratic cost of attention is real, and memory traffic matters more than arithmetic: an exact kernel that keeps "
    "its tables in fast "
    "memory competes with approximations that compute less.",
    "000",
    "One bidirectional attention layer, forward and backward, over texts of 1,024 to 4,096 tokens (full: 16,384): time, peak memory, "
    "operations. And masked language models of the standard library with each method: held-out loss.",
    "Time or memory of the readable formula that grow by less than n^1.6; or an exact kernel that is not faster (less than "
    "80 % of the time, "
    "half of the memory) with the same operations. One of the two: in part.",
    run,
    2.5,
)
