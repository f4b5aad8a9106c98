"""C11: a decoder that is trained without a causal mask cheats: its loss goes to zero, and generation fails."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch

from qkv.batch import Batch
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import estimate
from qkv.lab.training import TrainedNetwork, make_recipe, train_network
from qkv.look.charts import lines

SIZES: dict[str, Any] = {"family": "decoder", "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "norm_order": "pre",
                         "embed_scale": True, "max_length": 64}  # fmt: skip
TEXTS, LENGTH = 32, 24


@torch.no_grad()
def loss_when_generating(trained: TrainedNetwork) -> dict[str, float]:
    """Loss of the next token of held-out texts when the network reads only what stands before it, as in generation."""
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
    zero = cheating["held out"].high < 0.1 * masked["held out"].low
    fails = (
        cheating["generating"].low > cheating["frequencies alone"].high
        and masked["generating"].high < masked["frequencies alone"].low
    )
    curves = {
        name: [
            (step, sum(one["losses"][step] for one in own) / len(own)) for step in range(0, steps, max(1, steps // 60))
        ]
        for name, own in found.items()
    }
    return ClaimResult(
        decide(zero and fails, zero or fails),
        f"Without the mask the held-out loss with all tokens visible is {cheating['held out'].text(3)} nats, with it "
        f"{masked['held out'].text(2)}. When each token must be predicted from those before it, as in generation, it is "
        f"{cheating['generating'].text(2)} without and {masked['generating'].text(2)} with the mask; frequencies of tokens alone have "
        f"{masked['frequencies alone'].mean:.2f}.",
        Table(["training", "held-out loss, as trained", "loss when generating", "frequencies of tokens alone"],
              [[name, *(own[key].text(3) for key in columns)] for name, own in means.items()]),
        lines(curves, "Training a decoder with and without the causal mask", "updates", "training loss, nats per token"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C11",
    "A decoder that is trained on all positions at once without a causal mask sees the tokens that it must predict: its loss goes to zero, "
    "and what it has learned is of no use for generation.",
    "000, 004",
    "Language models of the grammar with and without the mask, at equal updates: held-out loss as trained, and when every token is "
    "predicted from those before it alone.",
    "A loss without the mask that stays above a tenth of that with it; or a network that then predicts better than the "
    "frequencies of tokens.",
    run,
    0.7,
)
