"""Scaling laws: known laws are recovered within their intervals, degenerate designs are reported, plans fit into their budget."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from scipy.optimize import check_grad, minimize_scalar

from qkv.commands.train import train_recipe
from qkv.config import load_recipe
from qkv.errors import ConfigError, QkvError
from qkv.lab import scaling_plan
from qkv.lab.parallel_runs import Outcome, PlannedRun, run_state
from qkv.lab.scaling import ScalingLaw, ScalingPoint, fit_law, objective, scale_points, starts
from qkv.lab.scaling_experiment import notes, predict_all, predict_optimum
from qkv.lab.scaling_plan import (
    GRID_SHARE,
    MOST_EPOCHS,
    ModelSize,
    ScalingPlan,
    choose_runs,
    make_size,
    makespan,
    nearest_size,
    scale_config,
    size_choices,
)
from qkv.recipes import find

LAW = ScalingLaw(E=1.5, A=30.0, B=900.0, a=0.4, b=0.5)
SIZES, DATA = [3e4, 8e4, 2e5, 6e5, 1.8e6], [2.6e5 * 2**k for k in range(5)]
GRID = [(n, d) for n in SIZES for d in DATA]


def measure(
    pairs: Sequence[tuple[float, float]], noise: float = 0.0, law: ScalingLaw = LAW, seed: int = 1
) -> list[ScalingPoint]:
    r = np.random.default_rng(seed)
    return [ScalingPoint(n, d, law.loss(n, d) * math.exp(noise * r.standard_normal())) for n, d in pairs]


# --- the fit


def test_an_exact_law_is_recovered() -> None:
    fit = fit_law(measure(GRID), draws=2)
    assert (fit.law.a, fit.law.b, fit.law.E) == pytest.approx((LAW.a, LAW.b, LAW.E), rel=1e-3)
    assert max(map(abs, fit.residuals)) < 1e-4 and fit.separable


def test_a_noisy_law_is_recovered_within_its_intervals() -> None:
    fit = fit_law(measure(GRID, noise=0.003), draws=60)
    for name in "abEAB":
        low, high = fit.interval(lambda law, name=name: getattr(law, name))  # type: ignore[misc]
        assert low < getattr(LAW, name) < high, name
    assert fit.separable and 0.002 < fit.deviation < 0.005
    low, high = fit.predict(3e6, 2e7)  # larger than all of them
    assert low < LAW.loss(3e6, 2e7) < high and high / low < 1.1


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(n, 20 * n) for n in np.geomspace(3e4, 2e6, 10)], "change together"),
        ([(n, d) for n in SIZES[:2] for d in DATA], "only 2 different sizes"),
        ([(n, d) for n in SIZES for d in DATA[:1]] * 2, "only 1 different amounts of data"),
        ([(n, d) for n in (1.0e5, 1.1e5, 1.2e5) for d in DATA], "interval of a"),
    ],
    ids=["proportional", "two sizes", "one amount", "narrow"],
)
def test_a_degenerate_design_is_reported(pairs: list[tuple[float, float]], reason: str) -> None:
    fit = fit_law(measure(pairs, noise=0.003), draws=8)
    assert not fit.separable and any(reason in problem for problem in fit.problems), fit.problems


def test_one_bad_run_hardly_moves_the_fit() -> None:
    points = measure(GRID, noise=0.001)
    points[7] = points[7]._replace(loss=1.3 * points[7].loss)  # it diverged
    assert fit_law(points, draws=2).law.b == pytest.approx(LAW.b, rel=0.03)


def test_the_gradient_is_that_of_the_objective() -> None:
    s = scale_points(measure(GRID, noise=0.05))
    for theta in starts(s)[::9]:
        value, gradient = objective(theta, s)
        error = check_grad(lambda x: objective(x, s)[0], lambda x: objective(x, s)[1], theta, epsilon=1e-7)
        assert error < 1e-3 * np.linalg.norm(gradient) and value > 0


def test_a_fit_needs_six_runs_with_positive_losses() -> None:
    with pytest.raises(QkvError, match="at least 6"):
        fit_law(measure(GRID[:5]))
    with pytest.raises(QkvError, match="positive"):
        fit_law([*measure(GRID), ScalingPoint(1e5, 1e6, math.nan)])


def test_the_optimum_is_the_smallest_loss_for_its_operations() -> None:
    for operations in (1e12, 1e15, 1e18):
        best = LAW.optimum(operations)
        assert 6 * best.parameters * best.tokens == pytest.approx(operations)
        found = minimize_scalar(
            lambda x: LAW.loss(math.exp(x), operations / 6 / math.exp(x)), bounds=(1, 40), method="bounded"
        )
        assert best.loss == pytest.approx(found.fun, rel=1e-9)
    with pytest.raises(QkvError, match="no optimum"):
        ScalingLaw(1.0, 1.0, 1.0, 0.0, 0.5).optimum(1e12)


@pytest.mark.parametrize(("A", "B"), [(1e3, 1e-3), (1e-3, 1e3)], ids=["N too large", "N too small"])
def test_tiny_exponents_have_no_optimum(A: float, B: float) -> None:
    flat = ScalingLaw(1.0, A, B, 1e-4, 1e-4)
    with pytest.raises(QkvError, match="no optimum"):
        flat.optimum(1e12)
    fit = fit_law(measure(GRID), draws=1)
    assert predict_all(replace(fit, law=flat), []) == []
    found = predict_optimum(replace(fit, draws=[fit.law, flat]), 1e12)
    assert found.share_without_optimum == 0.5 and found.parameters == (found.best.parameters,) * 2
    assert any("50 % of the bootstrap samples have no optimum" in note for note in notes(plan(10), [], [found], None))


# --- sizes and plans


@pytest.mark.parametrize(
    "name", ["stdlib-code", "grammar-lm", "shakespeare-lstm", "shakespeare-mamba", "llama-like", "gpt2-like"]
)
def test_every_size_of_a_language_model_can_be_built(name: str) -> None:
    c = load_recipe(find(name)).model
    own = scale_config(c, 1.0)
    assert own == {field: getattr(c, field) for field in own}
    sizes = [make_size(c, factor) for factor in scaling_plan.FACTORS]
    counts = [size.parameters for size in sizes]
    assert (
        counts == sorted(counts) and counts[-1] > 8 * counts[0] and all(size.total > size.parameters for size in sizes)
    )
    assert nearest_size(size_choices(c), counts[2]).parameters == pytest.approx(counts[2], rel=0.5)


def plan(minutes: float, jobs: int = 2, corpus: int = 3_000_000) -> ScalingPlan:
    sizes = [
        ModelSize({"d_model": 16 * k, "n_layers": k}, 3000 * k**3, 5000 * k**3, 40_000 / k**2) for k in (1, 2, 3, 4, 6)
    ]
    return ScalingPlan([], sizes, 4096, corpus, 8.0, 100_000, minutes, jobs, [])


@pytest.mark.parametrize("minutes", [10, 30, 120, 10_000])
@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_a_plan_fits_into_its_budget(minutes: float, jobs: int) -> None:
    p = choose_runs(plan(minutes, jobs))
    assert makespan(p.runs, jobs) <= GRID_SHARE * 60 * minutes
    assert max(run.tokens for run in p.runs) <= MOST_EPOCHS * p.corpus_tokens
    assert len({(run.size.parameters, run.tokens) for run in p.runs}) == len(p.runs) >= 9
    assert makespan(p.runs, 10**6) == max(run.seconds for run in p.runs) == p.runs[0].seconds  # the longest first


def test_a_budget_that_is_too_small_is_an_error_with_one_that_is_enough() -> None:
    with pytest.raises(ConfigError, match="at least") as error:
        choose_runs(plan(0.2))
    enough = int(str(error.value).partition("at least ")[2].partition(" ")[0])
    assert choose_runs(plan(enough)).runs


# --- the command

RECIPE = """
task = "language"
[model]
family = "decoder"
d_model = 32
n_layers = 2
n_heads = 2
d_ff = 64
norm_order = "pre"
max_length = 32
tie = "output"
embed_scale = true
[data]
train = [{ grammar = 200 }]
valid = { grammar = 20 }
test = { grammar = 20 }
vocab_size = 120
max_length = 32
batch_tokens = 128
[train]
time_budget = 5
steps = 100000
learning_rate = 0.01
ema = 0.9
warmup = 100
"""


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Train within this process, with rates that do not depend on the machine; return the names of the trained runs."""
    names: list[str] = []

    def train_here(runs: Sequence[PlannedRun], jobs: int, quiet: bool = False) -> Outcome:
        for run in runs:
            if run_state(run) != "finished":
                names.append(run.name)
                train_recipe(str(run.source), list(run.settings), run.folder, None, 1, 1)
        return Outcome({})

    monkeypatch.setattr("qkv.lab.scaling_experiment.train_with_progress", train_here)
    monkeypatch.setattr("qkv.lab.scaling_experiment.fit_law", lambda points, draws: fit_law(points, 10))
    monkeypatch.setattr(scaling_plan, "FACTORS", (0.25, 0.5, 1.0))
    monkeypatch.setattr(scaling_plan, "measure_rate", lambda task, c, size, batches: 2e7 / (1000 + size.parameters))
    monkeypatch.setattr(scaling_plan, "choose_runs", lambda p: choose_runs(replace(p, overhead=0.2)))
    return names


def test_the_command_plans_trains_fits_and_checks(run: Run, tmp_path: Path, trainings: list[str]) -> None:
    recipe, out = tmp_path / "small.toml", tmp_path / "out"
    recipe.write_text(RECIPE)
    arguments: list[Any] = ["scale", recipe, "--minutes", "0.5", "--jobs", "1", "--out", out]
    code, planned, _ = run(*arguments, "--dry-run")
    assert not code and "| d_model=32, n_layers=2 |" in planned and not trainings and not (out / "runs").exists()
    code, text, _ = run(*arguments, "--operations", "1e10")
    assert not code and text.startswith("L(N, D) = ") and "Check: for" in text
    count = len(trainings)
    found = json.loads((out / "results.json").read_text())
    assert count == len(found["runs"]) + 1 >= 10 and found["predictions"][0]["operations"] == 1e10
    law = ScalingLaw(**found["law"])
    assert found["check"]["predicted"] == pytest.approx(
        law.loss(found["check"]["parameters"], found["check"]["tokens"])
    )
    for one in found["runs"]:
        results = json.loads((Path(one["folder"]) / "results.json").read_text())
        rates = [
            json.loads(line)["learning_rate"] for line in (Path(one["folder"]) / "log.jsonl").read_text().splitlines()
        ]
        assert (
            results["valid"]["value"] == one["loss"] and results["valid"]["update"] == len(rates) == one["tokens"] / 128
        )
        assert (
            results["test"] is None and max(rates) > 0.008 and rates[-1] < 0.15 * max(rates)
        )  # its schedule ends with it
    assert all((out / name).stat().st_size for name in ("index.html", "table.md", "table.csv", "figure.svg"))
    assert not run(*arguments)[0] and len(trainings) == count  # all of them are finished
    code, text, _ = run(*arguments, "--count-embeddings")
    assert not code and "N: all parameters" in text and len(trainings) <= count + 1  # another check, perhaps
    kept = {name: (out / name).read_bytes() for name in ("plan.json", "recipe.toml")}
    code, _, error = run(*arguments, "--set", "train.learning_rate=1e-4")
    assert code == 2 and "another train.learning_rate" in error and len(trainings) <= count + 1
    assert kept == {name: (out / name).read_bytes() for name in kept}  # refused before anything is written


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo"], "needs a language model"),
        (["stdlib-code", "--set", "model.d_modl=3"], "d_modl"),
        (["grammar-lm", "--set", "tune.start=nowhere"], "nowhere"),
    ],
)
def test_bad_recipes_are_one_line(run: Run, tmp_path: Path, arguments: list[str], words: str) -> None:
    code, _, error = run("scale", *arguments, "--out", tmp_path / "out")
    assert code == 2 and words in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_no_operations_are_refused(run: Run, tmp_path: Path) -> None:
    code, _, error = run("scale", "grammar-lm", "--operations", "0", "--out", tmp_path / "out")
    assert code == 2 and "--operations" in error and not (tmp_path / "out").exists()
