"""C24: the loss follows a power law in parameters, data and compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.scaling import SMALLEST, ScalingPoint, fit_law
from qkv.lab.statistics import difference, estimate, exceeds
from qkv.lab.training import make_recipe, train_network
from qkv.look.charts import curves

LENGTH, BATCH, EVALUATIONS = 64, 1024, 6
LAW, RIVALS = "power law", ("log-linear", "carry forward")
Predict = Callable[[float, float], float]
"""Loss from parameters and tokens."""


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


def points_of(found: dict[str, Any]) -> list[ScalingPoint]:
    """The losses of one run at its evaluations, without the first one: a power law describes what follows the beginning of training."""
    return [ScalingPoint(found["parameters"], step * BATCH, loss) for step, loss in found["scores"][1:]]


def log_linear(points: Sequence[ScalingPoint]) -> Predict:
    """Fit L = c + p log N + q log D, a law without exponents, by least squares."""
    x = np.array([[1.0, math.log(one.parameters), math.log(one.tokens)] for one in points])  # (n, 3)
    weights = np.linalg.lstsq(x, np.array([one.loss for one in points]), rcond=None)[0]
    return lambda parameters, tokens: float(weights @ [1.0, math.log(parameters), math.log(tokens)])


def carry_forward(largest: Sequence[ScalingPoint]) -> Predict:
    """Predict that a larger model has the losses of the largest known one."""
    losses = {one.tokens: one.loss for one in largest}
    return lambda parameters, tokens: losses[tokens]


def fit_seed(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Fit the runs of one seed, from the smallest width to the largest: exponents, and the mean relative error with which the
    largest run is predicted from the others."""
    curves_of = [points_of(run) for run in runs]
    *known, new = curves_of
    every, smaller = ([point for curve in some for point in curve] for some in (curves_of, known))
    fit = fit_law(every, draws=0)
    predictions: dict[str, Predict] = {
        LAW: fit_law(smaller, draws=0).law.loss, "log-linear": log_linear(smaller), "carry forward": carry_forward(known[-1])
    }  # fmt: skip
    errors = {
        name: fmean(abs(predict(one.parameters, one.tokens) / one.loss - 1) for one in new)
        for name, predict in predictions.items()
    }
    return errors | {"a": fit.law.a, "b": fit.law.b, "scatter": fit.deviation}


def mean_points(runs: Sequence[dict[str, Any]]) -> list[ScalingPoint]:
    """The points of one width, the losses averaged over the seeds."""
    rows = zip(*map(points_of, runs), strict=True)
    return [some[0]._replace(loss=fmean(one.loss for one in some)) for some in rows]


def run(lab: Experiment) -> ClaimResult:
    widths, steps = ((16, 32, 64, 128, 256), 600) if lab.full else ((16, 32, 64, 128), 300)
    found = list(lab.grid(losses, {f"width {width}": (width, steps) for width in widths}).values())
    fits = [fit_seed(runs) for runs in zip(*found, strict=True)]
    values = {name: [one[name] for one in fits] for name in fits[0]}
    means = {name: estimate([100 * one for one in values[name]]) for name in (LAW, *RIVALS, "scatter")}
    exponents = {name: estimate(values[name]) for name in "ab"}
    better = {name: difference(values[name], values[LAW]) for name in RIVALS}
    points = [mean_points(runs) for runs in found]
    every = [point for own in points for point in own]
    law = fit_law(every, draws=0).law
    rows = [
        [f"{one.parameters:,.0f}", f"{one.tokens:,.0f}", f"{6 * one.parameters * one.tokens:.1e}", f"{one.loss:.3f}",
         f"{law.loss(one.parameters, one.tokens):.3f}"] for one in every
    ]  # fmt: skip
    names = [f"{own[0].parameters:,.0f} parameters" for own in points]
    panels = {
        "loss against tokens": {name: [(one.tokens, one.loss) for one in own] for name, own in zip(names, points, strict=True)},
        "fitted": {name: [(one.tokens, law.loss(*one[:2])) for one in own] for name, own in zip(names, points, strict=True)},
    }  # fmt: skip
    return ClaimResult(
        judge(*(exceeds(one, SMALLEST) for one in exponents.values()), *map(exceeds, better.values())),
        f"L = {law.E:.2f} + {law.A:.3g} / N^{law.a:.2f} + {law.B:.3g} / D^{law.b:.2f} fits the mean losses. Fitted seed by seed, the "
        f"exponents are {exponents['a'].text(2)} (parameters) and {exponents['b'].text(2)} (tokens), the scatter is "
        f"{means['scatter'].text(1)} %. Predicted from the smaller sizes, the losses of the largest one are off by "
        + ", ".join(f"{means[name].text(1)} % ({name})" for name in (LAW, *RIVALS)) + ".",
        Table(["parameters N", "tokens D", "operations 6 N D", "held-out loss", "fitted"], rows),
        curves(panels, "Loss of language models of the standard library", "training tokens", log_x=True),
        f"{lab.basis}, one fit for each",
    )  # fmt: skip


CLAIM = Claim(
    "C24",
    "The loss of a language model follows a power law in its parameters, its training data and therefore in compute.",
    "000",
    "Language models of Python's standard library of four widths (full version: five), evaluated during training at a constant learning "
    "rate: fit of L = E + A / N^a + B / D^b (Hoffmann et al. 2022) to the runs of each seed, because the points of one training curve are "
    "not independent. The command qkv scale plans such runs for a recipe and a time budget.",
    f"An exponent, of parameters or of tokens, of {SMALLEST} or less; a power law fitted to the smaller sizes that predicts the losses of "
    "the largest size no better than L = c + p log N + q log D, or than the losses of the second largest size (mean relative error). Each "
    "is shown or refuted if the 95 % interval over the seeds does not contain the threshold. Only some shown: holds in part.",
    run,
    2.5,
)
