"""C10: with rotary positions the score of two words depends on their distance, not on their absolute positions."""

from __future__ import annotations

import torch

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.look.charts import lines
from qkv.parts.masks import Mask
from qkv.parts.positions import Rotary

WIDTH, LENGTH = 64, 1024
DISTANCES = (0, 1, 5, 20, 100, 500)
LIMIT = 1e-3


def scores(seed: int) -> torch.Tensor:
    """q at m times k at n for one query and one key vector at every pair of positions: (LENGTH, LENGTH)."""
    torch.manual_seed(seed)
    encoding = Rotary(WIDTH)(Mask(LENGTH))
    query, key = (encoding.rotate(torch.randn(WIDTH).expand(1, 1, LENGTH, WIDTH)).double() for _ in range(2))
    return (query @ key.transpose(-1, -2))[0, 0]


def spread(seed: int) -> dict[str, dict[str, float]]:
    """Mean and range of the scores at each distance."""
    table = scores(seed)
    found = {}
    for c in DISTANCES:
        own = table.diagonal(-c)  # query c tokens behind the key
        found[str(c)] = {"mean": float(own.mean()), "range": float(own.max() - own.min())}
    return found


def run(lab: Experiment) -> ClaimResult:
    found = lab.per_seed("spread", spread)
    worst = max(one["range"] for own in found for one in own.values())
    apart = min(max(one["mean"] for one in own.values()) - min(one["mean"] for one in own.values()) for own in found)
    table = scores(1)
    series = {f"query at {m}": [(m - n, float(table[m, n])) for n in range(m - 100, m + 1)] for m in (100, 400, 1000)}
    return ClaimResult(
        judge(worst < LIMIT * apart),
        f"Scores of the same two vectors at equal distance differ by at most {worst:.1e} over {LENGTH:,} positions (float32), those at "
        f"different distances by {apart:.1f} or more.",
        Table(
            ["distance", "score", "range over positions"],
            [[c, f"{one['mean']:.4f}", f"{one['range']:.1e}"] for c, one in found[0].items()],
        ),
        lines(series, "Score of one query and one key vector", "distance", "score"),
        "exact",
    )


CLAIM = Claim(
    "C10",
    "Rotary positions rotate queries and keys so that the angle between them, and therefore their score, depends only on the distance "
    "between the two words.",
    "000, 004",
    f"One random query and one random key vector of width {WIDTH}, placed at every pair of {LENGTH:,} positions.",
    f"Two pairs of positions at equal distance whose scores differ by {LIMIT} or more of the range of scores over the distances.",
    run,
    0.1,
)
