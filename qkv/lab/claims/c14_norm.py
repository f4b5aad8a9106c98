"""C14: layer norm makes training stable and fast; before or after the sublayer."""

from __future__ import annotations

import math
from typing import Any

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import difference, estimate
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import lines

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SYSTEMS: dict[str, dict[str, Any]] = {
    "no norm": {"norm": "none"}, "post-norm": {"norm_order": "post"}, "pre-norm": {"norm_order": "pre"},
}  # fmt: skip
FAILED = 4.5
"""Loss in nats per token above which a network has learned little more than the frequencies of tokens."""


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
    gain = {name: difference(at_best["no norm"], at_best[name]) for name in SYSTEMS}
    stable = {name: failed[name] < failed["no norm"] for name in SYSTEMS if name != "no norm"}
    fast = {name: gain[name].low > 0 for name in SYSTEMS if name != "no norm"}
    total = len(RATES) * len(lab.seeds)
    rows = [
        [name, *(describe(losses[name, rate]) for rate in RATES), f"{failed[name]} of {total}", gain[name].text(3)]
        for name in SYSTEMS
    ]
    points = {name: [(rate, sum(losses[name, rate]) / len(lab.seeds)) for rate in RATES] for name in SYSTEMS}
    order = difference(at_best["post-norm"], at_best["pre-norm"])
    return ClaimResult(
        decide(all(stable.values()) and all(fast.values()), any(stable.values()) or any(fast.values())),
        f"Over {len(RATES)} learning rates {failed['no norm']} of {total} trainings fail without norms, {failed['post-norm']} "
        "with post-norm "
        f"and {failed['pre-norm']} with pre-norm. After {size[1]} updates at the best rate of each the loss is lower than without norms by "
        f"{gain['post-norm'].text(3)} (post) and {gain['pre-norm'].text(3)} (pre); pre-norm is ahead of post-norm by {order.text(3)}.",
        Table(["network", *(f"rate {rate:g}" for rate in RATES), "failed", "gain at the best rate"], rows),
        lines(points, f"{size[0]} layers after {size[1]} updates", "learning rate", "held-out loss, nats per token", log_x=True),
        lab.basis,
    )  # fmt: skip


def describe(losses: list[float]) -> str:
    bad = sum(math.isinf(one) for one in losses)
    return f"diverged: {bad} of {len(losses)}" if bad else estimate(losses).text(2)


CLAIM = Claim(
    "C14",
    "Layer norm makes training stable and fast, before the sublayers (pre-norm) and after the residual sum (post-norm).",
    "000, 001, 004",
    "Language models of the grammar without norms, with post-norm and with pre-norm, at four learning rates without warm-up: held-out loss "
    f"after equal updates. A training has failed where it diverges or ends above {FAILED} nats.",
    "As many trainings that fail with norms as without; or a loss at the best rate that is no lower. One of the two, or "
    "one order: in part.",
    run,
    1.5,
)
