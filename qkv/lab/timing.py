"""Time of a training step against the length of its texts, for language models of equal width and about equal weights (C4, C5)."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.training_kernels import quicken
from qkv.models.build import build
from qkv.models.decoder import Decoder
from qkv.objectives import causal
from qkv.parts.softmax import Softmax

T = TypeVar("T")
VOCABULARY, D_HEAD = 256, 64
LAYERS = {"elman": 12, "gru": 4, "lstm": 3}
"""So that each has 24 d^2 weights, as two blocks have: a layer has 2 d^2 for every gate, a block 4 d^2 + 8 d^2."""
NAMES = {"elman": "Elman", "gru": "GRU", "lstm": "LSTM"}
FAST, READABLE = "Transformer, fast", "Transformer, readable"
LINEAR: dict[str, dict[str, Any]] = {
    "linear attention": {"mixer": ("linear",)},
    "gated linear attention": {"mixer": ("gated-linear",), "position": "none"},
    "selective (Mamba)": {"mixer": ("selective",), "position": "none", "feedforward": "none", "n_layers": 4},
}
LONGEST = 16_384
ENOUGH = 0.03
"""Minimum duration of a sample in seconds: short steps are repeated."""


# --- the systems


def recurrent(kind: Any, d: int) -> ModelConfig:
    return ModelConfig(
        family="decoder", recurrent=kind, vocab_size=VOCABULARY, d_model=d, n_layers=LAYERS[kind], position="none", dropout=0.0
    )  # fmt: skip


def transformer(d: int) -> ModelConfig:
    return ModelConfig(
        family="decoder", vocab_size=VOCABULARY, d_model=d, n_layers=2, n_heads=max(d // D_HEAD, 1), d_ff=4 * d, norm_order="pre",
        feedforward="gelu", max_length=LONGEST, dropout=0.0,
    )  # fmt: skip


def make_systems(d: int, kernels: bool = True) -> dict[str, Decoder]:
    """Return fresh networks of width d, ready to be trained; without `kernels`, of torch's own operations only."""
    torch.manual_seed(0)
    configs = {NAMES[kind]: recurrent(kind, d) for kind in LAYERS}
    configs |= {FAST: transformer(d), READABLE: transformer(d)}
    configs |= {name: transformer(d).changed(**changes) for name, changes in LINEAR.items()}
    networks: dict[str, Any] = {name: build(config).train() for name, config in configs.items()}
    for module in networks[READABLE].modules():
        if isinstance(module, Softmax):
            module.fast = False
    return {name: quicken(network) for name, network in networks.items()} if kernels else networks


def serial_steps(network: Decoder, n: int) -> int:
    """Count the operations that cannot run at the same time: the longest chain in the autograd graph of a pass over n tokens, in which
    each operation needs the result of the one before.

    network: one without kernels and in double precision. A kernel, such as torch's for LSTMs in single precision, is one operation of
    the graph, however many steps are inside.
    """
    batch = random_batch(1, n)
    first = causal(network(batch), batch).mean.grad_fn
    depth: dict[Any, int] = {None: 0}  # inputs that need no gradient
    todo: list[Any] = [first]
    while todo:
        needs = [node for node, _ in todo[-1].next_functions]
        missing = [node for node in needs if node not in depth]
        if missing:
            todo += missing
        else:
            depth[todo.pop()] = 1 + max((depth[node] for node in needs), default=0)
    return depth[first]


# --- measurement


def step_seconds(networks: Mapping[str, Decoder], rows: int, n: int, backward: bool, repeats: int) -> dict[str, float]:
    """Time one step on `rows` texts of n tokens: the fastest of some samples; networks take turns, so that disturbances affect all
    alike."""
    batch = random_batch(rows, n)
    steps = {name: make_step(network, batch, backward) for name, network in networks.items()}
    counts = {name: max(1, math.ceil(ENOUGH / warm_up(step))) for name, step in steps.items()}
    best = dict.fromkeys(steps, math.inf)
    for _ in range(repeats):
        for name, step in steps.items():
            best[name] = min(best[name], sample(step, counts[name]))
    return best


def random_batch(rows: int, n: int) -> Batch:
    text = torch.randint(0, VOCABULARY, (rows, n + 1))
    return Batch(text[:, :-1].contiguous(), targets=text[:, 1:].contiguous())  # (B, T) each


def shuffle(items: Iterable[T], seed: int) -> list[T]:
    """Return the items in an order of this seed: each repeat of a measurement has its own."""
    chosen = list(items)
    random.Random(seed).shuffle(chosen)
    return chosen


def make_step(network: Decoder, batch: Batch, backward: bool) -> Callable[[], None]:
    def step() -> None:
        with torch.set_grad_enabled(backward):
            loss = causal(network(batch), batch).mean
        if backward:
            network.zero_grad(set_to_none=True)
            loss.backward()

    return step


def warm_up(step: Callable[[], None]) -> float:
    """Run a step for the first time, then once more; return the seconds of the second."""
    step()
    return sample(step, 1)


def sample(step: Callable[[], None], count: int) -> float:
    """Return the mean seconds of `count` steps."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


# --- evaluation


def crossings(a: Mapping[int, float], b: Mapping[int, float]) -> list[tuple[bool, float]]:
    """Return which of two is faster from which length on: (is it a, length), the first from the shortest length. Where the lines
    cross is interpolated on logarithmic axes."""
    lengths = sorted(a)
    found = [(a[lengths[0]] <= b[lengths[0]], float(lengths[0]))]
    gap = {n: math.log(a[n] / b[n]) for n in lengths}
    for n, m in itertools.pairwise(lengths):
        if (gap[m] <= 0) != found[-1][0]:
            share = gap[n] / (gap[n] - gap[m])
            found.append((gap[m] <= 0, n * (m / n) ** share))
    return found


def describe_crossings(a: str, b: str, times: Mapping[str, Mapping[int, float]]) -> str:
    """LSTM up to n = 30, then Transformer."""
    changes = crossings(times[a], times[b])
    names = [a if is_a else b for is_a, _ in changes]
    if len(changes) == 1:
        return f"{names[0]} at every length"
    borders = [f"up to n = {at:,.0f}" for _, at in changes[1:]]
    return ", ".join(f"{name} {border}" for name, border in zip(names, borders, strict=False)) + f", then {names[-1]}"


def exponent(times: Mapping[int, float]) -> float:
    """Slope of log(time) over log(n) from the third last length on, a quarter of the longest: 1 = O(n), 2 = O(n^2)."""
    first, last = sorted(times)[-3], max(times)
    return math.log(times[last] / times[first]) / math.log(last / first)
