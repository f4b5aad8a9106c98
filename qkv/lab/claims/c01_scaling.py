"""C1: without 1/sqrt(d) the softmax saturates and its gradient vanishes as the width of queries and keys grows."""

from __future__ import annotations

import torch

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import below, estimate, exceeds, within
from qkv.look.charts import curves
from qkv.parts.scores import make_score

WIDTHS = (4, 16, 64, 256, 1024)
KEYS, QUERIES = 32, 256
SCORES = {"dot": "q k", "scaled-dot": "q k / sqrt(d)"}
SATURATED, VANISHED, KEPT = 0.9, 0.5, (0.8, 1.25)
"""Thresholds: largest weight and gradient without the factor; gradient with it. Gradients are relative to those at the least width."""


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
        score: estimate([wide["gradient"] / narrow["gradient"] for wide, narrow in
                         zip(found[score, WIDTHS[-1]], found[score, WIDTHS[0]], strict=True)]) for score in SCORES
    }  # fmt: skip
    saturated = means["dot", WIDTHS[-1]]["largest"]
    rows = [
        [str(width), *(means[score, width][name].text(3) for score in SCORES for name in ("largest", "gradient"))]
        for width in WIDTHS
    ]
    panels = {
        title: {SCORES[score]: [(width, means[score, width][name].mean) for width in WIDTHS] for score in SCORES}
        for name, title in (("largest", "largest weight"), ("gradient", "gradient of the softmax"))
    }
    return ClaimResult(
        judge(exceeds(saturated, SATURATED), below(falls["dot"], VANISHED), within(falls["scaled-dot"], *KEPT)),
        f"Without the factor, at width {WIDTHS[-1]} the largest of {KEYS} attention weights is {saturated.text(3)} and the gradient of the "
        f"softmax {falls['dot'].mean:.0%} of that at width {WIDTHS[0]}; with 1/sqrt(d) the gradient is "
        f"{falls['scaled-dot'].mean:.0%} of it.",
        Table(["width", "largest weight, q k", "gradient, q k", "largest weight, scaled", "gradient, scaled"], rows),
        curves(panels, "Saturation of the softmax", "width of queries and keys", log_x=True),
        lab.basis,
    )


CLAIM = Claim(
    "C1",
    "Dot products grow with the width d of queries and keys; without the factor 1/sqrt(d) the softmax puts all weight on one key and its "
    "gradient vanishes.",
    "000, 001",
    f"{QUERIES} random queries and {KEYS} random keys, components of variance 1: largest attention weight and Frobenius norm of the "
    "Jacobian dp/ds of the softmax.",
    f"At width {WIDTHS[-1]}: without the factor, a largest weight of {SATURATED} or less, or a gradient of at least {VANISHED:.0%} of that "
    f"at width {WIDTHS[0]}; with it, a gradient outside of {KEPT[0]:.0%} to {KEPT[1]:.0%} of that. Only some of the three: holds in part.",
    run,
    0.1,
)
