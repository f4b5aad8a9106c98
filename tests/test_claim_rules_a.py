"""The rules of C1 to C13: synthetic measurements that support a claim, contradict it, or leave it open give the verdict of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from qkv.lab.claims import MODULES, get_claim
from qkv.lab.experiment import Experiment
from qkv.lab.statistics import Estimate, below, both, difference, estimate, exceeds, outside, within

Answer = Callable[..., Any]
HOLDS, PART, NOT, OPEN = "holds", "holds in part", "does not hold", "undecided"


class Synthetic(Experiment):
    """An experiment whose measurements are those of `answer(name of the measuring function, its arguments)`."""

    def __init__(self, folder: Path, answer: Answer):
        super().__init__(folder)
        self.answer = answer

    def measure(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        return self.answer(work.__name__, *arguments)

    def grid(self, work: Callable[..., Any], settings: Any) -> dict[str, list[Any]]:
        return {name: [self.answer(work.__name__, *a, seed) for seed in self.seeds] for name, a in settings.items()}


def module(claim: str) -> Any:
    return import_module(f"qkv.lab.claims.{MODULES[claim]}")


def around(value: float, noise: float, seed: int) -> float:
    """Values of three seeds: value - noise, value, value + noise."""
    return value + noise * (seed - 2)


# --- synthetic measurements


def c1(largest: float, plain: float, scaled: float, noise: float = 0.0) -> Answer:
    """Gradients at the largest width relative to those at the others."""

    def answer(work: str, score: str, width: int, seed: int) -> dict[str, float]:
        gradient = (plain if score == "dot" else scaled) if width == 1024 else 1.0
        return {
            "largest": around(largest, noise, seed),
            "gradient": around(gradient, noise if width == 1024 else 0, seed),
        }

    return answer


def c2(fixed: float, attentive: float, noise: float = 0.0) -> Answer:
    """Shares of BLEU that the networks keep on long texts."""

    def answer(work: str, name: str, width: int, steps: int, data: str, seed: int) -> dict[str, Any]:
        share = around(fixed, noise, seed) if name in module("C2").FIXED else around(attentive, -noise, seed)
        test = {str(n): {"bleu": 50 * (share if n == 4 else 1), "loss": 1.0} for n in (1, 2, 3, 4)}
        return {"test": test, "parameters": 1000, "minutes": 0.5}

    return answer


def c3(usual: float, open_gates: float, transformer: float, noise: float = 0.0) -> Answer:
    """Factors per token."""

    def answer(work: str, name: str, seed: int) -> list[float]:
        factor = {"Transformer": transformer, module("C3").OPEN: open_gates}.get(name, usual)
        return [1.0, *(around(factor, noise if name != "Transformer" else 0, seed) ** k for k in range(30))]

    return answer


def c4(growth: tuple[int, int], exponents: tuple[float, float], slower: float, noise: float = 0.0) -> Answer:
    """Of recurrent networks and Transformers: growth of the serial steps when n doubles, exponents of the times; how much slower the
    recurrent ones are at 1,024 tokens."""
    kind = lambda name: "Transformer" in name  # noqa: E731

    def answer(work: str, *arguments: int) -> Any:
        names = module("C4").ORDER
        if work == "count_steps":
            return {name: [10, 10 * growth[kind(name)]] for name in names}
        _, _, n, seed = arguments
        return {
            name: (n / 1024) ** around(exponents[kind(name)], noise, seed) * (1 if kind(name) else slower)
            for name in names
        }

    return answer


def c5(recurrent: tuple[int, int], attention: tuple[int, int], factor: int = 2) -> Answer:
    """Exponents of the times in n and d; `factor` = 2 is the operations' own."""

    def answer(work: str, n: int, d: int, *seed: int) -> dict[str, float]:
        if work == "operations":
            return {"recurrent": factor * n * d * d, "attention": 2 * n * n * d}
        return {name: n**a * float(d) ** b for name, (a, b) in (("recurrent", recurrent), ("attention", attention))}

    return answer


def c6(alone: float, linear: float, noise: float = 0.0) -> Answer:
    """Losses of attention alone and with linear layers; with ReLU it is 2."""

    def answer(work: str, *arguments: Any) -> Any:
        if work == "averaging":
            return {"difference": 0.0, "smallest weight": 0.0, "sum of weights - 1": 0.0, "beyond the values": 0.0}
        loss = {"ReLU": 2.0, "linear": linear}.get(arguments[0], alone)
        return 1000 if work == "parameters" else around(loss, noise if arguments[0] != "ReLU" else 0, arguments[-1])

    return answer


def c7(error: float, blind: float, sinusoidal: float = 99.0, noise: float = 0.0) -> Answer:
    def answer(work: str, *arguments: Any) -> float:
        if work == "reordering_error":
            return error if arguments[0] == "none" else 0.1
        family, position, _, seed = arguments
        return around(blind, noise, seed) if (family, position) == ("encoder", "none") else sinusoidal

    return answer


def c8(noise: float = 0.0, **rises: float) -> Answer:
    def answer(work: str, position: str, length: int, steps: int, seed: int) -> list[float]:
        return [1.0] * (2 * length) + [1 + around(rises.get(position, 0.0), noise * len(position), seed)] * (2 * length)

    return answer


def c9(error: float) -> Answer:
    return lambda *_: {"error": error, "orthogonal": 0.0, "cosine": 0.5, "spread": 0.0}


def c10(equal: float, different: float) -> Answer:
    return lambda *_: {str(c): {"mean": different * c, "range": equal} for c in range(6)}


def c11(cheating: float, generating: float, masked: float = 2.0, noise: float = 0.0) -> Answer:
    def answer(work: str, causal: bool, steps: int, seed: int) -> dict[str, Any]:
        held_out, later = (
            (2.0, masked) if causal else (around(cheating, noise, seed), around(generating, 10 * noise, seed))
        )
        return {"losses": [1.0] * steps, "held out": held_out, "generating": later, "frequencies alone": 4.5}

    return answer


def c12(losses: tuple[float, ...], noise: float = 0.0) -> Answer:
    """Of 1, 2, 4, 8 and 16 heads."""

    def answer(work: str, heads: int, *arguments: int) -> Any:
        if work == "cost":
            return {"parameters": 1, "operations": 1}
        return around(losses[module("C12").HEADS.index(heads)], noise if heads > 1 else 0, arguments[-1])

    return answer


def c13(
    gradients: tuple[float, float], smoothness: tuple[float, float], losses: tuple[float, float], noise: float = 0.0
) -> Answer:
    """Without residuals and with them."""

    def answer(work: str, residual: bool, norm: str, size: int, seed: int) -> Any:
        own = noise if residual else 0.0
        if work == "loss":
            return around(losses[residual], own, seed)
        return {
            "gradient": gradients[residual] * 100 ** around(0, own, seed),
            "smoothness": around(smoothness[residual], own, seed),
        }

    return answer


CASES: dict[str, list[tuple[str, Answer]]] = {
    "C1": [(HOLDS, c1(0.95, 0.2, 1.0)), (NOT, c1(0.3, 0.9, 0.2)), (OPEN, c1(0.9, 0.5, 0.8, 0.3)), (PART, c1(0.95, 0.2, 0.5))],
    "C2": [(HOLDS, c2(0.3, 0.9)), (NOT, c2(1.1, 0.5)), (OPEN, c2(0.7, 0.8, 0.5)), (PART, c2(0.5, 0.5))],
    "C3": [(HOLDS, c3(0.7, 0.7, 1.0)), (NOT, c3(1.0, 1.0, 0.7)), (OPEN, c3(1.0, 1.0, math.nan, 0.2)), (PART, c3(0.7, 1.0, 1.0)),
           (PART, c3(0.9, 0.9, 1.0, 0.2))],
    "C4": [(HOLDS, c4((2, 1), (1, 0), 9.0)), (NOT, c4((1, 2), (0, 1), 0.5)), (PART, c4((2, 1), (1, 0.9), 2.0)),
           (PART, c4((2, 2), (1, 0.2), 9.0, 0.3))],
    "C5": [(HOLDS, c5((1, 2), (2, 1))), (NOT, c5((2, 1), (1, 2), 3)), (PART, c5((1, 1), (2, 1)))],
    "C6": [(HOLDS, c6(2.2, 2.3)), (NOT, c6(1.9, 2.0)), (OPEN, c6(2.1, 2.1, 0.1)), (PART, c6(2.2, 1.9))],
    "C7": [(HOLDS, c7(1e-16, 50)), (NOT, c7(0.1, 80)), (PART, c7(1e-16, 55, noise=5)), (PART, c7(1e-16, 50, sinusoidal=60))],
    "C8": [(HOLDS, c8(learned=0.9, sinusoidal=0.5, rotary=0.1, relative=0.3)), (NOT, c8(learned=0.1)), (OPEN, c8(0.2, learned=0.4)),
           (PART, c8(learned=0.1, sinusoidal=0.5))],
    "C9": [(HOLDS, c9(1e-7)), (NOT, c9(1e-2))],
    "C10": [(HOLDS, c10(1e-4, 1.0)), (NOT, c10(1.0, 1.0)), (NOT, c10(0.0, 0.0))],
    "C11": [(HOLDS, c11(0.05, 7)), (NOT, c11(1.9, 3)), (OPEN, c11(0.2, 4.5, noise=0.2)), (PART, c11(0.05, 7, masked=5))],
    "C12": [(HOLDS, c12((2.5, 2.4, 2.3, 2.2, 2.1))), (NOT, c12((2.0, 2.0, 2.0, 2.2, 2.0))), (NOT, c12((2.0, 1.9, 1.8, 2.2, 2.1))),
            (OPEN, c12((2.2, 2.1, 2.1, 2.1, 2.1), 0.1)), (PART, c12((2.5, 2.4, 2.3, 2.2, 2.4)))],
    "C13": [(HOLDS, c13((1e-5, 2.0), (0.1, 0.9), (5, 3))), (NOT, c13((0.5, 2.0), (0.9, 0.1), (3, 5))),
            (OPEN, c13((1e-5, 0.2), (0.5, 0.6), (5, 4.9), 0.5)), (PART, c13((0.5, 2.0), (0.1, 0.9), (5, 3))),
            (HOLDS, c13((1e-5, 2.0), (0.1, 0.9), (math.inf, 3))), (PART, c13((1e-5, 2.0), (0.1, 0.9), (math.inf, math.inf))),
            (PART, c13((1e-5, 2.0), (0.9, 0.9), (5, 3)))],
}  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "case"), [(claim, case) for claim, cases in CASES.items() for case in range(len(cases))]
)
def test_the_verdict_follows_from_the_measurements(claim: str, case: int, tmp_path: Path) -> None:
    verdict, answer = CASES[claim][case]
    result = get_claim(claim).run(Synthetic(tmp_path, answer))
    assert result.verdict == verdict
    assert all(len(row) == len(result.table.columns) for row in result.table.rows)


@pytest.mark.parametrize(("open_gates", "said"), [(1.0, True), (0.7, False)])
def test_that_an_lstm_depends_on_its_initial_weights_is_said_where_it_was_measured(
    open_gates: float, said: bool, tmp_path: Path
) -> None:
    found = get_claim("C3").run(Synthetic(tmp_path, c3(0.7, open_gates, 1.0)))
    assert ("depends on the initial weights" in found.finding) == said


# --- estimates and thresholds


@pytest.mark.parametrize(
    ("values", "mean", "above"),
    [([math.inf, 2, 3], math.inf, True), ([-math.inf, 2, 3], -math.inf, False), ([math.inf, -math.inf], math.nan, None),
     ([math.nan, 1, 2], math.nan, None), ([2.0, 2.1, 2.2], 2.1, True), ([1.0, 3.0], 2.0, None), ([0.5], 0.5, None)],
)  # fmt: skip
def test_runs_that_diverged_have_a_mean_and_no_interval(values: list[float], mean: float, above: bool | None) -> None:
    found = estimate(values)
    assert found.mean == pytest.approx(mean, nan_ok=True)
    assert exceeds(found, 1.0) is above and below(found, 1.0) is (None if above is None else not above)
    assert all(map(math.isfinite, values)) or math.isinf(found.half_width)


def test_the_difference_of_two_diverged_runs_is_open() -> None:
    assert exceeds(difference([math.inf, math.inf], [math.inf, math.inf])) is None
    assert exceeds(difference([math.inf, 3.0], [2.0, 2.0])) is True


@pytest.mark.parametrize(("mean", "inside"), [(1.0, True), (3.0, False), (-3.0, False), (2.0, None), (0.0, None)])
def test_an_interval_lies_inside_outside_or_across(mean: float, inside: bool | None) -> None:
    found = Estimate(mean, 0.5)
    assert within(found, 0.0, 2.0) is inside
    assert outside(found, 0.0, 2.0) is (None if inside is None else not inside)


def test_two_parts_are_shown_together() -> None:
    assert [both(a, b) for a, b in ((True, True), (True, None), (None, False), (False, True))] == [
        True,
        None,
        False,
        False,
    ]
