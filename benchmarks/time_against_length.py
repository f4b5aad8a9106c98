"""Time of a training step against length (claims C4, C5): `python benchmarks/time_against_length.py [--write docs/results.md]`.

Language models as `qkv train` has them, of equal width and about equal weights, 24 d^2 beside the words: 12 Elman layers, 4 of
GRU, 3 of LSTM, 2 blocks of a Transformer, its attention by the fast kernel and the readable way, 2 blocks with linear
attention, plain and gated, 4 of Mamba's. Each is timed forward, and forward and backward, over lengths 16 to 4,096, in two
ways: 4,096 tokens a step, in as many texts as that makes, and one text a step. Then LSTM and Transformer at other widths:
which wins where.

Systems are visited in turn, figures are medians. About half an hour on two quiet cores (--repeats 3: 20 minutes); --quick shows in
seconds that it runs. --write puts the tables into that page and the two pictures beside it.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from harness import measured, visit
from pages import machine, write

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.training_kernels import quicken
from qkv.look.charts import curves
from qkv.memory import keep_freed_memory
from qkv.models.build import build
from qkv.models.decoder import Decoder
from qkv.objectives import causal
from qkv.parts.linear_attention import GatedSum, Linear
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.softmax import Softmax
from qkv.parts.state_space import Selective

WORDS, D_HEAD = 256, 64
LAYERS = {"elman": 12, "gru": 4, "lstm": 3}
"""So that each has 24 d^2 weights, as two blocks have: a layer has 2 d^2 for every gate, a block 4 d^2 + 8 d^2."""
NAMES = {"elman": "Elman", "gru": "GRU", "lstm": "LSTM"}
FAST, READABLE = "Transformer, fast", "Transformer, readable"
LINEAR: dict[str, dict[str, Any]] = {
    "linear attention": {"mixer": ("linear",)},
    "gated linear attention": {"mixer": ("gated-linear",), "position": "none"},
    "selective (Mamba)": {"mixer": ("selective",), "position": "none", "feedforward": "none", "n_layers": 4},
}
LONG_ENOUGH = 0.05
"""Seconds of a sample: shorter steps are repeated within it."""
PICTURE, WIDTH_PICTURE = "time-against-length.svg", "time-against-width.svg"
Times = dict[str, dict[int, float]]
"""system -> {length: seconds per step}."""


@dataclass(frozen=True)
class Plan:
    """What is measured: which lengths, the width of all systems, the widths of two, samples of each."""

    lengths: tuple[int, ...]
    width: int
    widths: tuple[int, ...]
    repeats: int


WHOLE = Plan(tuple(2**k for k in range(4, 13)), 256, (64, 256, 512), 5)
QUICK = Plan((16, 32, 64), 64, (64, 128), 1)


@dataclass(frozen=True)
class Way:
    """How a step is made up."""

    backward: bool
    rows: Callable[[int], int]
    """Texts in a step, by their length."""
    name: str


def ways(tokens: int) -> list[Way]:
    several, one = (lambda n: tokens // n, f"{tokens:,} tokens a step"), (lambda n: 1, "one text a step")
    return [
        Way(backward, rows, f"{name}, forward{' + backward' if backward else ''}")
        for rows, name in (several, one)
        for backward in (False, True)
    ]


# --- the systems


def recurrent(kind: str, d: int) -> ModelConfig:
    return ModelConfig(
        family="decoder", recurrent=kind, vocab_size=WORDS, d_model=d, n_layers=LAYERS[kind], position="none", dropout=0.0
    )  # fmt: skip


def transformer(d: int) -> ModelConfig:
    return ModelConfig(
        family="decoder", vocab_size=WORDS, d_model=d, n_layers=2, n_heads=max(d // D_HEAD, 1), d_ff=4 * d,
        norm_order="pre", feedforward="gelu", max_length=WHOLE.lengths[-1], dropout=0.0,
    )  # fmt: skip


def systems(d: int) -> dict[str, Decoder]:
    """Fresh networks of width d, ready to be trained."""
    torch.manual_seed(0)
    configs = {NAMES[kind]: recurrent(kind, d) for kind in LAYERS}
    configs |= {FAST: transformer(d), READABLE: transformer(d)}
    configs |= {name: transformer(d).changed(**changes) for name, changes in LINEAR.items()}
    networks: dict[str, Any] = {name: quicken(build(config)).train() for name, config in configs.items()}
    for module in networks[READABLE].modules():
        if isinstance(module, Softmax):
            module.fast = False
    return networks


def serial_steps(network: Decoder, n: int) -> int:
    """How many states are formed one after the other, each from the one before: n in every recurrent or selective layer,
    one for every chunk of linear attention; softmax has none, so that its layers are what is left."""
    if isinstance(network.stack, RecurrentStack):
        return network.stack.cells.num_layers * n
    chunks = [m.chunk for m in network.modules() if isinstance(m, Linear | GatedSum)]
    chunks += [1 for m in network.modules() if isinstance(m, Selective)]
    return sum(math.ceil(n / chunk) for chunk in chunks) or len(network.stack.blocks)


# --- measuring


def step(network: Decoder, batch: Batch, backward: bool) -> Callable[[], None]:
    def run() -> None:
        with torch.set_grad_enabled(backward):
            loss = causal(network(batch), batch).mean
        if backward:
            network.zero_grad(set_to_none=True)
            loss.backward()

    return run


def sampler(unit: Callable[[], None]) -> Callable[[], dict[str, Any]]:
    """Warms up; then each sample is so many units that it lasts, and its seconds are those of one."""
    unit()
    start = time.perf_counter()
    unit()
    count = max(1, math.ceil(LONG_ENOUGH / (time.perf_counter() - start)))

    def sample() -> dict[str, Any]:
        taken = measured(lambda: [unit() for _ in range(count)])
        return {**taken, "seconds": taken["seconds"] / count}

    return sample


def times(networks: Mapping[str, Decoder], way: Way, plan: Plan) -> Times:
    found: Times = {name: {} for name in networks}
    for n in plan.lengths:
        text = torch.randint(0, WORDS, (way.rows(n), n + 1))
        batch = Batch(text[:, :-1].contiguous(), targets=text[:, 1:].contiguous())  # (B, T) each
        samplers = {name: sampler(step(network, batch, way.backward)) for name, network in networks.items()}
        for name, samples in visit(samplers, plan.repeats, retries=plan.repeats // 2).items():
            found[name][n] = statistics.median(s["seconds"] for s in samples)
        now = ", ".join(f"{name} {1000 * line[n]:.3g}" for name, line in found.items())
        print(f"{way.name}, n = {n:,}: {now} ms", file=sys.stderr, flush=True)
    return found


# --- reading the figures


def winners(a: Mapping[int, float], b: Mapping[int, float]) -> list[tuple[bool, float]]:
    """Who is faster from where on: (is it a, length), the first from the shortest length. Where the lines cross is
    interpolated on logarithmic axes."""
    lengths = sorted(a)
    found = [(a[lengths[0]] <= b[lengths[0]], float(lengths[0]))]
    gap = {n: math.log(a[n] / b[n]) for n in lengths}
    for n, m in itertools.pairwise(lengths):
        if (gap[m] <= 0) != found[-1][0]:
            share = gap[n] / (gap[n] - gap[m])
            found.append((gap[m] <= 0, n * (m / n) ** share))
    return found


def verdict(a: str, b: str, found: Times) -> str:
    """LSTM up to n = 30, the Transformer from there on."""
    changes = winners(found[a], found[b])
    names = [a if is_a else b for is_a, _ in changes]
    if len(changes) == 1:
        return f"{names[0]} at every length"
    borders = [f"up to n = {at:,.0f}" for _, at in changes[1:]]
    return ", ".join(f"{name} {border}" for name, border in zip(names, borders, strict=False)) + f", then {names[-1]}"


def exponent(found: Mapping[int, float]) -> float:
    """Slope of log(time) over log(n) from the third last length on, a quarter of the longest: 1 = O(n), 2 = O(n^2)."""
    first, last = sorted(found)[-3], max(found)
    return math.log(found[last] / found[first]) / math.log(last / first)


# --- telling


def table(title: str, found: Times) -> Iterator[str]:
    lengths = sorted(next(iter(found.values())))
    yield f"**{title}**, ms\n"
    yield "| system | " + " | ".join(f"n = {n:,}" for n in lengths) + " | exponent |"
    yield "|---" + "|---:" * (len(lengths) + 1) + "|"
    for name, by_length in found.items():
        cells = " | ".join(f"{1000 * by_length[n]:.3g}" for n in lengths)
        yield f"| {name} | {cells} | {exponent(by_length):.2f} |"
    yield ""


def who(networks: Mapping[str, Decoder], longest: int) -> Iterator[str]:
    yield f"| system | layers | parameters | serial steps of a pass over n | for n = {longest:,} |"
    yield "|---|---:|---:|---|---:|"
    for name, network in networks.items():
        layers = (
            network.stack.cells.num_layers if isinstance(network.stack, RecurrentStack) else len(network.stack.blocks)
        )
        steps = [serial_steps(network, n) for n in (longest // 2, longest)]
        growth = "O(n)" if steps[1] > steps[0] else "O(1)"
        each = f", one for {layers * longest / steps[1]:.0f} tokens" if layers < steps[1] < layers * longest else ""
        yield f"| {name} | {layers} | {sum(p.numel() for p in network.parameters()):,} | {growth}{each} | {steps[1]:,} |"
    yield ""


def against_length(networks: Mapping[str, Decoder], plan: Plan) -> tuple[list[str], str]:
    """All systems, all ways: tables and a picture."""
    lines, panels = [], {}
    for way in ways(plan.lengths[-1]):
        found = times(networks, way, plan)
        lines += [*table(way.name, found), f"Of LSTM and Transformer the faster one: {verdict('LSTM', FAST, found)}.\n"]
        panels[f"{way.name}, ms"] = {name: [(n, 1000 * s) for n, s in line.items()] for name, line in found.items()}
    title = f"Time of a step against length, width {plan.width}"
    return lines, curves(panels, title, "tokens in a text", True, True, height=270)


def against_width(plan: Plan) -> tuple[list[str], str]:
    """LSTM and Transformer at several widths, forward and backward: a table and a picture of the time per token."""
    lines = ["| width d | step | faster | pairs overtake matrices at |", "|---:|---|---|---:|"]
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for way in (way for way in ways(plan.lengths[-1]) if way.backward):
        panel = panels.setdefault(f"{way.name}: µs per token", {})
        for d in plan.widths:
            networks = {name: network for name, network in systems(d).items() if name in ("LSTM", FAST)}
            found = times(networks, way, plan)
            lines.append(f"| {d} | {way.name} | {verdict('LSTM', FAST, found)} | n = {12 * d:,} |")
            for name, by_length in found.items():
                panel[f"{name}, d = {d}"] = [(n, 1e6 * s / (n * way.rows(n))) for n, s in by_length.items()]
    return lines, curves(panels, "Time per token against length and width", "tokens in a text", True, True, height=320)


NOTE = """The last column is arithmetic: a block's matrices take 12 d^2 multiplications a token, its pairs n d (n / 2 keys on
average, once for the score and once for the average), so pairs overtake at n = 12 d; an LSTM layer always takes 8 d^2. What is
measured also has the serial steps in it, each of which is too small to fill a processor when few texts go side by side."""


def report(plan: Plan) -> tuple[str, dict[str, str]]:
    """The section, and the pictures by name."""
    keep_freed_memory()
    networks = systems(plan.width)
    by_length, picture = against_length(networks, plan)
    by_width, width_picture = against_width(plan)
    lines = [
        "## Time against length (C4, C5)\n",
        f"{datetime.date.today()}, `python benchmarks/time_against_length.py --repeats {plan.repeats}`, on {machine()},",
        f"{torch.get_num_threads()} threads. Width {plan.width}; medians of {plan.repeats}, systems in turn.\n",
        *who(networks, plan.lengths[-1]),
        *by_length,
        f"![Time of a step against length]({PICTURE})\n",
        "**Which wins depends on n against d**\n",
        *by_width,
        f"\n{NOTE}\n",
        f"![Time per token against length and width]({WIDTH_PICTURE})",
    ]
    return "\n".join(lines), {PICTURE: picture, WIDTH_PICTURE: width_picture}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=WHOLE.repeats)
    parser.add_argument("--quick", action="store_true", help="small, short and once: that it runs")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    page, pictures = report(QUICK if options.quick else replace(WHOLE, repeats=options.repeats))
    print(page)
    if options.write:
        write(options.write, "length", page)
        for name, picture in pictures.items():
            (options.write.parent / name).write_text(picture)


if __name__ == "__main__":
    main()
