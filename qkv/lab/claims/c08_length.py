"""C8: learned positions fail beyond the trained length; sinusoidal, rotary and relative ones degrade in different ways."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch

from qkv.batch import Batch
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import difference, estimate, exceeds, outside
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import lines

POSITIONS = ("learned", "sinusoidal", "rotary", "relative", "t5", "alibi", "none")
TRAINED = 64
BUCKETS = {"up to 1x": (0, 1), "1x to 2x": (1, 2), "2x to 4x": (2, 4)}
TEXTS = 48
COMPARED = ("sinusoidal", "rotary", "relative")
FAILS, DIFFERS = 0.3, 0.05
"""Nats per token: an increase above the first is a failure, increases that differ by more than the second are different."""


@torch.no_grad()
def loss_by_position(network: Any, documents: list[Any], length: int) -> list[float]:
    """Mean loss of the token at each position of windows of 4 times the trained length, (4 length,)."""
    size = 4 * length
    windows = [document[at : at + size + 1] for document in documents for at in range(0, len(document) - size, size)]
    chosen = windows[:: max(1, len(windows) // TEXTS)][:TEXTS]
    ids = torch.tensor([list(map(int, window)) for window in chosen])  # (B, T + 1)
    losses = []
    for some in ids.split(8):
        logits = network(Batch(some[:, :-1])).logits  # (b, T, V)
        losses.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none"))
    return torch.cat(losses).mean(0).tolist()  # type: ignore[no-any-return]


def train_position(position: str, length: int, steps: int, seed: int) -> list[float]:
    """Train a language model of Python's standard library on windows of `length` tokens; its loss at each position up to 4x."""
    model = {"family": "decoder", "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "norm_order": "pre", "position": position,
             "embed_scale": True, "max_length": 4 * length, "relative_distance": length // 2}  # fmt: skip
    data = {"train": [{"stdlib": True, "share": [0.0, 0.04]}], "valid": {"stdlib": True, "share": [0.0, 0.3]}, "vocab_size": 400,
            "tokenizer": "byte-bpe", "max_length": length, "batch_tokens": 1024}  # fmt: skip
    trained = train_network(
        make_recipe("language", model, data, train={"steps": steps, "seed": seed, "learning_rate": 3e-3})
    )
    return loss_by_position(trained.network, trained.task.valid, length)  # type: ignore[arg-type]


def rise(curve: list[float], length: int) -> float:
    """Loss from 2x to 4x of the trained length, minus that of the second half of the trained one: equal contexts of text."""
    late, known = curve[2 * length :], curve[length // 2 : length]
    return sum(late) / len(late) - sum(known) / len(known)


def run(lab: Experiment) -> ClaimResult:
    length, steps = (256, 3000) if lab.full else (TRAINED, 400)
    found = lab.grid(train_position, {position: (position, length, steps) for position in POSITIONS})
    parts = {
        position: {name: estimate([sum(curve[a * length : b * length]) / ((b - a) * length) for curve in own])
                   for name, (a, b) in BUCKETS.items()}
        for position, own in found.items()
    }  # fmt: skip
    increases = {position: [rise(curve, length) for curve in own] for position, own in found.items()}
    rises = {position: estimate(own) for position, own in increases.items()}
    gaps = {f"{a} - {b}": difference(increases[a], increases[b]) for a, b in combinations(COMPARED, 2)}
    rows = [
        [position, *(one.text(2) for one in parts[position].values()), rises[position].text(2)]
        for position in POSITIONS
    ]
    smooth = {
        position: [
            (at + 8, sum(sum(curve[at : at + 16]) for curve in own) / 16 / len(own)) for at in range(0, 4 * length, 16)
        ]
        for position, own in found.items()
    }
    return ClaimResult(
        judge(exceeds(rises["learned"], FAILS), *(outside(gap, -DIFFERS, DIFFERS) for gap in gaps.values())),
        f"Trained on windows of {length} tokens: the loss at 2 to 4 times that length is higher than in the second half of a window by "
        + ", ".join(f"{rises[position].text(2)} ({position})" for position in POSITIONS) + " nats per token; differences of these: "
        + ", ".join(f"{gap.text(2)} ({name})" for name, gap in gaps.items()) + ".",
        Table(["position", *(f"loss, {name}" for name in BUCKETS), "increase, 2x to 4x"], rows),
        lines(smooth, f"Loss beyond the trained length of {length} tokens", "position in the text", "nats per token"),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C8",
    "Learned positions fail beyond the length that they were trained on; sinusoidal, rotary and relative positions degrade in different "
    "ways.",
    "000, 001",
    f"Language models of Python's standard library with seven position schemes, trained on windows of {TRAINED} tokens (full version: "
    "256): held-out loss per token at each position up to four times that length. Learned positions beyond it keep their initial values.",
    f"Learned positions whose loss rises by {FAILS} nats per token or less; or two of the schemes {', '.join(COMPARED)} whose "
    f"losses rise by amounts that differ by less than {DIFFERS}. Only some of these: holds in part.",
    run,
    2.5,
)
