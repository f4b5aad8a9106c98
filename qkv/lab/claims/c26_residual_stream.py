"""C26: the residual stream: every sublayer reads from it and adds to it, and the answer emerges layer by layer."""

from __future__ import annotations

from typing import Any

import torch

import qkv
from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table
from qkv.lab.statistics import estimate
from qkv.look.charts import lines
from qkv.models.build import build
from qkv.parts.tap import record

SENTENCES = (
    "The old man sees a small dog.",
    "I ate an apple.",
    "The woman reads a book in the garden.",
    "Does the child sleep?",
    "The teacher gives the student a letter.",
)


def reconstruction(seed: int) -> float:
    """Largest difference between the last stream and embedding + everything that the sublayers added, relative to its size."""
    torch.manual_seed(seed)
    config = ModelConfig(
        family="decoder", vocab_size=32, d_model=64, n_layers=6, n_heads=4, d_ff=256, norm_order="pre", dropout=0.0
    )
    network: Any = build(config).eval()
    batch = Batch(inputs=torch.randint(0, 32, (4, 20)))
    outputs = [name for name, _ in network.named_modules() if name.endswith("tap_out")]
    last = [name for name, _ in network.named_modules() if name.endswith("tap_stream")][-1]
    with torch.no_grad(), record(network, ["embed", last, *outputs]) as kept:
        network(batch)
    total = kept["embed"] + torch.stack([kept[name] for name in outputs]).sum(0)  # (B, T, C)
    return float((total - kept[last]).abs().max() / kept[last].abs().max())


def lens_of_example() -> dict[str, list[float]]:
    """Point of the stream -> probability of the final answer, for every token of some translations by the example model."""
    model = qkv.load("example")
    found: dict[str, list[float]] = {}
    for text in SENTENCES:
        lens = model.look(text).lens()
        for point, row in zip(lens.points, lens.final.tolist(), strict=True):
            found.setdefault(point, []).extend(row)
    return found


def run(lab: Experiment) -> ClaimResult:
    errors = lab.per_seed("reconstruction", reconstruction)
    lens = lab.measure("lens", lens_of_example)
    means = {point: estimate(values) for point, values in lens.items()}
    first, last = (list(means.values())[i].mean for i in (0, -1))
    exact = max(errors) < 1e-5
    return ClaimResult(
        "holds" if exact and last > first + 0.3 else "holds in part" if exact else "does not hold",
        f"The last stream is the embedding plus what the sublayers added, to {max(errors):.0e}; read through the output head, "
        f"the probability of the final "
        f"answer rises from {first:.2f} at the embedding to {last:.2f} at the last layer of the example model.",
        Table(["point of the stream", "probability of the final answer"], [[point, one.text(3)] for point, one in means.items()]),
        lines({"probability of the final answer": [(i, one.mean) for i, one in enumerate(means.values())]},
              "Logit lens on the example model", "sublayer", "probability"),
        f"exact; {len(lens[next(iter(lens))])} tokens",
    )  # fmt: skip


CLAIM = Claim(
    "C26",
    "Every sublayer reads from the residual stream and adds to it; the answer can be read off the stream on its way through the layers.",
    "000",
    "Six pre-norm layers with random weights: embedding plus all sublayer outputs against the last stream. The example model: "
    "logit lens over its translations.",
    "A stream that is not the sum of what was added, or an answer that appears in the last sublayer only.",
    run,
    0.3,
)
