"""C4: a recurrent network takes O(n) serial steps, a Transformer O(1)."""

from __future__ import annotations

import math
from functools import cache
from statistics import fmean
from typing import Any

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import below, estimate, exceeds
from qkv.lab.timing import (
    D_HEAD,
    FAST,
    LINEAR,
    NAMES,
    READABLE,
    describe_crossings,
    exponent,
    make_systems,
    serial_steps,
    shuffle,
    step_seconds,
)
from qkv.look.charts import curves
from qkv.memory import keep_freed_memory
from qkv.models.decoder import Decoder

RECURRENT = tuple(NAMES.values())
ORDER = (*RECURRENT, FAST, READABLE, *LINEAR)
SAMPLES = 2
"""Of each step in one repeat; the fastest counts."""
DOUBLED, GROWS, CONSTANT = 1.9, 0.8, 0.2
"""Growth of a recurrent network's serial steps when n doubles; exponents of time that count as O(n) and as O(1)."""
Times = dict[str, dict[int, float]]
"""Seconds by network and length."""


@cache
def networks(width: int) -> dict[str, Decoder]:
    keep_freed_memory()
    return make_systems(width)


def count_steps(longest: int) -> dict[str, list[int]]:
    """Serial steps of a pass over half of the longest text and over all of it; the width makes no difference."""
    systems = make_systems(D_HEAD, kernels=False)
    return {name: [serial_steps(one.double(), n) for n in (longest // 2, longest)] for name, one in systems.items()}


def measure(width: int, rows: int, n: int, seed: int) -> dict[str, float]:
    """Seconds of a training step of each network on `rows` texts of n tokens."""
    chosen = networks(width)
    return step_seconds({name: chosen[name] for name in shuffle(ORDER, seed)}, rows, n, True, SAMPLES)


def measure_times(lab: Experiment, width: int, ways: dict[str, dict[int, int]]) -> list[dict[str, Times]]:
    """Times of each way {length: rows}; all is measured once per seed, in another order each time."""
    rounds = []
    for seed in lab.seeds:
        cells = shuffle(sorted({(rows, n) for own in ways.values() for n, rows in own.items()}), seed)
        found = {
            (rows, n): lab.measure(f"{rows} x {n} tokens, repeat {seed}", measure, width, rows, n, seed)
            for rows, n in cells
        }
        rounds.append({way: {name: {n: found[rows, n][name] for n, rows in own.items()} for name in ORDER}
                       for way, own in ways.items()})  # fmt: skip
    return rounds


def judge_times(rounds: list[Times], longest: int) -> list[bool | None]:
    """Whether the time of recurrent networks grows as n, that of the Transformer does not, and it is faster than all of them."""
    least = [min(exponent(one[name]) for name in RECURRENT) for one in rounds]
    own = [exponent(one[FAST]) for one in rounds]
    lead = [math.log(min(one[name][longest] for name in RECURRENT) / one[FAST][longest]) for one in rounds]
    return [exceeds(estimate(least), GROWS), below(estimate(own), CONSTANT), exceeds(estimate(lead))]


def run(lab: Experiment) -> ClaimResult:
    width, longest = (256, 4096) if lab.full else (128, 1024)
    lengths = [n for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if n <= longest]
    steps = lab.measure("serial steps", count_steps, longest)
    alone, together = "one text per step", f"{longest:,} tokens per step"
    ways = {alone: dict.fromkeys(lengths, 1), together: {n: longest // n for n in lengths}}
    rounds = measure_times(lab, width, ways)
    means = {
        way: {name: {n: fmean(one[way][name][n] for one in rounds) for n in lengths} for name in ORDER} for way in ways
    }
    grow = {name: estimate([exponent(one[alone][name]) for one in rounds]) for name in ORDER}
    counted = all(steps[name][1] > DOUBLED * steps[name][0] for name in RECURRENT) and steps[FAST][0] == steps[FAST][1]
    rows = [
        [name, f"{steps[name][1]:,}", *(f"{1000 * means[alone][name][n]:.3g}" for n in lengths), grow[name].text(2)]
        for name in ORDER
    ]
    panels: dict[str, Any] = {
        f"{way}, ms": {name: [(n, 1000 * s) for n, s in line.items()] for name, line in own.items()}
        for way, own in means.items()
    }
    return ClaimResult(
        judge(counted, *judge_times([one[alone] for one in rounds], longest)),
        f"The longest chain of dependent operations of a pass over {longest:,} tokens has {steps['LSTM'][1]:,} of them in an LSTM and "
        f"{steps[FAST][1]} in a Transformer; over half as many tokens, {steps['LSTM'][0]:,} and {steps[FAST][0]}. The time of a training "
        f"step grows as n^({grow['LSTM'].text(2)}) (LSTM) and n^({grow[FAST].text(2)}) (Transformer) up to {longest:,} tokens. Faster with "
        f"one text: {describe_crossings('LSTM', FAST, means[alone])}; with {longest:,} tokens per training step: "
        f"{describe_crossings('LSTM', FAST, means[together])}.",
        Table(["network", f"serial steps, n = {longest:,}", *(f"n = {n:,}, ms" for n in lengths), "exponent"], rows),
        curves(panels, f"Time of a training step, width {width}", "tokens per text", True, True, height=300),
        f"exact (steps); {len(rounds)} repeats (time)",
    )  # fmt: skip


CLAIM = Claim(
    "C4",
    "A recurrent network processes n tokens in O(n) serial steps, forward and backward; a Transformer takes O(1), and so less time.",
    "001, 002, 003",
    "Language models of equal width and with about as many weights: serial steps (operations in the longest chain of the autograd graph, "
    "each of which needs the one before), and time of a training step by text length, with one text per training step and with a fixed "
    "number of tokens, repeated in another order for each seed.",
    f"Serial steps that do not grow by {DOUBLED} when n doubles (recurrent networks) or grow at all (Transformer); with one text per step, "
    f"a time that grows as n^{GROWS} or slower (recurrent networks), as n^{CONSTANT} or faster (Transformer); or, at the longest length, a "
    "Transformer that is not faster than all recurrent networks. Only some of these four: holds in part.",
    run,
    2.5,
)
