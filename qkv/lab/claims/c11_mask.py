"""C11: a decoder that is trained without a causal mask sees the tokens to predict: its loss goes to zero, and generation fails."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch

from qkv.batch import Batch
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import below, difference, estimate, exceeds
from qkv.lab.training import TrainedNetwork, make_recipe, train_network
from qkv.look.charts import lines

SIZES: dict[str, Any] = {"family": "decoder", "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "norm_order": "pre",
                         "embed_scale": True, "max_length": 64}  # fmt: skip
TEXTS, LENGTH = 32, 24
ZERO = 0.1
"""A loss of less than this share of the one with the mask counts as zero."""


@torch.no_grad()
def loss_when_generating(trained: TrainedNetwork) -> dict[str, float]:
    """Loss of the next token of held-out texts when the network reads only the tokens before it, as in generation."""
    rows = [row[: LENGTH + 1] for row in trained.task.valid if len(row) > LENGTH][:TEXTS]
    ids = torch.tensor([list(map(int, row)) for row in rows])  # (B, T + 1)
    total = 0.0
    for t in range(1, LENGTH + 1):
        logits = trained.network(Batch(ids[:, :t])).logits[:, -1]  # (B, V)
        total += float(torch.nn.functional.cross_entropy(logits, ids[:, t]))
    counts = Counter(ids[:, 1:].flatten().tolist())
    frequencies = [n / ids[:, 1:].numel() for n in counts.values()]
    return {"generating": total / LENGTH, "frequencies alone": -sum(p * math.log(p) for p in frequencies)}


def train_decoder(causal: bool, steps: int, seed: int) -> dict[str, Any]:
    """Train a language model with or without the mask: its losses while it learns, and when it generates."""
    data = {"vocab_size": 400, "max_length": 64, "batch_tokens": 512}
    settings = {"steps": steps, "seed": seed, "learning_rate": 3e-3}
    trained = train_network(make_recipe("language", {**SIZES, "causal": causal}, data, train=settings))
    return {"losses": trained.losses, "held out": trained.last["loss"]} | loss_when_generating(trained)


def run(lab: Experiment) -> ClaimResult:
    steps = 2000 if lab.full else 500
    found = lab.grid(train_decoder, {"with the mask": (True, steps), "without": (False, steps)})
    columns = ("held out", "generating", "frequencies alone")
    means = {name: {key: estimate([one[key] for one in own]) for key in columns} for name, own in found.items()}
    masked, cheating = means["with the mask"], means["without"]
    pairs = list(zip(found["without"], found["with the mask"], strict=True))
    share = estimate([one["held out"] / other["held out"] for one, other in pairs])
    excess = {name: difference(*([one[key] for one in own] for key in columns[1:])) for name, own in found.items()}
    useless = exceeds(excess["without"]) if below(excess["with the mask"]) else None
    curves = {
        name: [
            (step, sum(one["losses"][step] for one in own) / len(own)) for step in range(0, steps, max(1, steps // 60))
        ]
        for name, own in found.items()
    }
    return ClaimResult(
        judge(below(share, ZERO), useless),
        f"The held-out loss is {cheating['held out'].text(3)} nats per token without the mask (all tokens visible) and "
        f"{masked['held out'].text(2)} with it. When each token must be predicted from those before it, as in generation, the loss is "
        f"{cheating['generating'].text(2)} without and {masked['generating'].text(2)} with the mask; that of the unigram distribution is "
        f"{masked['frequencies alone'].mean:.2f}.",
        Table(["training", "held-out loss, as trained", "loss when generating", "unigram loss"],
              [[name, *(own[key].text(3) for key in columns)] for name, own in means.items()]),
        lines(curves, "Training a decoder with and without the causal mask", "updates", "training loss, nats per token"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C11",
    "A decoder that is trained on all positions at once without a causal mask sees the tokens that it must predict: its loss goes to zero, "
    "and it is of no use for generation.",
    "000, 004",
    "Language models of the embedded grammar with and without the mask, after equal numbers of updates: held-out loss as trained, and when "
    "every token is predicted only from those before it.",
    f"A held-out loss without the mask of at least {ZERO:.0%} of that with it; or a network trained without the mask whose loss when "
    "generating is not above that of the unigram distribution. One of the two: holds in part. The second counts only if the network with "
    "the mask is below it.",
    run,
    0.7,
)
