"""C13: residual connections keep gradients from vanishing with depth and make the loss surface smooth."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import below, both, difference, estimate, exceeds
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import curves
from qkv.models.build import build
from qkv.objectives import causal

DEPTHS, TRAINED, WIDTH = (2, 4, 8, 16, 32), 8, 32
STEP = 0.003
"""Length of a step on the loss surface, relative to the norm of the weights."""


SYSTEMS: dict[str, tuple[bool, str]] = {
    "residuals, with norms": (True, "layer"), "none, with norms": (False, "layer"),
    "residuals, without norms": (True, "none"), "none, without norms": (False, "none"),
}  # fmt: skip
PAIRS = (("residuals, with norms", "none, with norms"), ("residuals, without norms", "none, without norms"))
ALIVE, VANISHED = 0.1, 0.01
"""Gradient norm of the first block relative to the last: above the first it has not vanished, below the second it has."""
PANELS: dict[str, Callable[[dict[str, float]], float]] = {
    "gradient norm, first / last block, log10": lambda one: math.log10(one["gradient"]),
    "cosine of gradients before and after a step": lambda one: one["smoothness"],
}
EFFECTS = ("keep the gradient from vanishing", "make the surface smoother", "lower the loss")
WORDS = {True: "shown", False: "refuted", None: "undecided"}
Effects = tuple[bool | None, ...]


def sizes(residual: bool, norm: str, depth: int) -> dict[str, Any]:
    return {"family": "decoder", "d_model": WIDTH, "n_layers": depth, "n_heads": 4, "d_ff": 2 * WIDTH, "norm_order": "pre",
            "embed_scale": True, "max_length": 64, "residual": residual, "norm": norm}  # fmt: skip


def gradient(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    network.zero_grad()
    causal(network(batch), batch).mean.backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def surface(residual: bool, norm: str, depth: int, seed: int) -> dict[str, float]:
    """Measure an untrained network: gradient of the first block relative to the last one, and cosine of the gradients before and after
    a descent step. 1 = the surface is a plane there, 0 = the two gradients are unrelated."""
    torch.manual_seed(seed)
    network = build(ModelConfig(vocab_size=100, dropout=0.0, **sizes(residual, norm, depth))).double()
    text = torch.randint(0, 100, (8, 33))
    batch = Batch(text[:, :-1], targets=text[:, 1:])
    before = gradient(network, batch)
    block = lambda n: torch.cat([g.flatten() for name, g in before.items() if f"blocks.{n}." in name]).norm()  # noqa: E731
    ratio = float(block(0) / block(depth - 1))
    weights = torch.cat([p.detach().flatten() for p in network.parameters()]).norm()
    length = torch.cat([g.flatten() for g in before.values()]).norm()
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name in before:
                p.sub_(STEP * weights / length * before[name])
    after = gradient(network, batch)
    old, new = (torch.cat([g[name].flatten() for name in before]) for g in (before, after))
    return {"gradient": ratio, "smoothness": float(torch.cosine_similarity(old, new, dim=0))}


def loss(residual: bool, norm: str, steps: int, seed: int) -> float:
    """Held-out loss of a deep language model; infinite where it diverges."""
    data = {"vocab_size": 400, "max_length": 64, "batch_tokens": 512}
    recipe = make_recipe(
        "language", sizes(residual, norm, TRAINED), data, train={"steps": steps, "seed": seed, "learning_rate": 2e-3}
    )
    return train_network(recipe).last["loss"]


def run(lab: Experiment) -> ClaimResult:
    found = {
        (name, depth): lab.per_seed(f"{name}, {depth} layers", surface, *system, depth)
        for name, system in SYSTEMS.items()
        for depth in DEPTHS
    }
    means = {at: {key: estimate([one[key] for one in own]) for key in own[0]} for at, own in found.items()}
    losses = lab.grid(
        loss, {f"training, {name}": (*system, 2000 if lab.full else 200) for name, system in SYSTEMS.items()}
    )
    learned = {name: estimate(losses[f"training, {name}"]) for name in SYSTEMS}
    deep = {name: means[name, DEPTHS[-1]] for name in SYSTEMS}
    effects = [
        compare(found[a, DEPTHS[-1]], found[b, DEPTHS[-1]], losses[f"training, {a}"], losses[f"training, {b}"]) for a, b in PAIRS
    ]  # fmt: skip
    rows = [[name, str(depth), f"{one['gradient'].mean:.2g}", one["smoothness"].text(2),
             learned[name].text(2) if depth == TRAINED else ""] for (name, depth), one in means.items()]  # fmt: skip
    panels = {
        title: {
            name: [(depth, fmean(value(one) for one in found[name, depth])) for depth in DEPTHS] for name in SYSTEMS
        }
        for title, value in PANELS.items()
    }
    told = "; ".join(
        f"{name}: {deep[name]['gradient'].mean:.2g}, {deep[name]['smoothness'].mean:.2f}, {learned[name].text(2)}"
        for name in SYSTEMS
    )
    return ClaimResult(
        judge(*(part for own in effects for part in own)),
        f"Gradient norm of the first block relative to the last, cosine of the gradients before and after a step (both with {DEPTHS[-1]} "
        f"layers), held-out loss after training (with {TRAINED} layers): {told}. "
        + " ".join(sentence(pair, one) for pair, one in zip(PAIRS, effects, strict=True)),
        Table(
            ["network", "layers", "gradient norm, first / last block", "cosine around a step", "held-out loss"],
            rows,
        ),
        curves(panels, "Depth with and without residual connections", "layers", log_x=True),
        lab.basis,
    )


def compare(
    on: list[dict[str, float]], off: list[dict[str, float]], with_residuals: list[float], without: list[float]
) -> Effects:
    """Whether residuals preserve the gradient where it vanishes without them, make the surface smoother, and lower the loss."""
    ratios = [estimate([math.log10(one["gradient"]) for one in own]) for own in (on, off)]  # orders of magnitude
    alive = both(exceeds(ratios[0], math.log10(ALIVE)), below(ratios[1], math.log10(VANISHED)))
    smoother = exceeds(difference([one["smoothness"] for one in on], [one["smoothness"] for one in off]))
    return alive, smoother, exceeds(difference(without, with_residuals))


def sentence(pair: tuple[str, str], effects: Effects) -> str:
    """With norms, residuals lower the loss: shown, ..."""
    parts = [f"{name}: {WORDS[effect]}" for name, effect in zip(EFFECTS, effects, strict=True)]
    return f"{pair[0].split(', ')[1].capitalize()}, residuals {', '.join(parts)}."


CLAIM = Claim(
    "C13",
    "Residual connections keep the gradients of deep networks from vanishing, make their loss surface smooth and lower the loss that they "
    "reach.",
    "000, 001, 004",
    f"Untrained language models of 2 to {DEPTHS[-1]} layers, pre-norm and without norms: gradient norm of the first block relative to the "
    f"last, and cosine of the gradients before and after a gradient step of {STEP:.1%} of the norm of the weights. Networks of {TRAINED} "
    "layers trained on the embedded grammar: held-out loss.",
    f"With norms or without them, at {DEPTHS[-1]} layers: a gradient of the first block of more than {VANISHED:.0%} of the last one's "
    f"without residuals, or of less than {ALIVE:.0%} with them; a surface that is no smoother with residuals; or, at {TRAINED} layers, a "
    "loss that is no lower. Only some of these six: holds in part.",
    run,
    0.8,
)
