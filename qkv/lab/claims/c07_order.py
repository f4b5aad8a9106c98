"""C7: without positions, self-attention does not see the order of its tokens."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import below, estimate, exceeds
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import bars
from qkv.models.build import build

POSITIONS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")
SIZES: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 64,
    "norm_order": "pre",
    "embed_scale": True,
    "max_length": 32,
}
LENGTH = 8
CHANCE, LEARNED = 55, 90
"""Accuracies in %: at most the first is chance, at least the second shows that the task can be learned."""


def reordering_error(position: str, seed: int) -> float:
    """Largest |f(x P) - f(x) P| of an encoder with random weights over a random permutation P, relative to |f(x)|."""
    torch.manual_seed(seed)
    config = ModelConfig(family="encoder", head="none", vocab_size=100, position=position, dropout=0.0, **SIZES)  # type: ignore[arg-type]
    network = build(config).double().eval()
    ids, order = torch.randint(0, 100, (4, 20)), torch.randperm(20)
    with torch.no_grad():
        straight, permuted = network(Batch(ids)).hidden, network(Batch(ids[:, order])).hidden  # (B, T, C)
    return float((permuted - straight[:, order]).abs().max() / straight.abs().max())


def write_order_task(path: Path, rows: int, seed: int) -> None:
    """Texts of random words with one "a" and one "b"; the label is which of the two comes first."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            words = [f"w{draw.randrange(20)}" for _ in range(LENGTH)]
            first, second = sorted(draw.sample(range(LENGTH), 2))
            ahead, behind = draw.choice([("a", "b"), ("b", "a")])
            words[first], words[second] = ahead, behind
            file.write(f"{' '.join(words)}\t{ahead} first\n")


def accuracy(family: str, position: str, steps: int, seed: int) -> float:
    """Held-out accuracy of a network that learns which of two words comes first."""
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("train", 4000), ("valid", 1000)):
            write_order_task(Path(folder) / f"{name}.tsv", rows, seed + (name == "valid") * 1000)
        recipe = make_recipe(
            "classification",
            {"family": family, "head": "classes", "position": position, "pooling": "mean" if family == "encoder" else "last", **SIZES},
            {"root": folder, "train": [{"table": "train.tsv", "columns": [0, 1]}], "valid": {"table": "valid.tsv", "columns": [0, 1]},
             "tokenizer": "words", "vocab_size": 40, "max_length": 16, "batch_tokens": 640},
            train={"steps": steps, "seed": seed, "learning_rate": 3e-3},
        )  # fmt: skip
        return float(train_network(recipe).last["accuracy"])


def run(lab: Experiment) -> ClaimResult:
    errors = {position: lab.per_seed(f"permutation, {position}", reordering_error, position) for position in POSITIONS}
    steps = 1000 if lab.full else 250
    systems = {f"encoder, {position}": ("encoder", position, steps) for position in POSITIONS}
    systems["decoder, none"] = "decoder", "none", steps
    scores = {name: estimate(own) for name, own in lab.grid(accuracy, systems).items()}
    blind = below(scores["encoder, none"], CHANCE) if exceeds(scores["encoder, sinusoidal"], LEARNED) else None
    ordered = exceeds(scores["decoder, none"], CHANCE)
    rows = [
        [name, f"{max(errors[system[1]]):.1e}" if system[0] == "encoder" else "", scores[name].text(1)]
        for name, system in systems.items()
    ]
    return ClaimResult(
        judge(max(errors["none"]) < 1e-9, blind),
        f"After a permutation of the inputs, the outputs of an encoder without positions differ from the permuted ones by at most "
        f"{max(errors['none']):.0e} of the largest. Its accuracy at deciding which of two words comes first is "
        f"{scores['encoder, none'].text(1)} % (chance: 50 %); with sinusoidal positions it is {scores['encoder, sinusoidal'].text(1)} %. A "
        f"decoder without positions reaches {scores['decoder, none'].text(1)} %"
        + (": a causal mask also encodes the order." if ordered else "."),
        Table(["network, position", "largest difference after a permutation", "accuracy: which word is first, %"], rows),
        bars({name: {"accuracy": scores[name]} for name in systems}, "Which of two words comes first", "held-out accuracy, %"),
        f"exact (permutations); {lab.basis} (trainings)",
    )  # fmt: skip


CLAIM = Claim(
    "C7",
    "Self-attention without position encodings treats its input as a set: permuted inputs give permuted outputs, and order cannot be "
    "learned.",
    "000, 001",
    "Encoders with six position schemes: outputs for permuted texts with random weights, and accuracy after training to decide which of "
    f"two words comes first in a text of {LENGTH} words.",
    "An encoder without positions whose outputs change with the order (by more than 1e-9), or that learns which word comes first (accuracy "
    f"above {CHANCE} %). One of the two: holds in part. The second counts only if the task is learned with sinusoidal positions (above "
    f"{LEARNED} %).",
    run,
    0.9,
)
