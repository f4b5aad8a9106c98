"""C26: the residual stream: every sublayer reads from it and adds to it, and the prediction emerges layer by layer."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch

import qkv
from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import difference, estimate, exceeds
from qkv.look.charts import lines
from qkv.models.build import build
from qkv.parts.tap import record

RISE = 0.1
"""Rise of a probability that counts."""
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
    """Point of the stream -> probability of the final answer in each translation by the example model, the mean over its tokens."""
    model = qkv.load("example")
    found: dict[str, list[float]] = {}
    for text in SENTENCES:
        lens = model.look(text).lens()
        for point, row in zip(lens.points, lens.final.tolist(), strict=True):
            found.setdefault(point, []).append(fmean(row))
    return found


def run(lab: Experiment) -> ClaimResult:
    errors = lab.per_seed("reconstruction", reconstruction)
    lens = lab.measure("lens", lens_of_example)
    means = {point: estimate(values) for point, values in lens.items()}
    first, before, last = points_to_compare(list(lens))
    early, late = difference(lens[before], lens[first]), difference(lens[last], lens[before])
    return ClaimResult(
        judge(exceeds(early, RISE), exceeds(late, RISE)),
        f"The probability of the final prediction of the example model, with the output head applied at each point (logit lens), is "
        f"{means[first].text(2)} at the embedding, {means[before].text(2)} before the last block and {means[last].text(2)} at the end. It "
        f"rises by {early.text(2)} before the last block and by {late.text(2)} in it. Check: the final residual stream is the embedding "
        f"plus the outputs of all sublayers (relative difference {max(errors):.0e}).",
        Table(["point of the stream", "probability of the final prediction"], [[point, one.text(3)] for point, one in means.items()]),
        lines({"probability of the final prediction": [(i, one.mean) for i, one in enumerate(means.values())]},
              "Logit lens on the example model", "sublayer", "probability"),
        f"one model, {len(SENTENCES)} sentences",
    )  # fmt: skip


def points_to_compare(points: list[str]) -> tuple[str, str, str]:
    """Return the first point of the stream, the last one before the last block, and the last one ("1 feedforward": block 1)."""
    block = points[-1].split()[0]
    return points[0], [point for point in points if point.split()[0] != block][-1], points[-1]


CLAIM = Claim(
    "C26",
    "Every sublayer reads from the residual stream and adds to it; the prediction emerges in the stream layer by layer.",
    "000",
    "The example model: logit lens over its translations. Check: six pre-norm layers with random weights, embedding plus all sublayer "
    "outputs, compared with the final residual stream.",
    f"A probability of the final prediction that rises by {RISE} or less before the last block (it appears in the last block only), or by "
    f"{RISE} or less in the last block (it has emerged before). Each is shown or refuted if the 95 % interval over the sentences does not "
    "contain this threshold. One of the two shown: holds in part. The check is true by construction and not part of the verdict.",
    run,
    0.3,
)
