"""Run a scaling experiment: train the planned runs, fit the law, and check its prediction of the best size with one more run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkv.config import ModelConfig, Recipe
from qkv.convert.detect import open_config
from qkv.convert.files import read_json
from qkv.errors import QkvError
from qkv.lab.parallel_runs import Outcome, PlannedRun
from qkv.lab.runs_progress import train_with_progress
from qkv.lab.scaling import Interval, Optimum, ScalingFit, ScalingPoint, fit_law, percentile_interval
from qkv.lab.scaling_plan import (
    CHECK_SHARE,
    ModelSize,
    ScalingPlan,
    ScalingRun,
    load_base,
    nearest_size,
    plan_run,
    size_choices,
)

MULTIPLES = (1.0, 10.0, 100.0)
"""Budgets of operations that are predicted, relative to the most expensive run."""
LARGEST_CHECK = 4.0
"""Operations of the check, at most, relative to the most expensive run: an extrapolation that is not too long to train."""


@dataclass(frozen=True)
class TrainedSize:
    """A finished run of the experiment."""

    run: ScalingRun
    folder: Path
    results: dict[str, Any] = field(repr=False)

    @property
    def loss(self) -> float:
        return float(self.results["valid"]["value"])

    @property
    def minutes(self) -> float:
        return float(self.results["training"]["minutes"])

    @property
    def point(self) -> ScalingPoint:
        return ScalingPoint(self.run.size.parameters, self.run.tokens, self.loss)


@dataclass(frozen=True)
class Prediction:
    """The best size for a budget of operations, with 95 % intervals."""

    best: Optimum
    parameters: Interval
    tokens: Interval
    loss: Interval
    share_without_optimum: float
    """Share of the bootstrap samples that have no optimum; the intervals are of the others."""


@dataclass(frozen=True)
class Check:
    """A run that was not fitted, at the predicted best size for its operations."""

    trained: TrainedSize
    predicted: float
    interval: Interval
    """95 % interval of the loss of one run."""
    largest: float
    """Operations of the most expensive fitted run."""
    best: float
    """The predicted best N for its operations."""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.trained.loss - 1

    @property
    def within(self) -> bool:
        return self.interval[0] <= self.trained.loss <= self.interval[1]


@dataclass(frozen=True)
class Scaling:
    """The result of a scaling experiment."""

    recipe: str
    folder: Path
    plan: ScalingPlan
    trained: list[TrainedSize]
    fit: ScalingFit
    predictions: list[Prediction]
    check: Check | None
    failed: dict[str, str]
    notes: list[str]


# --- training


def train_grid(plan: ScalingPlan, recipe: Recipe, out: Path) -> tuple[list[PlannedRun], Outcome]:
    """Train the runs of the plan, the longest first, so that all cores end at about the same time."""
    runs = [plan_run(out / "recipe.toml", out, run, recipe.train.warmup) for run in plan.runs]
    return runs, train_with_progress(runs, plan.jobs)


def collect(plan: ScalingPlan, runs: Sequence[PlannedRun], failed: dict[str, str]) -> list[TrainedSize]:
    """Read the results, in the order of sizes and data."""
    found = [TrainedSize(one, planned.folder, read_json(planned.folder / "results.json"))
             for one, planned in zip(plan.runs, runs, strict=True) if planned.name not in failed]  # fmt: skip
    return sorted(found, key=lambda one: (one.run.size.parameters, one.run.tokens))


# --- prediction


def predict_optimum(fit: ScalingFit, operations: float) -> Prediction:
    """Return the best size and data for C = 6 N D operations."""
    best, optima = fit.law.optimum(operations), fit.optima(operations)
    parameters, tokens, loss = (percentile_interval([one[at] for one in optima]) for at in (1, 2, 3))
    return Prediction(best, parameters, tokens, loss, 1 - len(optima) / len(fit.draws))


def predict_all(fit: ScalingFit, budgets: Sequence[float]) -> list[Prediction]:
    """Predict for the given budgets, or for multiples of the most expensive run; none where the law has no optimum."""
    largest = max(6 * point.parameters * point.tokens for point in fit.points)
    try:
        return [predict_optimum(fit, c) for c in (budgets or [multiple * largest for multiple in MULTIPLES])]
    except QkvError:
        return []


def choose_check(
    fit: ScalingFit, plan: ScalingPlan, trained: Sequence[TrainedSize], config: ModelConfig
) -> ScalingRun | None:
    """Return the run of the predicted best size with the most operations whose time fits into the budget's part for it.

    Its size is at least that of the smallest fitted run and at most twice that of the largest. None where nothing fits.
    """
    parameters = [one.run.size.parameters for one in trained]
    operations = LARGEST_CHECK * max(one.run.operations for one in trained)
    choices = size_choices(config, plan.embeddings)
    for _ in range(80):
        try:
            wanted = fit.law.optimum(operations).parameters
        except QkvError:
            return None
        size = nearest_size(choices, min(max(wanted, min(parameters)), 2 * max(parameters)))
        updates = max(1, round(operations / 6 / size.parameters / plan.tokens_per_update))
        tokens = updates * plan.tokens_per_update
        seconds = plan.seconds(measured_rate(trained, size), tokens)
        if seconds <= CHECK_SHARE * 60 * plan.minutes and tokens <= plan.most_tokens:
            return ScalingRun(size, updates, tokens, seconds)
        operations /= 2**0.25
    return None


def measured_rate(trained: Sequence[TrainedSize], size: ModelSize) -> float:
    """Tokens per second of a size, from the longest run of each size, interpolated between them; beyond, inverse to N."""
    longest = {one.run.size.parameters: one for one in trained}  # sorted: the last one has the most data
    x = np.log([one.run.size.parameters for one in longest.values()])
    y = np.log([one.run.tokens / max(60 * one.minutes, 1e-3) for one in longest.values()])
    beyond = min(0.0, float(x[-1]) - math.log(size.parameters))
    return math.exp(float(np.interp(math.log(size.parameters), x, y)) + beyond)


def check_prediction(fit: ScalingFit, trained: TrainedSize) -> Check:
    """Compare the loss of a run that was not fitted with its prediction."""
    n, d = trained.run.size.parameters, trained.run.tokens
    largest = max(6 * point.parameters * point.tokens for point in fit.points)
    best = fit.law.optimum(6.0 * n * d).parameters
    return Check(trained, fit.law.loss(n, d), fit.predict(n, d), largest, best)


# --- the whole experiment


def fit_runs(plan: ScalingPlan, runs: Sequence[PlannedRun], failed: dict[str, str], draws: int = 500
             ) -> tuple[list[TrainedSize], ScalingFit]:  # fmt: skip
    """Fit the law to the runs that did not fail."""
    trained = collect(plan, runs, failed)
    if len(trained) < 6:
        reason = next(iter(failed.values()), "the plan is too small")
        raise QkvError(f"only {len(trained)} of {len(runs)} runs have finished, and a fit needs six: {reason}")
    return trained, fit_law([one.point for one in trained], draws)


def finish_scaling(source: Path, settings: Sequence[str], out: Path, plan: ScalingPlan, runs: Sequence[PlannedRun], outcome: Outcome,
             budgets: Sequence[float] = (), draws: int = 500) -> tuple[Scaling, int]:  # fmt: skip
    """Fit the law, predict, and train the run that checks it; also return the signal that stopped that run, or 0."""
    recipe = load_base(source, settings)
    trained, fit = fit_runs(plan, runs, outcome.failed, draws)
    config = open_config(trained[0].folder / "best")  # with the size of the vocabulary
    chosen, check, failed = choose_check(fit, plan, trained, config), None, dict(outcome.failed)
    if chosen is not None:
        planned = plan_run(out / "recipe.toml", out, chosen, recipe.train.warmup, "check")
        ended = train_with_progress([planned], 1)
        failed |= ended.failed
        if not ended.signal and not ended.failed:
            results = read_json(planned.folder / "results.json")
            check = check_prediction(fit, TrainedSize(chosen, planned.folder, results))
        elif ended.signal:
            return Scaling(source.stem, out, plan, trained, fit, [], None, failed, []), ended.signal
    predictions = predict_all(fit, budgets)
    text = notes(plan, trained, predictions, check)
    return Scaling(source.stem, out, plan, trained, fit, predictions, check, failed, text), 0


def notes(
    plan: ScalingPlan, trained: Sequence[TrainedSize], predictions: Sequence[Prediction], check: Check | None
) -> list[str]:
    """How the numbers were measured, and what limits them."""
    counted = (
        "all parameters"
        if plan.embeddings
        else "parameters without embeddings and output matrix, which C leaves out too"
    )
    found = [
        f"N: {counted}; D: training tokens; C = 6 N D operations.",
        "Loss: nats per token of the validation set, evaluated once, at the end of a run whose learning rate ends there too.",
        "All sizes have the learning rate of the recipe.",
        *plan.notes,
    ]
    repeated = sum(one.results["training"]["epochs"] >= 1 for one in trained)
    if repeated:
        found.append(
            f"{repeated} of {len(trained)} runs saw some of the {plan.corpus_tokens:,} training tokens more than once."
        )
    if lost := max((one.share_without_optimum for one in predictions), default=0.0):
        found.append(
            f"{100 * lost:.2g} % of the bootstrap samples have no optimum: the intervals of the best sizes are of the others."
        )
    if check is None:
        found.append("No run checks the prediction: the law has no optimum, or no run at it fits into the budget.")
        return found
    if check.trained.run.operations < check.largest:
        found.append("The check has fewer operations than the most expensive fitted run: an interpolation.")
    if abs(math.log(check.trained.run.size.parameters / check.best)) > 0.2:
        found.append(
            f"Check: the predicted best size is N = {check.best:,.0f}; the nearest one between the smallest fitted size and twice the "
            "largest was trained."
        )
    return found
