"""C12: h heads of width d/h cost as much as one of width d, and are better."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import difference, estimate, exceeds
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import lines
from qkv.models.flops import forward_flops
from qkv.models.params import count

HEADS, WIDTH, LENGTH = (1, 2, 4, 8, 16), 64, 64
MANY = 8
"""As many as the Transformer of 2017 has."""


def model(heads: int) -> dict[str, Any]:
    return {"family": "decoder", "d_model": WIDTH, "n_layers": 2, "n_heads": heads, "d_ff": 128, "norm_order": "pre",
            "embed_scale": True, "max_length": LENGTH}  # fmt: skip


def cost(heads: int) -> dict[str, int]:
    """Parameters, and operations of one text."""
    config = ModelConfig(vocab_size=400, dropout=0.0, **model(heads))
    return {"parameters": count(config).parameters, "operations": forward_flops(config, [(1, LENGTH, 0)])}


def loss(heads: int, steps: int, seed: int) -> float:
    """Held-out loss in nats per token of a language model of the grammar's texts."""
    data = {"vocab_size": 400, "max_length": LENGTH, "batch_tokens": 512}
    recipe = make_recipe("language", model(heads), data, train={"steps": steps, "seed": seed, "learning_rate": 3e-3})
    return train_network(recipe).last["loss"]


def run(lab: Experiment) -> ClaimResult:
    costs = {h: lab.measure(f"cost, {h} heads", cost, h) for h in HEADS}
    equal = len({tuple(one.values()) for one in costs.values()}) == 1
    found = lab.grid(loss, {f"{h} heads": (h, 3000 if lab.full else 250) for h in HEADS})
    losses = {h: found[f"{h} heads"] for h in HEADS}
    means = {h: estimate(own) for h, own in losses.items()}
    gains = {h: difference(losses[1], losses[h]) for h in HEADS}
    best = min(HEADS, key=lambda h: means[h].mean)
    better = exceeds(gains[MANY])
    doublings = [exceeds(difference(losses[a], losses[b])) for a, b in pairwise(HEADS)]
    rows = [
        [str(h), str(WIDTH // h), f"{costs[h]['parameters']:,}", f"{costs[h]['operations']:,}", means[h].text(3), gains[h].text(3)]
        for h in HEADS
    ]  # fmt: skip
    return ClaimResult(
        judge(better, *(doublings if better else ())),
        f"Parameters and operations are {'equal' if equal else 'not equal'} for 1 to {HEADS[-1]} heads. The loss is lowest with n_heads = "
        f"{best}: {means[best].text(3)} nats per token. {MANY} heads gain {gains[MANY].text(3)} over one head ({means[1].text(3)}); "
        f"{doublings.count(True)} of {len(doublings)} doublings of the number of heads lower the loss significantly.",
        Table(["heads", "width of each", "parameters", "operations", "held-out loss", "gain over one head"], rows),
        lines({"held-out loss": [(h, means[h].mean) for h in HEADS]}, "Loss by number of heads", "heads", "nats per token",
              log_x=True),
        f"{lab.basis} (loss)",
    )  # fmt: skip


CLAIM = Claim(
    "C12",
    "h heads of width d/h have the parameters and operations of one head of width d, and more heads are better at this equal cost.",
    "001, 004",
    f"Language models of the embedded grammar, width {WIDTH}, 1 to {HEADS[-1]} heads: parameters, operations and held-out loss.",
    f"One head whose loss is not above that of {MANY}. {MANY} heads that are better than one, but a doubling of the number of heads that "
    "does not lower the loss significantly: holds in part. Equal costs follow from the shapes: they are counted, and are no part of the "
    "verdict.",
    run,
    0.9,
)
