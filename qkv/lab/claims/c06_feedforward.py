"""C6: self-attention without a non-linearity only averages values; the feed-forward layer adds what is missing."""

from __future__ import annotations

from typing import Any

import torch

from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import difference, estimate, exceeds
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import bars
from qkv.models.params import count
from qkv.parts.attention import Attention
from qkv.parts.masks import Mask
from qkv.parts.scores import make_score
from qkv.parts.softmax import Softmax

WIDTH, LENGTH = 64, 64
SYSTEMS: dict[str, dict[str, Any]] = {
    "no feed-forward layer": {"feedforward": "none", "n_layers": 4},
    "linear": {"feedforward": "linear", "n_layers": 2},
    "ReLU": {"feedforward": "relu", "n_layers": 2},
}
"""Four layers of attention have the parameters of two with a feed-forward layer of width 2 d."""


def averaging(seed: int) -> dict[str, float]:
    """One attention layer: its outputs against averages of its values, the weights of these, and how far they leave the values' range."""
    torch.manual_seed(seed)
    layer = Attention(WIDTH, 4, 4, WIDTH // 4, Softmax(make_score("scaled-dot", 4, WIDTH // 4)), bias="none").double()
    x, mask = torch.randn(2, 20, WIDTH, dtype=torch.double), Mask(20)
    with torch.no_grad():
        query, key, value = (layer.split(part(x)) for part in (layer.query, layer.key, layer.value))  # (B, H, T, D)
        weights = layer.mixer.weights(query, key, mask)  # type: ignore[operator]  # (B, H, T, S)
        averages = weights @ value  # (B, H, T, D)
        output, _ = layer(x, mask)
        linear = layer.output(averages.transpose(1, 2).flatten(2))  # (B, T, C)
    beyond = torch.maximum(averages - value.amax(2, keepdim=True), value.amin(2, keepdim=True) - averages)
    return {
        "difference": float((linear - output).abs().max()),
        "smallest weight": float(weights.min()),
        "sum of weights - 1": float((weights.sum(-1) - 1).abs().max()),
        "beyond the values": float(beyond.max()),
    }


def model(name: str) -> dict[str, Any]:
    return {"family": "decoder", "d_model": WIDTH, "n_heads": 4, "d_ff": 2 * WIDTH, "norm_order": "pre", "embed_scale": True,
            "max_length": LENGTH,
            **SYSTEMS[name]}  # fmt: skip


def parameters(name: str) -> int:
    return count(ModelConfig(vocab_size=400, dropout=0.0, **model(name))).parameters


def loss(name: str, steps: int, seed: int) -> float:
    """Held-out loss in nats per token of a language model of the grammar's texts."""
    data = {"vocab_size": 400, "max_length": LENGTH, "batch_tokens": 512}
    recipe = make_recipe("language", model(name), data, train={"steps": steps, "seed": seed, "learning_rate": 3e-3})
    return train_network(recipe).last["loss"]


def run(lab: Experiment) -> ClaimResult:
    errors = lab.per_seed("averaging", averaging)
    worst = max(one["difference"] for one in errors)
    average = worst < 1e-12 and all(
        one["smallest weight"] >= 0 and one["sum of weights - 1"] < 1e-12 and one["beyond the values"] < 1e-12
        for one in errors
    )
    sizes = {name: lab.measure(f"parameters, {name}", parameters, name) for name in SYSTEMS}
    losses = lab.grid(loss, {name: (name, 3000 if lab.full else 300) for name in SYSTEMS})
    means = {name: estimate(own) for name, own in losses.items()}
    gains = {name: difference(losses[name], losses["ReLU"]) for name in SYSTEMS}
    rows = [[name, f"{sizes[name]:,}", means[name].text(3), gains[name].text(3)] for name in SYSTEMS]
    return ClaimResult(
        judge(*(exceeds(gains[name]) for name in SYSTEMS if name != "ReLU")),
        f"Given its weights, the output of attention is {'a' if average else 'not a'} linear map of averages of values (difference "
        f"{worst:.0e}). At about equal numbers of parameters the loss of a language model is {means['ReLU'].text(3)} nats per "
        f"token with ReLU, {means['linear'].text(3)} with linear layers and {means['no feed-forward layer'].text(3)} with attention alone.",
        Table(["feed-forward layer", "parameters", "held-out loss", "difference from ReLU"], rows),
        bars({name: {"loss": means[name]} for name in SYSTEMS}, "Language models of the grammar", "held-out loss, nats per token"),
        f"{lab.basis} (loss)",
    )  # fmt: skip


CLAIM = Claim(
    "C6",
    "Without a non-linearity, stacked self-attention layers only average their values repeatedly; the feed-forward layer adds the missing "
    "non-linearity.",
    "000, 001",
    "One attention layer with random weights, compared with weighted averages of its values. Language models of the embedded grammar with "
    "attention alone (four layers), with linear feed-forward layers and with ReLU layers (two blocks each), at about equal numbers of "
    "parameters.",
    "Attention alone, or linear feed-forward layers, with a loss that is not higher than that of ReLU layers. Only one of the two: holds "
    "in part. That attention averages its values follows from its definition: it is checked, and is no part of the verdict.",
    run,
    0.7,
)
