"""C5: a recurrent layer costs n d^2, attention n^2 d: which is cheaper depends on whether n or d is larger."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, median

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import estimate, exceeds, slope, within
from qkv.lab.timing import ENOUGH, crossings, exponent, sample, shuffle
from qkv.look.charts import curves
from qkv.parts.masks import Mask
from qkv.parts.scores import make_score
from qkv.parts.softmax import Softmax

HEAD, SAMPLES = 64, 2
COUNTED = ((64, 64), (128, 64), (64, 128))
"""Lengths and widths whose operations are counted."""
STATED = {"recurrent": (1, 2), "attention": (2, 1)}
"""Exponents of the length n and of the width d."""
NEAR = 0.3
"""By how much an exponent of time may differ from the stated one."""
Times = dict[int, dict[str, dict[int, float]]]
"""Seconds by width, layer and length."""


def layers(n: int, d: int) -> dict[str, Callable[[], Tensor]]:
    """An Elman layer, and attention by the readable formula without its projections (which cost n d^2 as the cell does), each as a
    forward pass over one text of n tokens."""
    torch.manual_seed(0)
    cell, mixer = nn.RNN(d, d, batch_first=True), Softmax(make_score("scaled-dot", max(1, d // HEAD), min(d, HEAD)))
    mixer.fast = False
    x = torch.randn(1, n, d, requires_grad=True)
    heads = [torch.randn(1, max(1, d // HEAD), n, min(d, HEAD), requires_grad=True) for _ in range(3)]  # (B, H, T, D)
    mask = Mask(n)
    return {"recurrent": lambda: cell(x)[0], "attention": lambda: mixer(*heads, mask, None)}


def operations(n: int, d: int) -> dict[str, int]:
    """Multiply-adds of a forward pass, counted by torch while it runs."""
    found = {}
    for name, layer in layers(n, d).items():
        with FlopCounterMode(display=False) as counter:
            layer()
        found[name] = counter.get_total_flops() // 2
    return found


def seconds(n: int, d: int, seed: int) -> dict[str, float]:
    """Time of a forward and backward pass of each: the fastest sample."""
    best, passes = {}, layers(n, d)
    for name in shuffle(passes, seed):
        step = lambda layer=passes[name]: layer().sum().backward()  # noqa: E731
        step()
        count = max(1, round(ENOUGH / max(sample(step, 1), 1e-6)))
        best[name] = min(sample(step, count) for _ in range(SAMPLES))
    return best


def measure_times(lab: Experiment, widths: tuple[int, ...], lengths: tuple[int, ...]) -> list[Times]:
    """All times, measured once per seed, in another order each time."""
    rounds = []
    for seed in lab.seeds:
        cells = shuffle([(d, n) for d in widths for n in lengths], seed)
        found = {(d, n): lab.measure(f"width {d}, {n} tokens, repeat {seed}", seconds, n, d, seed) for d, n in cells}
        rounds.append({d: {name: {n: found[d, n][name] for n in lengths} for name in STATED} for d in widths})
    return rounds


def moves(borders: dict[int, list[float]], lengths: tuple[int, ...]) -> bool | None:
    """Whether the length of equal times grows with the width; None where one lies outside of the measured lengths."""
    if not all(lengths[0] < one < lengths[-1] for own in borders.values() for one in own):
        return None
    x = [math.log(d) for d in borders]
    return exceeds(estimate([slope(x, [math.log(one) for one in own]) for own in zip(*borders.values(), strict=True)]))


def run(lab: Experiment) -> ClaimResult:
    widths, lengths = ((64, 256, 1024), (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)) if lab.full else (
        (64, 128, 256, 512), (16, 32, 64, 128, 256, 512, 1024, 2048))  # fmt: skip
    counts = {(n, d): lab.measure(f"operations, {n} tokens, width {d}", operations, n, d) for n, d in COUNTED}
    as_stated = all(own[name] == 2 * n**a * d**b for (n, d), own in counts.items() for name, (a, b) in STATED.items())
    rounds = measure_times(lab, widths, lengths)
    longer = {name: estimate([exponent(one[widths[0]][name]) for one in rounds]) for name in STATED}
    wider = {
        name: estimate([exponent({d: one[d][name][lengths[-1]] for d in widths}) for one in rounds]) for name in STATED
    }
    near = [within(found[name], stated - NEAR, stated + NEAR) for name, both in STATED.items()
            for found, stated in zip((longer, wider), both, strict=True)]  # fmt: skip
    borders = {d: [border(one[d]["attention"], one[d]["recurrent"]) for one in rounds] for d in widths}
    means = {
        d: {name: {n: fmean(one[d][name][n] for one in rounds) for n in lengths} for name in STATED} for d in widths
    }
    ends = [(name, n) for name in STATED for n in (lengths[0], lengths[-1])]
    rows = [
        [str(d), f"{d:,}", describe(borders[d], lengths), *(f"{1000 * means[d][name][n]:.3g}" for name, n in ends)]
        for d in widths
    ]
    panels = {
        f"width {d}, ms": {name: [(n, 1000 * s) for n, s in line.items()] for name, line in means[d].items()}
        for d in widths
    }
    return ClaimResult(
        judge(as_stated, *near, moves(borders, lengths)),
        f"Counted operations {'are' if as_stated else 'are not'} 2 n d^2 (recurrent) and 2 n^2 d (attention). Time grows as "
        f"n^({longer['recurrent'].text(2)}) and n^({longer['attention'].text(2)}) with the length, as d^({wider['recurrent'].text(2)}) and "
        f"d^({wider['attention'].text(2)}) with the width. Times are equal at n = "
        + ", ".join(f"{describe(borders[d], lengths)} (d = {d})" for d in widths) + ".",
        Table(["width d", "n at which 2 n d^2 = 2 n^2 d", "n at which times are equal (median)",
               *(f"{name}, n = {n:,}, ms" for name, n in ends)], rows),
        curves(panels, "One layer, forward and backward, one text", "tokens per text", True, True),
        f"exact (operations); {len(rounds)} repeats (time)",
    )  # fmt: skip


def border(attention: dict[int, float], recurrent: dict[int, float]) -> float:
    """The length beyond which attention stays slower; infinite if there is none."""
    last, at = crossings(attention, recurrent)[-1]
    return float("inf") if last else at


def describe(borders: list[float], lengths: tuple[int, ...]) -> str:
    """The median over the repeats."""
    middle = median(borders)
    return f"beyond {lengths[-1]:,}" if middle == float("inf") else f"{middle:,.0f}"


CLAIM = Claim(
    "C5",
    "A recurrent layer costs n d^2 operations, self-attention n^2 d: which is cheaper depends on whether the length n or the width d is "
    "larger.",
    "003",
    "One Elman layer, and the scores and weighted averages of one attention layer, on one text: operations counted by torch, and time of a "
    "forward and backward pass for several lengths and widths, repeated in another order for each seed.",
    f"Operations that are not 2 n d^2 and 2 n^2 d; an exponent of time (of n or d, for either layer) that differs from the stated one by "
    f"more than {NEAR}; or a length of equal times that does not grow with d. Only some of these six: holds in part. The last one is open "
    "where such a length lies outside of the measured ones.",
    run,
    0.8,
)
