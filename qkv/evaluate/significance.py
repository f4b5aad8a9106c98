"""Significance tests: p is the probability of a difference at least as large as the observed one if both systems were equally good.
The first system is the baseline.

Paired bootstrap (Koehn 2004), as in sacreBLEU: test sets of the same size are drawn from the sentences with replacement, and all
systems are scored on each.
McNemar (1947), for answers that are right or wrong: only the n = b + c examples count on which the systems disagree, each b or c
with probability 1/2: an exact binomial test, for many examples (|b - c| - 1)² / (b + c) as chi² (Edwards).
Approximate randomisation (Noreen 1989; Yeh 2000), for any score of a test set: the answers of the two systems are exchanged at
random, example by example, and the difference of the scores is computed again.
Welch's t-test, for the scores of several runs of each system; a paired t-test where runs are paired.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.significance import PairedTest

from qkv.errors import QkvError
from qkv.evaluate.scores import References, check_references, make_metric


@dataclass(frozen=True)
class Comparison:
    """One system by one metric, compared with the baseline."""

    system: str
    metric: str
    value: float
    mean: float | None
    """Mean over the resampled test sets; None for tests without resampling."""
    interval: float | None
    """95 % of them lie within mean ± interval."""
    p: float | None
    """None for the baseline."""
    difference: float
    """value - the baseline's value."""
    signature: str
    test: str = "paired bootstrap"
    """The significance test of p."""

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < 0.05

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "significant": self.significant}


# --- translations


def compare(systems: Mapping[str, Sequence[str]], references: References, metrics: Sequence[str] = ("bleu",),
            samples: int = 1000, tokenize: str = "13a", lowercase: bool = False) -> list[Comparison]:  # fmt: skip
    """Compare all systems with the first. The random numbers are those of the `sacrebleu` command (SACREBLEU_SEED)."""
    if len(systems) < 2:
        raise QkvError("compare needs at least two systems")
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not seed.isdecimal() or int(seed) == 0:  # sacreBLEU would use a random seed
        raise QkvError(f"SACREBLEU_SEED must be a positive integer, given {seed!r}")
    every = [check_references(hypotheses, references) for hypotheses in systems.values()]
    chosen = {name.upper(): make_metric(name, tokenize, lowercase) for name in metrics}
    named: list[tuple[str, Sequence[str]]] = [(name, list(hypotheses)) for name, hypotheses in systems.items()]
    signatures, results = PairedTest(named, chosen, every[0], test_type="bs", n_samples=samples)()
    rows = []
    for name, signature in signatures.items():
        first: Any = results[name][0]
        for system, r in zip(systems, results[name], strict=True):
            assert not isinstance(r, str)
            p = 1.0 if r.p_value is not None and r.score == first.score else r.p_value  # sacreBLEU gives 0
            value, mean, interval = (float(number or 0) for number in (r.score, r.mean, r.ci))
            rows.append(Comparison(system, name, value, mean, interval, p, float(value - first.score), str(signature)))
    return rows


# --- answers to the same examples


@dataclass(frozen=True, eq=False)
class Measure:
    """One metric of one system as a function of its result on each example of a test set."""

    units: NDArray[Any]
    """(N, ...) the result of each example: an answer, a loss, or counts."""
    score: Callable[[NDArray[Any]], float]
    """Compute the metric from such an array."""
    binary: bool = False
    """Whether units are 1 (right) and 0 (wrong): McNemar's test."""


EXACT = 1000
"""Maximum number of disagreements for the exact test."""


def mcnemar(first: Sequence[float] | NDArray[Any], second: Sequence[float] | NDArray[Any]) -> float:
    """Return p for two systems that were right (1) or wrong (0) on the same examples."""
    from scipy.stats import binomtest, chi2  # slow to import

    one, other = np.asarray(first, bool), np.asarray(second, bool)
    b, c = int((one & ~other).sum()), int((~one & other).sum())
    if b + c == 0:
        return 1.0
    if b + c <= EXACT:
        return float(binomtest(b, b + c).pvalue)
    return float(chi2.sf(max(abs(b - c) - 1, 0) ** 2 / (b + c), 1))


def randomisation(first: NDArray[Any], second: NDArray[Any], score: Callable[[NDArray[Any]], float], samples: int = 1000,
                  seed: int = 12345) -> float:  # fmt: skip
    """Return p by approximate randomisation: (1 + exchanges with at least the observed difference) / (1 + samples)."""
    if first.shape != second.shape or not len(first):
        raise QkvError(
            f"{len(first)} and {len(second)} answers: give one of each system for each example, and at least one"
        )
    observed = abs(score(first) - score(second))
    random = np.random.default_rng(seed)
    extreme = 0
    for _ in range(samples):
        exchanged = (random.random(len(first)) < 0.5).reshape(-1, *[1] * (first.ndim - 1))
        found = score(np.where(exchanged, second, first)) - score(np.where(exchanged, first, second))
        extreme += abs(found) >= observed - 1e-12 * max(1.0, observed)
    return (1 + extreme) / (1 + samples)


def compare_measures(
    systems: Mapping[str, Mapping[str, Measure]], samples: int = 1000, seed: int = 12345
) -> list[Comparison]:
    """Compare all systems, {name: {metric: Measure}}, with the first, by every metric that all have."""
    if len(systems) < 2:
        raise QkvError("compare needs at least two systems")
    baseline = next(iter(systems))
    shared = [name for name in systems[baseline] if all(name in measures for measures in systems.values())]
    rows = []
    for name in shared:
        first = systems[baseline][name]
        for system, measures in systems.items():
            own, value = measures[name], measures[name].score(measures[name].units)
            test = "McNemar" if own.binary else "approximate randomisation"
            p = None
            if system != baseline:
                p = mcnemar(first.units, own.units) if own.binary else randomisation(
                    first.units, own.units, first.score, samples, seed)  # fmt: skip
            drawn = "" if own.binary else f"|samples:{samples}|seed:{seed}"
            signature = f"test:{test}|units:{len(own.units)}{drawn}"
            difference = value - first.score(first.units)
            rows.append(Comparison(system, name, value, None, None, p, difference, signature, test))
    return rows


# --- several runs of each system


@dataclass(frozen=True)
class RunScores:
    """The scores of several runs of one system by one metric, compared with the baseline."""

    system: str
    metric: str
    values: tuple[float, ...]
    p: float | None
    """None for the baseline."""
    difference: float
    """mean - the baseline's mean."""
    test: str

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float:
        """Sample standard deviation (n - 1)."""
        return float(np.std(self.values, ddof=1))

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < 0.05

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mean": self.mean, "deviation": self.deviation, "significant": self.significant}


def t_test(first: Sequence[float], second: Sequence[float], paired: bool = False) -> float:
    """Return p for two samples with possibly different variances (Welch 1947), or for the differences of pairs."""
    from scipy.stats import ttest_ind, ttest_rel

    if min(len(first), len(second)) < 2 or paired and len(first) != len(second):
        need = "the same number of runs of both systems, at least two" if paired else "at least two runs of each system"
        raise QkvError(f"{len(first)} and {len(second)} runs: a t-test needs {need}")
    spread = np.ptp(np.subtract(second, first)) if paired else np.ptp(first) + np.ptp(second)
    if spread == 0:  # no variance: t is 0 / 0 or infinite
        return 1.0 if math.isclose(first[0], second[0]) else 0.0
    found = ttest_rel(second, first) if paired else ttest_ind(second, first, equal_var=False)
    return float(found.pvalue)


def compare_groups(systems: Mapping[str, Mapping[str, Sequence[float]]], paired: bool = False) -> list[RunScores]:
    """Compare all systems, {name: {metric: scores of its runs}}, with the first, by every metric that all have."""
    baseline = next(iter(systems))
    test = "paired t-test" if paired else "Welch's t-test"
    rows = []
    for name in [one for one in systems[baseline] if all(one in scores for scores in systems.values())]:
        first = systems[baseline][name]
        for system, scores in systems.items():
            own = scores[name]
            p = None if system == baseline else t_test(first, own, paired)
            rows.append(RunScores(system, name, tuple(own), p, float(np.mean(own) - np.mean(first)), test))
    return rows
