"""C4: a recurrent network takes O(n) serial steps, a Transformer O(1)."""

from __future__ import annotations

from functools import cache

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.timing import (
    FAST,
    LINEAR,
    NAMES,
    READABLE,
    describe_crossings,
    exponent,
    make_systems,
    serial_steps,
    step_seconds,
)
from qkv.look.charts import curves
from qkv.memory import keep_freed_memory
from qkv.models.decoder import Decoder

RECURRENT = tuple(NAMES.values())
ORDER = (*RECURRENT, FAST, READABLE, *LINEAR)


@cache
def networks(width: int) -> dict[str, Decoder]:
    keep_freed_memory()
    return make_systems(width)


def count_steps(width: int, longest: int) -> dict[str, list[int]]:
    """Serial steps of a pass over half of the longest text and over all of it."""
    return {
        name: [serial_steps(network, n) for n in (longest // 2, longest)] for name, network in networks(width).items()
    }


def measure(width: int, n: int, tokens: int, repeats: int) -> dict[str, float]:
    """Seconds of a training step on texts of n tokens, `tokens` of them in all (0 = one text)."""
    return step_seconds(networks(width), max(1, tokens // n), n, True, repeats)


def run(lab: Experiment) -> ClaimResult:
    width, longest, repeats = (256, 4096, 5) if lab.full else (128, 1024, 3)
    lengths = [n for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if n <= longest]
    steps = lab.measure("serial steps", count_steps, width, longest)
    ways = {"one text in a step": 0, f"{longest:,} tokens in a step": longest}
    times = {
        way: {n: lab.measure(f"{way}, {n} tokens", measure, width, n, tokens, repeats) for n in lengths}
        for way, tokens in ways.items()
    }
    lines = {way: {name: {n: own[n][name] for n in lengths} for name in ORDER} for way, own in times.items()}
    one, many = lines.values()
    counted = all(steps[name][1] == 2 * steps[name][0] for name in RECURRENT) and steps[FAST][0] == steps[FAST][1]
    linear = all(exponent(one[name]) > 0.8 for name in RECURRENT)
    constant = exponent(one[FAST]) < 0.2
    faster = all(own[FAST][longest] < min(own[name][longest] for name in RECURRENT) for own in (one, many))
    rows = [
        [name, f"{steps[name][1]:,}", *(f"{1000 * one[name][n]:.3g}" for n in lengths), f"{exponent(one[name]):.2f}",
         f"{1000 * many[name][longest]:.3g}"] for name in ORDER
    ]  # fmt: skip
    panels = {
        f"{way}, ms": {name: [(n, 1000 * s) for n, s in line.items()] for name, line in own.items()}
        for way, own in lines.items()
    }
    return ClaimResult(
        decide(counted and linear and constant and faster, counted and linear and (constant or one[FAST][longest] < one["LSTM"][longest])),
        f"A pass over {longest:,} tokens has {steps['LSTM'][1]:,} serial steps in an LSTM and {steps[FAST][1]} in a Transformer. Time of a "
        f"training step grows as n^{exponent(one['LSTM']):.2f} (LSTM) and n^{exponent(one[FAST]):.2f} (Transformer) up to "
        f"{longest:,} tokens: "
        f"few cores cannot compute all positions at once. Faster with one text: {describe_crossings('LSTM', FAST, one)}; with "
        f"{longest:,} tokens in a step: {describe_crossings('LSTM', FAST, many)}.",
        Table(["network", f"serial steps, n = {longest:,}", *(f"n = {n:,}, ms" for n in lengths), "exponent",
               f"n = {longest:,}, {longest:,} tokens in a step, ms"], rows),
        curves(panels, f"Time of a training step, width {width}", "tokens in a text", True, True, height=300),
        f"exact (steps); fastest of {repeats} (time)",
    )  # fmt: skip


CLAIM = Claim(
    "C4",
    "A recurrent network reads n tokens in O(n) serial steps, forwards and backwards; a Transformer in O(1), and so in less time.",
    "001, 002, 003",
    "Language models of equal width and about equal weights: serial steps, and time of a training step against the length, "
    "with one text in "
    "a step and with a fixed number of tokens.",
    "Serial steps that do not grow as stated; a Transformer that is slower at the longest length. In part: its time grows with n.",
    run,
    2.5,
)
