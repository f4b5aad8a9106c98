"""C24: the loss follows a power law in parameters, data and compute."""

from __future__ import annotations

import math
from typing import Any

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, decide
from qkv.lab.scaling import ScalingFit, ScalingPoint, fit_law
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import curves

LENGTH, BATCH, EVALUATIONS = 64, 1024, 6
GOOD = 0.05
"""Relative error of a prediction that counts as right."""


def losses(width: int, steps: int, seed: int) -> dict[str, Any]:
    """Train a language model of Python's standard library at a constant rate: parameters without embeddings, and the held-out loss
    after each sixth of the tokens."""
    model = {"family": "decoder", "d_model": width, "n_layers": 2, "n_heads": 4, "d_ff": 4 * width, "norm_order": "pre",
             "position": "rotary", "max_length": LENGTH}  # fmt: skip
    data = {"train": [{"stdlib": True, "share": [0.0, 0.2]}], "valid": {"stdlib": True, "share": [0.0, 0.05]}, "vocab_size": 400,
            "tokenizer": "byte-bpe", "max_length": LENGTH, "batch_tokens": BATCH}  # fmt: skip
    rate = 3e-3 * math.sqrt(32 / width)  # a wider network takes smaller steps
    train = {"steps": steps, "seed": seed, "learning_rate": rate, "evaluate_every": steps // EVALUATIONS}
    trained = train_network(make_recipe("language", model, data, train=train))
    inside = sum(p.numel() for name, p in trained.network.named_parameters() if "blocks" in name)
    return {"parameters": inside, "scores": [[score["step"], score["loss"]] for score in trained.scores]}


def points_of(found: list[dict[str, Any]]) -> list[ScalingPoint]:
    """The mean loss over the seeds at each evaluation of one size, without the first, which is still in the warm-up."""
    steps = [step for step, _ in found[0]["scores"]]
    means = [sum(one["scores"][i][1] for one in found) / len(found) for i in range(len(steps))]
    rows = list(zip(steps, means, strict=True))[1:]
    return [ScalingPoint(found[0]["parameters"], step * BATCH, loss) for step, loss in rows]


def prediction_error(points: list[ScalingPoint], held_out: list[ScalingPoint]) -> float:
    """Largest relative error of a law that was fitted without some runs, on these."""
    law = fit_law(points, draws=0).law
    return max(abs(law.loss(one.parameters, one.tokens) / one.loss - 1) for one in held_out)


def run(lab: Experiment) -> ClaimResult:
    widths, steps = ((32, 64, 128, 256, 384), 6000) if lab.full else ((16, 32, 64, 128), 300)
    found = lab.grid(losses, {f"width {width}": (width, steps) for width in widths})
    points = {width: points_of(found[f"width {width}"]) for width in widths}
    every = [point for own in points.values() for point in own]
    fit: ScalingFit = fit_law(every, draws=100)
    law, exponents = fit.law, {name: fit.interval(lambda law, name=name: getattr(law, name)) for name in "ab"}  # type: ignore[misc]
    error = prediction_error([one for width in widths[:-1] for one in points[width]], points[widths[-1]])
    falls = min(low for low, _ in exponents.values()) > 0
    fits, predicts = fit.deviation < 0.02, error < GOOD
    rows = [
        [f"{one.parameters:,.0f}", f"{one.tokens:,.0f}", f"{6 * one.parameters * one.tokens:.1e}", f"{one.loss:.3f}",
         f"{law.loss(one.parameters, one.tokens):.3f}"] for one in every
    ]  # fmt: skip
    names = {width: f"{points[width][0].parameters:,.0f} parameters" for width in widths}
    panels = {
        "loss against tokens": {names[width]: [(one.tokens, one.loss) for one in points[width]] for width in widths},
        "fitted": {names[width]: [(one.tokens, law.loss(*one[:2])) for one in points[width]] for width in widths},
    }
    return ClaimResult(
        decide(falls and fits and predicts and fit.separable, (falls and fits) or predicts),
        f"L = {law.E:.2f} + {law.A:.3g} / N^{law.a:.2f} + {law.B:.3g} / D^{law.b:.2f} fits {len(every)} losses with a scatter of "
        f"{fit.deviation:.1%}; 95 % intervals of the exponents: "
        + ", ".join(f"{name} {low:.2f} to {high:.2f}" for name, (low, high) in exponents.items())
        + f". Fitted without the largest size, it predicts its losses within {error:.1%}. "
        + ("" if fit.separable else f"The runs do not determine both exponents: {'; '.join(fit.problems)}."),
        Table(["parameters N", "tokens D", "operations 6 N D", "held-out loss", "fitted"], rows),
        curves(panels, "Loss of language models of the standard library", "training tokens", log_x=True, log_y=True),
        f"{lab.basis}, bootstrap of the fit",
    )  # fmt: skip


CLAIM = Claim(
    "C24",
    "The loss of a language model follows a power law in its parameters, its training data and so in compute.",
    "000",
    "Language models of Python's standard library of four widths, evaluated while they train at a constant rate: the fit "
    "L = E + A / N^a + B / D^b (Hoffmann et al. 2022). `qkv scale` plans such runs for a recipe and a budget.",
    f"A scatter of 2 % or more, an exponent whose interval reaches 0, or a prediction of the largest size that is off by {GOOD:.0%}. "
    "In part: exponents that these runs cannot tell apart.",
    run,
    2.5,
)
