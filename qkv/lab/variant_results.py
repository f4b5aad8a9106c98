"""Results of variants: the scores of the runs of every variant, compared with those of the baseline variant.

Two questions are tested for each metric. On the test outputs: would the difference between these models hold on other test
examples? Seed i of a variant is compared with seed i of the baseline by the test that `qkv compare` uses: sacreBLEU's paired
bootstrap (BLEU, chrF2), McNemar (accuracy), approximate randomisation (F1, ROUGE, losses); the p-values of several seeds are
combined. Over the seeds: would the difference hold for other seeds? A paired t-test of the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.config import ModelConfig, Recipe
from qkv.convert.detect import open_config
from qkv.convert.files import read_json
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.significance import Comparison, t_test
from qkv.lab.parallel_runs import AnyRecipe
from qkv.lab.statistics import Estimate, combine_p_values, correct_p_values, difference, estimate
from qkv.lab.variants import Plans, Variant, first_run
from qkv.models.flops import training_flops
from qkv.train.compare import compare_runs

SMALLER_IS_BETTER = {"loss", "perplexity", "bits_per_byte", "bits_per_byte_at_least", "TER"}
LENGTH = 32
"""Tokens of a text for which operations are counted; of language models, the window."""
LEVEL = 0.05
"""Significance level."""


@dataclass(frozen=True)
class Trial:
    """A trained run of one variant with one seed."""

    seed: int
    folder: Path
    results: dict[str, Any] = field(repr=False)
    """As results.json has them."""

    @property
    def set(self) -> str:
        """What it was scored on; word vectors without evaluation files have their training loss only."""
        return "test" if self.test_scores else "valid" if self.results.get("valid") else "training"

    @property
    def test_scores(self) -> list[dict[str, Any]]:
        """Scores of the test set; empty where there is none, or where its labels are not public."""
        found: list[dict[str, Any]] = (self.results.get("test") or {}).get("scores", [])
        return found

    @property
    def scores(self) -> dict[str, float]:
        """Metric -> value on the test set; without one, the validation metric."""
        if self.test_scores:
            return {score["name"]: float(score["value"]) for score in self.test_scores}
        valid = self.results.get("valid") or {"metric": "loss", "value": self.results["loss"]}
        return {valid["metric"]: float(valid["value"])}


@dataclass(frozen=True)
class MetricResult:
    """One metric of one variant, and its comparison with the baseline."""

    values: dict[int, float]
    """Seed -> score."""
    difference: Estimate | None = None
    """Variant - baseline, paired by seed; None for the baseline."""
    p_seeds: float | None = None
    """Of the paired t-test over seeds; None for fewer than two."""
    p_by_seed: dict[int, float] = field(default_factory=dict)
    """Seed -> p of the test on the test outputs."""
    test: str = ""
    """Name of that test."""

    @property
    def estimate(self) -> Estimate:
        return estimate(list(self.values.values()))

    @property
    def p_test(self) -> float | None:
        """p on the test outputs, of all seeds together."""
        return combine_p_values(list(self.p_by_seed.values())) if self.p_by_seed else None

    @property
    def significant_seeds(self) -> int:
        """Number of seeds whose test outputs differ significantly."""
        return sum(p < LEVEL for p in self.p_by_seed.values())

    def verdict(self, metric: str) -> str:
        """Summarise the tests in a few words."""
        known = [p for p in (self.p_test, self.p_seeds) if p is not None and not math.isnan(p)]
        if self.difference is None or math.isnan(self.difference.mean) or not known:
            return ""  # a run that diverged has scores that are no numbers
        better = (self.difference.mean < 0) == (metric in SMALLER_IS_BETTER)
        if all(p < LEVEL for p in known):
            return "better" if better else "worse"
        if all(p >= LEVEL for p in known):
            return "no difference shown"
        return "outputs only" if known[0] < LEVEL else "seeds only"


@dataclass(frozen=True)
class VariantResult:
    """One variant: its runs, metrics and costs."""

    variant: Variant
    trials: list[Trial]
    metrics: dict[str, MetricResult]
    operations: float | None
    """Training operations per token; None where they are not counted."""
    reason: str = ""
    """Why its test outputs cannot be compared with the baseline's."""

    @property
    def parameters(self) -> int | None:
        found = {trial.results["model"].get("parameters") for trial in self.trials}
        return found.pop() if len(found) == 1 else None

    @property
    def minutes(self) -> float:
        return math.fsum(trial.results["training"]["minutes"] for trial in self.trials) / max(len(self.trials), 1)


@dataclass(frozen=True)
class Ablation:
    """The result of an ablation; the first variant is the baseline."""

    recipe: str
    """Name of the recipe."""
    task: str
    set: str
    """What the scores are of: "test", "valid" or "training"."""
    metric: str
    """The metric that the figure shows and the table tests."""
    seeds: list[int]
    variants: list[VariantResult]
    failed: dict[str, str]
    """Run -> error."""
    notes: list[str]
    folder: Path

    @property
    def baseline(self) -> VariantResult:
        return self.variants[0]

    def corrected(self, metric: str) -> dict[str, float]:
        """Variant -> p on the test outputs, corrected for the number of variants (Holm)."""
        known = {row.variant.name: p for row in self.variants
                 if metric in row.metrics and (p := row.metrics[metric].p_test) is not None}  # fmt: skip
        return dict(zip(known, correct_p_values(list(known.values())), strict=True))


# --- comparing


def compare_variants(source: Path, plans: Plans, folder: Path, failed: Mapping[str, str], metric: str | None = None,
                     samples: int = 1000) -> Ablation:  # fmt: skip
    """Compare every variant with the first one, by all metrics of the finished runs."""
    trials = {variant: [Trial(seed, run.folder, read_json(run.folder / "results.json")) for seed, run in runs.items()
                        if run.name not in failed] for variant, runs in plans.items()}  # fmt: skip
    if not any(trials.values()):
        raise QkvError(f"no run has finished: {next(iter(failed.values()), 'run the command again to train them')}")
    (base, *others), recipe = trials, first_run(plans).recipe
    rows = [describe_variant(base, trials[base], recipe, {}, "", trials[base])]
    for variant in others:
        pairs = {one.seed: (one, other) for one in trials[base] for other in trials[variant] if one.seed == other.seed}
        compared, reason = compare_outputs(pairs, samples)
        rows.append(describe_variant(variant, trials[variant], recipe, compared, reason, trials[base]))
    some = next(row for row in rows if row.trials)
    first = main_metric(rows, some.trials[0].scores, metric)
    seeds = sorted({seed for runs in plans.values() for seed in runs})
    return Ablation(source.stem, recipe.task, some.trials[0].set, first, seeds, rows, dict(failed),
                    notes(rows, first, recipe, seeds), folder)  # fmt: skip


Compared = dict[int, dict[str, Comparison]]
"""Seed -> metric -> the comparison of two runs."""


def compare_outputs(pairs: Mapping[int, tuple[Trial, Trial]], samples: int) -> tuple[Compared, str]:
    """Compare the stored test outputs of a variant with the baseline's, seed by seed; or say why that is impossible."""
    found: Compared = {}
    try:
        for seed, (first, second) in pairs.items():
            rows = compare_runs([first.folder, second.folder], lambda _: None, samples=samples)
            found[seed] = {row.metric: row for row in rows if row.p is not None}
    except QkvError as error:
        return {}, str(error)
    return found, ""


def describe_variant(variant: Variant, trials: list[Trial], recipe: AnyRecipe, compared: Compared, reason: str,
                     baseline: list[Trial]) -> VariantResult:  # fmt: skip
    """Collect the metrics of a variant."""
    metrics = {}
    for name in trials[0].scores if trials else ():
        values = {trial.seed: trial.scores[name] for trial in trials if name in trial.scores}
        pairs = [(values[one.seed], one.scores[name]) for one in baseline if one.seed in values and name in one.scores]
        own, their = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if trials is baseline or not pairs:
            metrics[name] = MetricResult(values)
            continue
        tests = {seed: rows[name] for seed, rows in compared.items() if name in rows}
        p_by_seed = {seed: row.p for seed, row in tests.items() if row.p is not None}
        p_seeds = t_test(their, own, paired=True) if len(pairs) > 1 else None
        test = next((row.test for row in tests.values()), "")
        metrics[name] = MetricResult(values, difference(own, their), p_seeds, p_by_seed, test)
    return VariantResult(variant, trials, metrics, count_operations(trials, recipe), reason)


def count_operations(trials: Sequence[Trial], recipe: AnyRecipe) -> float | None:
    """Training operations per token (target token, where there are two sides) of a trained variant."""
    if not trials or not isinstance(recipe, Recipe):
        return None
    return operations_per_token(open_config(trials[0].folder / "best"), text_length(recipe))


def text_length(recipe: Recipe) -> int:
    """Tokens of the texts for which operations are counted."""
    assert recipe.data is not None
    return recipe.data.max_length if recipe.task == "language" else min(LENGTH, recipe.data.max_length)


def operations_per_token(c: ModelConfig, length: int) -> float | None:
    """Operations of an update per token, for texts of `length` tokens; None for networks whose operations are not counted."""
    try:
        return training_flops(c, [(1, length, length if c.family == "encoder-decoder" else 0)]) / length
    except QkvError:
        return None


def main_metric(rows: Sequence[VariantResult], scores: Mapping[str, float], wanted: str | None) -> str:
    """Return the requested metric, or the first whose test outputs were compared for all variants, or the first one."""
    if wanted is not None:
        known = {name.lower(): name for name in scores}
        if wanted.lower() not in known:
            raise ConfigError(f"--metric {wanted}: these runs have {', '.join(scores)}")
        return known[wanted.lower()]
    tested = [name for name in scores if all(row.metrics[name].p_by_seed for row in rows[1:] if name in row.metrics)]
    return next(iter(tested or scores))


def notes(rows: Sequence[VariantResult], metric: str, recipe: AnyRecipe, seeds: Sequence[int]) -> list[str]:
    """Notes on how to read the table, and on what is missing from it."""
    shown = [row.metrics[metric] for row in rows if metric in row.metrics]
    tests = dict.fromkeys(one.test for one in shown if one.test)
    kind = f"{rows[0].trials[0].set} set" if rows[0].trials and rows[0].trials[0].set != "training" else "training loss"
    found = [
        f"Scores are of the {kind}."
        if len(seeds) == 1
        else f"Mean ± 95 % interval (Student's t) over the seeds; {kind}."
    ]
    if tests:
        combined = (
            ""
            if len(seeds) == 1
            else ", combined over the seeds (Rüger 1978); in brackets the number of seeds with p < 0.05"
        )
        found.append(f"p, outputs: {' or '.join(tests)} on the test outputs{combined}.")
    if any(one.p_seeds is not None for one in shown):
        found.append("p, seeds: paired t-test over the seeds.")
        found.append("Result: p < 0.05 by both tests; outputs only, seeds only: by one of them.")
    else:
        found.append("No test over the seeds: it needs at least two of them.")
    if len(rows) > 2 and tests:
        found.append(
            f"p is not corrected for {len(rows) - 1} comparisons; results.json also has corrected ones (Holm 1979)."
        )
    for reason, names in group_reasons(rows).items():
        found.append(f"Test outputs not compared ({', '.join(names)}): {reason}.")
    for row in rows:
        if metric in row.metrics and len(signs(row, rows[0], metric)) > 1 and row.metrics[metric].significant_seeds:
            found.append(f"{row.variant.name}: better with some seeds and worse with others.")
    if isinstance(recipe, Recipe) and recipe.train.time_budget is not None:
        found.append(
            "The runs end by the clock (train.time_budget): other processes on the machine change the results."
        )
    if isinstance(recipe, Recipe) and any(row.operations for row in rows):
        where = f"texts of {text_length(recipe)} tokens"
        found.append(f"Operations: matrix products of an update per token (2 per multiply-add), {where}.")
    if any(row.operations is None for row in rows):
        found.append("Operations are not counted for all of these networks.")
    found.append("Minutes: of training, on one core.")
    return found


def group_reasons(rows: Sequence[VariantResult]) -> dict[str, list[str]]:
    """Why outputs were not compared -> the variants concerned."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            found.setdefault(row.reason.rstrip("."), []).append(row.variant.name)
    return found


def signs(row: VariantResult, baseline: VariantResult, metric: str) -> set[bool]:
    """Whether the score is above the baseline's, for each seed."""
    theirs = baseline.metrics[metric].values if metric in baseline.metrics else {}
    return {value > theirs[seed] for seed, value in row.metrics[metric].values.items() if seed in theirs}
