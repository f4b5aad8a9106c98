"""C5: a recurrent layer costs n d^2, attention n^2 d: which is cheaper depends on n against d."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import slope
from qkv.lab.timing import ENOUGH, crossings, sample
from qkv.look.charts import curves
from qkv.parts.masks import Mask
from qkv.parts.scores import make_score
from qkv.parts.softmax import Softmax

HEAD = 64


def operations(n: int, d: int) -> dict[str, int]:
    """Multiply-adds of one layer over n tokens: an Elman cell (W x and U h), and scores and averages of all pairs."""
    return {"recurrent": 2 * n * d * d, "attention": 2 * n * n * d}


def seconds(n: int, d: int, repeats: int) -> dict[str, float]:
    """Fastest time of each over one text of n tokens, forward and backward. Attention is that of the readable formula, without its
    projections, which cost n d^2 as the cell does."""
    torch.manual_seed(0)
    cell, mixer = nn.RNN(d, d, batch_first=True), Softmax(make_score("scaled-dot", max(1, d // HEAD), min(d, HEAD)))
    mixer.fast = False
    x = torch.randn(1, n, d, requires_grad=True)
    heads = [torch.randn(1, max(1, d // HEAD), n, min(d, HEAD), requires_grad=True) for _ in range(3)]  # (B, H, T, D)
    mask = Mask(n)
    steps = {
        "recurrent": lambda: cell(x)[0].sum().backward(),
        "attention": lambda: mixer(*heads, mask, None).sum().backward(),
    }
    best = {}
    for name, step in steps.items():
        step()
        count = max(1, round(ENOUGH / max(sample(step, 1), 1e-6)))
        best[name] = min(sample(step, count) for _ in range(repeats))
    return best


def run(lab: Experiment) -> ClaimResult:
    widths, lengths, repeats = ((64, 256, 1024), (16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 5) if lab.full else (
        (64, 128, 256, 512), (16, 32, 64, 128, 256, 512, 1024, 2048), 3)  # fmt: skip
    found = {(d, n): lab.measure(f"width {d}, {n} tokens", seconds, n, d, repeats) for d in widths for n in lengths}
    lines = {d: {name: {n: found[d, n][name] for n in lengths} for name in ("recurrent", "attention")} for d in widths}
    borders = {d: border(lines[d]["attention"], lines[d]["recurrent"]) for d in widths}
    grow = {
        name: slope(range(3), [torch.tensor(lines[widths[0]][name][n]).log2().item() for n in lengths[-3:]])
        for name in ("recurrent", "attention")
    }
    wider = {name: slope([torch.tensor(float(d)).log2().item() for d in widths],
                         [torch.tensor(lines[d][name][lengths[-1]]).log2().item() for d in widths]) for name in grow}  # fmt: skip
    as_stated = 0.8 < grow["recurrent"] < 1.3 and grow["attention"] > 1.6
    moves = all(borders[a] < borders[b] for a, b in pairwise(widths))
    exact = all(
        (operations(n, d)["attention"] < operations(n, d)["recurrent"]) == (n < d)
        for d in widths
        for n in lengths
        if n != d
    )
    ends = [(name, n) for name in grow for n in (lengths[0], lengths[-1])]
    rows = [
        [str(d), f"{d:,}", describe(borders[d], lengths), *(f"{1000 * found[d, n][name]:.3g}" for name, n in ends)]
        for d in widths
    ]
    panels = {
        f"width {d}, ms": {name: [(n, 1000 * s) for n, s in line.items()] for name, line in lines[d].items()}
        for d in widths
    }
    return ClaimResult(
        decide(exact and as_stated and moves and all(lengths[0] < one < lengths[-1] for one in borders.values()), exact and as_stated),
        f"Time grows with n as n^{grow['recurrent']:.2f} (recurrent) and n^{grow['attention']:.2f} (attention), with d as "
        f"d^{wider['recurrent']:.2f} "
        f"and d^{wider['attention']:.2f}. By operations attention is cheaper up to n = d; by time up to "
        + ", ".join(f"{describe(borders[d], lengths)} (d = {d})" for d in widths) + ": a serial step does not fill the processor.",
        Table(["width d", "n at which operations are equal", "n at which times are equal",
               *(f"{name}, n = {n:,}, ms" for name, n in ends)], rows),
        curves(panels, "One layer, forward and backward, one text", "tokens in a text", True, True),
        f"exact (operations); fastest of {repeats} (time)",
    )  # fmt: skip


def border(attention: dict[int, float], recurrent: dict[int, float]) -> float:
    """The length from which on attention is slower for good; infinite where it is not."""
    last, at = crossings(attention, recurrent)[-1]
    return float("inf") if last else at


def describe(length: float, lengths: tuple[int, ...]) -> str:
    return f"beyond {lengths[-1]:,}" if length == float("inf") else f"{length:,.0f}"


CLAIM = Claim(
    "C5",
    "A recurrent layer costs n d^2 operations and self-attention n^2 d: which is cheaper depends on the length n against the width d.",
    "003",
    "One Elman layer against scores and averages of attention on one text: operations, and time forward and backward, over "
    "lengths and widths.",
    "Times that do not grow as n and n^2; or (in part) a length of equal times that does not grow with d, or lies outside "
    "the lengths measured.",
    run,
    0.8,
)
