"""C14: layer norm makes training stable and fast; before or after the sublayer."""

from __future__ import annotations

import math
from typing import Any

from scipy.stats import fisher_exact

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import difference, estimate, exceeds
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import lines

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SYSTEMS: dict[str, dict[str, Any]] = {
    "no norm": {"norm": "none", "init_std": 0.02, "init_residual": True},
    "post-norm": {"norm_order": "post"},
    "pre-norm": {"norm_order": "pre"},
}
"""The network without norms starts with small weights, as GPT-2's: with larger ones its first losses are far above those of chance."""
NORMS = ("post-norm", "pre-norm")
FAILED = 4.5
"""Loss in nats per token above which a network has learned little more than the frequencies of tokens."""
SIGNIFICANT = 0.05


def loss(name: str, rate: float, layers: int, steps: int, seed: int) -> float | None:
    """Held-out loss of a language model after so many updates without warm-up; None where it diverged."""
    model = {
        "family": "decoder",
        "d_model": 48,
        "n_layers": layers,
        "n_heads": 4,
        "d_ff": 96,
        "embed_scale": True,
        "max_length": 64,
    } | SYSTEMS[name]
    data = {"vocab_size": 400, "max_length": 64, "batch_tokens": 512}
    recipe = make_recipe(
        "language", model, data, train={"steps": steps, "seed": seed, "learning_rate": rate, "warmup": 0}
    )
    found = train_network(recipe).last["loss"]
    return found if math.isfinite(found) else None


def run(lab: Experiment) -> ClaimResult:
    size = (12, 1000) if lab.full else (8, 120)
    settings = {f"{name}, rate {rate:g}": (name, rate, *size) for name in SYSTEMS for rate in RATES}
    found = lab.grid(loss, settings)
    runs = {(name, rate): found[f"{name}, rate {rate:g}"] for name in SYSTEMS for rate in RATES}
    losses = {at: [math.inf if one is None else one for one in own] for at, own in runs.items()}
    failed = {name: sum(one > FAILED for rate in RATES for one in losses[name, rate]) for name in SYSTEMS}
    worst = {at: max(own) for at, own in losses.items()}
    best = {name: min(RATES, key=lambda rate, name=name: worst[name, rate]) for name in SYSTEMS}  # type: ignore[misc]
    at_best = {name: losses[name, best[name]] for name in SYSTEMS}
    gain = {name: difference(at_best["no norm"], at_best[name]) for name in NORMS}
    total = len(RATES) * len(lab.seeds)
    stable = [fails_less(failed[name], failed["no norm"], total) for name in NORMS]
    fast = [exceeds(gain[name]) for name in NORMS]
    rows = [
        [
            name,
            *(describe(losses[name, rate]) for rate in RATES),
            f"{failed[name]} of {total}",
            gain[name].text(3) if name in gain else "",
        ]
        for name in SYSTEMS
    ]
    points = {name: [(rate, sum(losses[name, rate]) / len(lab.seeds)) for rate in RATES] for name in SYSTEMS}
    order = difference(at_best["post-norm"], at_best["pre-norm"])
    return ClaimResult(
        judge(*stable, *fast),
        f"With {len(RATES)} learning rates, {failed['no norm']} of {total} runs fail without norms, {failed['post-norm']} with post-norm "
        f"and {failed['pre-norm']} with pre-norm. After {size[1]} updates, each network at its best learning rate, the loss is lower than "
        f"without norms by {gain['post-norm'].text(3)} (post-norm) and {gain['pre-norm'].text(3)} (pre-norm) nats per token; the loss "
        f"with pre-norm is lower than with post-norm by {order.text(3)}.",
        Table(["network", *(f"rate {rate:g}" for rate in RATES), "failed", "gain at the best rate"], rows),
        lines(points, f"{size[0]} layers after {size[1]} updates", "learning rate", "held-out loss, nats per token", log_x=True),
        lab.basis,
    )  # fmt: skip


def fails_less(own: int, other: int, total: int) -> bool | None:
    """Whether fewer runs fail than in the other system, of `total` runs each; None where the difference may be chance."""
    p = fisher_exact([[own, total - own], [other, total - other]], alternative="less").pvalue
    return True if p < SIGNIFICANT else False if own >= other else None


def describe(losses: list[float]) -> str:
    bad = sum(math.isinf(one) for one in losses)
    return f"diverged: {bad} of {len(losses)}" if bad else estimate(losses).text(2)


CLAIM = Claim(
    "C14",
    "Layer norm makes training stable and fast, before the sublayers (pre-norm) and after the residual sum (post-norm).",
    "000, 001, 004",
    "Language models of the embedded grammar without norms (with small initial weights, as GPT-2's), with post-norm and with pre-norm, at "
    "four learning rates without warm-up: held-out loss after equal numbers of updates. A run has failed if it diverges or ends above "
    f"{FAILED} nats per token. The best learning rate of a network is the one whose worst seed has the lowest loss; a run that diverged "
    "has an infinite loss.",
    "Four parts, two for each norm order: as many failed runs as without norms (fewer count as shown if p < "
    f"{SIGNIFICANT} in Fisher's exact test), and a loss at the best learning rate that is not lower (shown or refuted if the 95 % "
    "interval of the gain over the seeds does not contain 0). Only some of the parts shown: holds in part.",
    run,
    1.5,
)
