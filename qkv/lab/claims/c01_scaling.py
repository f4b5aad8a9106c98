"""C1: without 1/sqrt(d) the softmax saturates and its gradient vanishes as the width of queries and keys grows."""

from __future__ import annotations

import torch

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table
from qkv.lab.statistics import estimate
from qkv.look.charts import curves
from qkv.parts.scores import make_score

WIDTHS = (4, 16, 64, 256, 1024)
KEYS, QUERIES = 32, 256
SCORES = {"dot": "q k", "scaled-dot": "q k / sqrt(d)"}


def saturation(score: str, width: int, seed: int) -> dict[str, float]:
    """Largest attention weight and norm of the softmax's Jacobian, means over random queries and keys of variance 1."""
    torch.manual_seed(seed)
    query, key = torch.randn(1, 1, QUERIES, width), torch.randn(1, 1, KEYS, width)
    weights = make_score(score, 1, width)(query, key).softmax(-1)[0, 0]  # (QUERIES, KEYS)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]  # dp_i / ds_j
    return {"largest": float(weights.amax(-1).mean()), "gradient": float(jacobian.flatten(1).norm(dim=-1).mean())}


def run(lab: Experiment) -> ClaimResult:
    found = {
        (score, width): lab.per_seed(f"{score}, width {width}", saturation, score, width)
        for score in SCORES
        for width in WIDTHS
    }
    means = {key: {name: estimate([one[name] for one in own]) for name in own[0]} for key, own in found.items()}
    falls = {
        score: means[score, WIDTHS[-1]]["gradient"].mean / means[score, WIDTHS[0]]["gradient"].mean for score in SCORES
    }
    saturated = means["dot", WIDTHS[-1]]["largest"]
    holds = saturated.low > 0.9 and falls["dot"] < 0.5 and 0.8 < falls["scaled-dot"] < 1.25
    rows = [
        [str(width), *(means[score, width][name].text(3) for score in SCORES for name in ("largest", "gradient"))]
        for width in WIDTHS
    ]
    panels = {
        title: {SCORES[score]: [(width, means[score, width][name].mean) for width in WIDTHS] for score in SCORES}
        for name, title in (("largest", "largest weight"), ("gradient", "gradient of the softmax"))
    }
    return ClaimResult(
        "holds" if holds else "does not hold",
        f"At width {WIDTHS[-1]} the largest of {KEYS} weights is {saturated.text(3)} without the factor, and the gradient has fallen to "
        f"{falls['dot']:.0%} of that at width {WIDTHS[0]}; with 1/sqrt(d) it stays at {falls['scaled-dot']:.0%}.",
        Table(["width", "largest weight, q k", "gradient, q k", "largest weight, scaled", "gradient, scaled"], rows),
        curves(panels, "Saturation of the softmax", "width of queries and keys", log_x=True),
        f"{len(lab.seeds)} seeds",
    )


CLAIM = Claim(
    "C1",
    "Dot products grow with the width d of queries and keys; without the factor 1/sqrt(d) the softmax puts all weight on one key and its "
    "gradient vanishes.",
    "000, 001",
    f"{QUERIES} random queries and {KEYS} keys of variance 1; largest attention weight and Frobenius norm of the Jacobian dp/ds.",
    "A largest weight or a gradient without the factor that do not depend on d.",
    run,
    0.1,
)
