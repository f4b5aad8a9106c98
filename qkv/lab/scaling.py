"""Scaling law: fit L(N, D) = E + A / N^a + B / D^b to the losses of runs, with intervals, and predict the best size for a budget.

Hoffmann et al. 2022 (section 3.3): the residuals of log L under a Huber loss, minimised by L-BFGS from a grid of starts.
N: parameters without embeddings, D: training tokens, C = 6 N D: operations. Intervals are from a bootstrap of the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from qkv.errors import QkvError

DELTA = 1e-3
"""Where the Huber loss of a residual of log L turns from squared to absolute."""
FEWEST = 6
"""Minimum number of runs to fit five numbers."""
LARGEST_EXPONENT = 4.0
LARGEST_LOG = 100.0
"""Of the best N and D: beyond 1e43 the exponents are too small for an optimum."""
CORRELATED = 0.95
"""Correlation of log N and log D from which on sizes and data grow together, and their effects cannot be told apart."""
ILL_CONDITIONED = 300.0
"""Condition number of the scaled Jacobian from which on the parameters cannot be told apart."""
WIDEST = 3.0
"""Largest ratio of the ends of an exponent's 95 % interval that still determines it."""
SMALLEST = 0.02
"""An exponent whose interval reaches below this may be zero."""

Array = NDArray[np.float64]
Interval = tuple[float, float]


class ScalingPoint(NamedTuple):
    """A trained run."""

    parameters: float
    """N, without embeddings."""
    tokens: float
    """D."""
    loss: float
    """Of held-out text, in nats per token."""


class Optimum(NamedTuple):
    """The best use of a budget of operations."""

    operations: float
    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^a + B / D^b."""

    E: float
    A: float
    B: float
    a: float
    b: float

    def loss(self, parameters: float, tokens: float) -> float:
        return float(self.E + self.A * parameters**-self.a + self.B * tokens**-self.b)

    def optimum(self, operations: float) -> Optimum:
        """Minimise L for C = 6 N D: N = G (C / 6)^(b / (a + b)), G = (a A / (b B))^(1 / (a + b)), D = C / (6 N).

        QkvError where an exponent or a factor is 0, or so small that N or D would be astronomical.
        """
        if min(self.a, self.b, self.A, self.B, operations) > 0:
            log_g = math.log(self.a) + math.log(self.A) - math.log(self.b) - math.log(self.B)  # times a + b
            log_n = (log_g + self.b * math.log(operations / 6)) / (self.a + self.b)
            log_d = math.log(operations / 6) - log_n
            if max(abs(log_n), abs(log_d)) < LARGEST_LOG:
                n, d = math.exp(log_n), math.exp(log_d)
                return Optimum(operations, n, d, self.loss(n, d))
        raise QkvError("this law has no optimum: the loss does not depend on both size and data")


@dataclass(frozen=True)
class ScalingFit:
    """A law fitted to runs, and how well they determine it."""

    points: list[ScalingPoint]
    law: ScalingLaw
    draws: list[ScalingLaw]
    """Laws fitted to bootstrap samples."""
    residuals: list[float]
    """log L - log of the fitted L, run by run."""
    problems: list[str]
    """Why the runs cannot separate the exponents; empty if they can."""

    @property
    def separable(self) -> bool:
        return not self.problems

    def interval(self, number: Callable[[ScalingLaw], float]) -> Interval:
        """The 95 % interval of a number that follows from the law."""
        return percentile_interval([number(law) for law in self.draws])

    def optima(self, operations: float) -> list[Optimum]:
        """The optima of the bootstrap samples, without those samples that have none."""
        found = []
        for law in self.draws:
            with suppress(QkvError):
                found.append(law.optimum(operations))
        return found

    def predict(self, parameters: float, tokens: float, seed: int = 0) -> Interval:
        """The 95 % interval of the loss of a new run: that of the law and the scatter of single runs around it."""
        scatter = np.random.default_rng(seed).choice(inflate(self.residuals), len(self.draws))
        return percentile_interval(
            [law.loss(parameters, tokens) * math.exp(r) for law, r in zip(self.draws, scatter, strict=True)]
        )

    @property
    def deviation(self) -> float:
        """Standard deviation of the residuals, with n - 5 degrees of freedom: the relative scatter of the losses."""
        return math.sqrt(sum(r * r for r in self.residuals) / (len(self.residuals) - 5))


def percentile_interval(values: Sequence[float]) -> Interval:
    """The interval from the 2.5th to the 97.5th percentile of bootstrap values; nan without any."""
    low, high = np.quantile(values, [0.025, 0.975]) if values else (math.nan, math.nan)
    return float(low), float(high)


# --- the fit


class Scaled(NamedTuple):
    """The runs as the optimiser sees them, centred: log(N / N0), log(D / D0), log L, each (n,)."""

    x: Array
    y: Array
    log_loss: Array
    x0: float
    y0: float


def scale_points(points: Sequence[ScalingPoint]) -> Scaled:
    """Centre log N and log D, so that A and B hardly depend on the exponents during the search."""
    n, d, loss = (np.log(np.array(column, float)) for column in zip(*points, strict=True))
    return Scaled(n - n.mean(), d - d.mean(), loss, float(n.mean()), float(d.mean()))


def predict_log(theta: Array, s: Scaled) -> tuple[Array, Array]:
    """log L of every run by theta = (log A', log B', log E, a, b), (n,), and its Jacobian, (n, 5).

    log L = log(exp(log A' - a x) + exp(log B' - b y) + exp(log E)): the share of each term is its derivative.
    """
    terms = np.stack([theta[0] - theta[3] * s.x, theta[1] - theta[4] * s.y, np.full_like(s.x, theta[2])])  # (3, n)
    top = terms.max(0)
    predicted = top + np.log(np.exp(terms - top).sum(0))
    share = np.exp(terms - predicted)  # (3, n)
    return predicted, np.stack([share[0], share[1], share[2], -s.x * share[0], -s.y * share[1]], 1)


def objective(theta: Array, s: Scaled) -> tuple[float, Array]:
    """The sum of Huber(residual / DELTA) and its gradient, (5,). Not multiplied by DELTA^2: the optimiser would stop early."""
    predicted, jacobian = predict_log(theta, s)
    r = (predicted - s.log_loss) / DELTA
    small = np.abs(r) <= 1
    value = np.where(small, 0.5 * r * r, np.abs(r) - 0.5).sum()
    return float(value), (np.clip(r, -1, 1)[:, None] * jacobian).sum(0) / DELTA


def starts(s: Scaled) -> list[Array]:
    """Starting points: exponents and irreducible losses in steps, the rest of the mean loss divided between both terms."""
    least, mean = math.exp(s.log_loss.min()), math.exp(s.log_loss.mean())
    found = []
    for a, b, share in product((0.1, 0.35, 0.8, 1.6), (0.1, 0.35, 0.8, 1.6), (0.05, 0.5, 0.9)):
        half = math.log((mean - share * least) / 2)
        found.append(np.array([half, half, math.log(share * least), a, b]))
    return found


def search(s: Scaled, begin: Sequence[Array]) -> Array:
    """The best of the minima that L-BFGS reaches from some starts."""
    least = float(s.log_loss.min())
    bounds = [(-20.0, 20.0), (-20.0, 20.0), (least - 10, least), (0.0, LARGEST_EXPONENT), (0.0, LARGEST_EXPONENT)]

    def descend(theta: Array, steps: int) -> Any:
        options = {"maxiter": steps, "maxfun": 4 * steps, "ftol": 1e-12, "gtol": 1e-9}
        return minimize(objective, theta, args=(s,), jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    best = min((descend(theta, 100) for theta in begin), key=lambda one: float(one.fun))
    return np.asarray(descend(best.x, 500).x)


def to_law(theta: Array, s: Scaled) -> ScalingLaw:
    """Undo the centring: A = A' N0^a."""
    a, b = float(theta[3]), float(theta[4])
    return ScalingLaw(math.exp(theta[2]), math.exp(theta[0] + a * s.x0), math.exp(theta[1] + b * s.y0), a, b)


def inflate(residuals: Sequence[float]) -> Array:
    """Centre residuals and multiply them by sqrt(n / (n - 5)), since those of a fit of five numbers are too small."""
    found = np.array(residuals)
    return (found - found.mean()) * math.sqrt(len(found) / (len(found) - 5))


def fit_law(points: Sequence[ScalingPoint], draws: int = 500, seed: int = 0) -> ScalingFit:
    """Fit a law to at least six runs.

    Bootstrap: the design is kept, and the residuals are resampled with replacement, so that every sample has all sizes.
    """
    if len(points) < FEWEST:
        raise QkvError(f"{len(points)} runs: a fit of five numbers needs at least {FEWEST}")
    if any(not (value > 0 and math.isfinite(value)) for point in points for value in point):
        raise QkvError("parameters, tokens and losses must be positive and finite")
    s = scale_points(points)
    begin = starts(s)
    theta = search(s, begin)
    predicted, jacobian = predict_log(theta, s)
    residuals = s.log_loss - predicted
    random, scatter, near = np.random.default_rng(seed), inflate(residuals.tolist()), [theta, *begin[1::16]]
    samples = []
    for _ in range(draws):
        drawn = s._replace(log_loss=predicted + random.choice(scatter, len(points)))
        samples.append(to_law(search(drawn, near), drawn))
    problems = find_problems(samples, s, jacobian)
    return ScalingFit(list(points), to_law(theta, s), samples, residuals.tolist(), problems)


# --- can the exponents be separated?


def find_problems(draws: Sequence[ScalingLaw], s: Scaled, jacobian: Array) -> list[str]:
    """Return why the runs do not determine both exponents."""
    problems = []
    for what, values in (("sizes", s.x), ("amounts of data", s.y)):
        if (count := len(np.unique(values.round(6)))) < 3:
            problems.append(f"only {count} different {what}: a power law with a constant needs three")
    if np.ptp(s.x) > 0 and np.ptp(s.y) > 0 and abs(r := float(np.corrcoef(s.x, s.y)[0, 1])) > CORRELATED:
        problems.append(f"sizes and data change together (correlation of log N and log D {r:.2f})")
    if (condition := condition_number(jacobian)) > ILL_CONDITIONED:
        problems.append(f"the fit is ill-conditioned (condition number {condition:,.0f})")
    for name, exponents in (("a", [law.a for law in draws]), ("b", [law.b for law in draws])):
        low, high = percentile_interval(exponents)
        if low < SMALLEST or high > WIDEST * low or high >= LARGEST_EXPONENT:
            problems.append(f"the 95 % interval of {name} is {low:.2f} to {high:.2f}")
    return problems


def condition_number(jacobian: Array) -> float:
    """Condition number of the Jacobian with columns of length 1: large where some numbers can be exchanged for others."""
    lengths: Any = np.linalg.norm(jacobian, axis=0)
    if (lengths < 1e-12).any():
        return math.inf
    return float(np.linalg.cond(jacobian / lengths))
