"""Is it luck? Known answers of McNemar's test, of randomisation and of t-tests; equal systems are never told apart."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qkv.errors import QkvError
from qkv.evaluate.metrics import macro_f1
from qkv.evaluate.significance import (
    Measure,
    compare_groups,
    compare_measures,
    mcnemar,
    randomisation,
    t_test,
)


def answers(both: int, first: int, second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Two systems that are right together, alone or never so many times."""
    one = [1] * both + [1] * first + [0] * second + [0] * neither
    other = [1] * both + [0] * first + [1] * second + [0] * neither
    return np.array(one, float), np.array(other, float)


def mean(units: np.ndarray) -> float:
    return float(units.mean())


# --- McNemar


@given(b=st.integers(0, 30), c=st.integers(0, 30))
@settings(max_examples=50, deadline=None)
def test_mcnemar_is_the_binomial_tail(b: int, c: int) -> None:
    """p = min(1, 2 sum_{k <= min(b, c)} C(n, k) / 2^n), whatever both get right or wrong."""
    n = b + c
    wanted = min(1.0, 2 * sum(math.comb(n, k) for k in range(min(b, c) + 1)) / 2**n)
    assert mcnemar(*answers(7, b, c, 3)) == pytest.approx(wanted)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(*answers(50, 1, 9, 40)) == pytest.approx(22 / 1024)  # 2 (1 + 10) / 2^10
    assert mcnemar(*answers(0, 5, 5, 0)) == 1.0 == mcnemar(*answers(10, 0, 0, 10))
    b, c = 700, 600  # many: (|b - c| - 1)^2 / (b + c) with one degree of freedom; 1 - F = erfc(sqrt(x / 2))
    assert mcnemar(*answers(0, b, c, 0)) == pytest.approx(math.erfc(math.sqrt((99**2 / 1300) / 2)))
    assert mcnemar(*answers(0, b, c, 0)) == pytest.approx(stats.binomtest(b, b + c).pvalue, rel=0.02)


# --- approximate randomisation


def test_randomisation_nears_the_exact_test() -> None:
    """All 2^8 exchanges of eight examples, counted."""
    first, second = (
        np.array([0.9, 0.8, 0.7, 0.9, 0.4, 0.6, 0.9, 0.8]),
        np.array([0.5, 0.7, 0.6, 0.4, 0.5, 0.5, 0.3, 0.6]),
    )
    differences = first - second
    every = [abs(float(np.dot(signs, differences))) for signs in product((1, -1), repeat=8)]
    exact = sum(value >= abs(differences.sum()) - 1e-9 for value in every) / len(every)
    assert randomisation(first, second, mean, samples=20_000) == pytest.approx(exact, abs=0.004)


def test_equal_systems_are_not_told_apart() -> None:
    r = np.random.default_rng(0)
    first = r.random(200)
    assert randomisation(first, first.copy(), mean, samples=100) == 1.0
    p = [randomisation(r.random(80), r.random(80), mean, samples=200, seed=i) for i in range(60)]
    assert 0.35 < np.mean(p) < 0.65 and sum(value < 0.05 for value in p) <= 8  # uniform between 0 and 1


def test_a_clear_difference_is_significant_by_any_metric() -> None:
    r = np.random.default_rng(1)
    right = [str(i) for i in r.integers(0, 4, 300)]
    said = [np.array([label if r.random() < share else "0" for label in right], object) for share in (0.9, 0.6)]
    score = lambda units: 100 * macro_f1(units.tolist(), right)  # noqa: E731
    assert randomisation(said[0], said[1], score, samples=200) == pytest.approx(1 / 201)
    counts = np.stack([r.integers(5, 9, 100), np.full(100, 10)], 1)
    worse = counts - np.array([3, 0])
    rate = lambda units: float(units[:, 0].sum() / units[:, 1].sum())  # noqa: E731
    assert randomisation(counts, worse, rate, samples=100) == pytest.approx(1 / 101)


def test_randomisation_needs_the_same_examples() -> None:
    with pytest.raises(QkvError, match="for each example"):
        randomisation(np.zeros(3), np.zeros(4), mean)


def test_all_systems_are_compared_with_the_first() -> None:
    first, second = answers(50, 1, 9, 40)
    made = {name: {"accuracy": Measure(units, mean, binary=True), "f1": Measure(units, mean)} for name, units in
            (("a", first), ("b", second), ("c", first))}  # fmt: skip
    rows = {(row.metric, row.system): row for row in compare_measures(made, samples=2000)}
    assert rows["accuracy", "a"].p is None and rows["accuracy", "c"].p == 1.0 and not rows["accuracy", "c"].significant
    assert rows["accuracy", "b"].p == pytest.approx(22 / 1024) and rows["accuracy", "b"].significant
    assert rows["f1", "b"].p == pytest.approx(22 / 1024, abs=0.01)  # the exchanges of 0 and 1 are McNemar's test
    assert rows["accuracy", "b"].difference == pytest.approx(0.08) and rows["accuracy", "b"].test == "McNemar"
    assert rows["f1", "b"].signature == "test:approximate randomisation|units:100|samples:2000|seed:12345"


# --- several runs


def test_welch_by_hand() -> None:
    """t = (m2 - m1) / sqrt(s1²/n1 + s2²/n2) with Welch-Satterthwaite's degrees of freedom."""
    a, b = [90.1, 90.5, 89.9], [91.0, 91.9, 91.3, 92.2]
    va, vb = np.var(a, ddof=1) / 3, np.var(b, ddof=1) / 4
    t = (np.mean(b) - np.mean(a)) / math.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 3)
    assert t_test(a, b) == pytest.approx(2 * stats.t.sf(abs(t), freedom))


def test_pairs_have_one_sample_of_differences() -> None:
    a, b = [90.0, 80.0, 70.0], [91.0, 80.9, 71.2]
    d = np.subtract(b, a)
    t = d.mean() / (d.std(ddof=1) / math.sqrt(3))
    assert t_test(a, b, paired=True) == pytest.approx(2 * stats.t.sf(abs(t), 2))
    assert t_test(a, b, paired=True) < 0.05 < t_test(a, b)


def test_groups_have_mean_and_deviation() -> None:
    rows = compare_groups({"a": {"bleu": [1.0, 2.0, 3.0], "x": [1, 1]}, "b": {"bleu": [11.0, 12.0, 13.0]}})
    assert [(row.system, row.metric, row.mean, row.deviation) for row in rows] == [
        ("a", "bleu", 2, 1),
        ("b", "bleu", 12, 1),
    ]
    assert rows[0].p is None and rows[1].significant and rows[1].difference == 10
    assert t_test([1, 1], [1, 1]) == 1.0 and t_test([1, 1], [2, 2]) == 0.0


@pytest.mark.parametrize("paired", [True, False])
def test_one_run_has_no_deviation(paired: bool) -> None:
    with pytest.raises(QkvError, match="at least two"):
        t_test([1.0], [1.0, 2.0], paired)
