"""C9: a step of sinusoidal positions is a rotation, P(t + c) = M_c P(t), that depends only on the distance c."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.look.charts import lines
from qkv.parts.positions import sinusoids

WIDTH, LAST = 64, 4096
DISTANCES = (1, 2, 5, 17, 100, 1000)
LIMIT = 1e-5
"""Rounding error of float32 sinusoids."""


def rotation(distance: int) -> Tensor:
    """M_c: each pair (sin, cos) of rate w is rotated by the angle w c; (WIDTH, WIDTH), double precision."""
    rates = 10_000.0 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    blocks = [torch.tensor([[angle.cos(), angle.sin()], [-angle.sin(), angle.cos()]]) for angle in rates * distance]
    return torch.block_diag(*blocks)


def largest_error(distance: int) -> dict[str, float]:
    """Largest |P(t + c) - M_c P(t)| over all positions, and how far M_c is from an orthogonal matrix."""
    table = sinusoids(torch.arange(LAST + distance), WIDTH).double()  # (LAST + c, WIDTH)
    matrix = rotation(distance)
    moved = table[:LAST] @ matrix.T
    identity = torch.eye(WIDTH, dtype=torch.float64)
    return {"error": float((moved - table[distance:]).abs().max()), "orthogonal": float((matrix @ matrix.T - identity).abs().max()),
            "cosine": float(torch.cosine_similarity(table[:LAST], table[distance:], dim=-1).mean()),
            "spread": float(torch.cosine_similarity(table[:LAST], table[distance:], dim=-1).std())}  # fmt: skip


def run(lab: Experiment) -> ClaimResult:
    found = {c: lab.measure(f"distance {c}", largest_error, c) for c in DISTANCES}
    worst = max(one["error"] for one in found.values())
    table = sinusoids(torch.arange(200), WIDTH)
    similar = {
        f"from position {t}": [(c, float(torch.cosine_similarity(table[t], table[t + c], dim=0))) for c in range(100)]
        for t in (0, 50, 99)
    }
    return ClaimResult(
        judge(worst < LIMIT),
        f"One rotation per distance maps P(t) to P(t + c) for all {LAST:,} positions with an error of at most {worst:.1e} (float32).",
        Table(["distance", "largest error", "M M^T - I", "cosine of P(t), P(t + c)", "standard deviation over t"],
              [[str(c), f"{one['error']:.1e}", f"{one['orthogonal']:.1e}", f"{one['cosine']:.3f}", f"{one['spread']:.1e}"]
               for c, one in found.items()]),
        lines(similar, "Similarity of two positions", "distance", "cosine"),
        "exact",
    )  # fmt: skip


CLAIM = Claim(
    "C9",
    "For sinusoidal positions a step of c tokens is a rotation M_c that does not depend on the position: P(t + c) = M_c P(t).",
    "003, 004",
    f"The table of {LAST:,} positions and width {WIDTH}, compared with block rotations by the angles w_i c.",
    f"A position whose vector, rotated by M_c, differs from the vector of the position c tokens later by {LIMIT:.0e} or more.",
    run,
    0.1,
)
