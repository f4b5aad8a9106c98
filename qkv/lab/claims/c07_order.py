"""C7: without positions, self-attention does not see the order of its tokens."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.statistics import estimate
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
    blind = max(errors["none"]) < 1e-9 and scores["encoder, none"].low < 55 and scores["encoder, none"].mean < 60
    changes = all(min(errors[p]) > 1e-3 for p in POSITIONS[1:])
    learnable = scores["encoder, sinusoidal"].low > 90  # the task itself can be learned
    rows = [
        [name, f"{max(errors[system[1]]):.1e}" if system[0] == "encoder" else "", scores[name].text(1)]
        for name, system in systems.items()
    ]
    return ClaimResult(
        decide(blind and changes and learnable, blind),
        f"Without positions the outputs of an encoder are permuted as its inputs are (difference {max(errors['none']):.0e}), and it learns "
        f"which of two words comes first no better than chance ({scores['encoder, none'].text(1)} %); with sinusoidal "
        f"positions it reaches {scores['encoder, sinusoidal'].text(1)} %. A causal mask also gives the order away: a decoder "
        f"without positions reaches {scores['decoder, none'].text(1)} %.",
        Table(["network, position", "largest difference after a permutation", "accuracy: which word is first, %"], rows),
        bars({name: {"accuracy": scores[name]} for name in systems}, "Which of two words comes first", "held-out accuracy, %"),
        f"exact (permutations); {lab.basis} (trainings)",
    )  # fmt: skip


CLAIM = Claim(
    "C7",
    "Self-attention without position encodings treats its input as a set: permuted inputs give permuted outputs, and order cannot be "
    "learned.",
    "000, 001",
    "Encoders with random weights and six position schemes on permuted texts; and the same trained to tell which of two words comes first "
    f"in a text of {LENGTH} words.",
    "An encoder without positions whose outputs change with the order, or that learns to tell which word comes first.",
    run,
    0.9,
)
