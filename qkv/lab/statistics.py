"""Mean, 95 % interval and paired difference of a few seeds; p-values combined over tests and corrected for their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.stats import t


class Estimate(NamedTuple):
    """A mean and half the width of its 95 % confidence interval (Student's t); infinite for a single value.

    A run that diverged makes the mean infinite: both ends of the interval then are, too.
    """

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        return self.mean if math.isinf(self.mean) else self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean if math.isinf(self.mean) else self.mean + self.half_width

    def text(self, digits: int = 2) -> str:
        """Format as "3.14 ± 0.02"; a single value has no interval."""
        if math.isinf(self.half_width):
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.half_width:.{digits}f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean from the values of several seeds; infinite values have no standard deviation."""
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return Estimate(sum(values) / n, math.inf)  # fmean refuses inf and -inf together, whose mean is nan
    return Estimate(fmean(values), float(t.ppf(0.975, n - 1)) * stdev(values) / math.sqrt(n))


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Estimate the mean of first - second, paired seed by seed."""
    return estimate([a - b for a, b in zip(first, second, strict=True)])


def exceeds(value: Estimate, threshold: float = 0.0) -> bool | None:
    """Whether a mean is above a threshold; None if the threshold is within the interval, as for a single seed."""
    return True if value.low > threshold else False if value.high <= threshold else None  # None also for nan


def below(value: Estimate, threshold: float = 0.0) -> bool | None:
    """Whether a mean is below a threshold; None if the threshold is within the interval."""
    return exceeds(Estimate(-value.mean, value.half_width), -threshold)


def both(first: bool | None, second: bool | None) -> bool | None:
    """Whether two parts of a claim are both shown; False if one is refuted, None if one is open."""
    return None if None in (first, second) and False not in (first, second) else bool(first and second)


def within(value: Estimate, low: float, high: float) -> bool | None:
    """Whether a mean lies between two thresholds; None if one of them is within the interval."""
    return both(exceeds(value, low), below(value, high))


def outside(value: Estimate, low: float, high: float) -> bool | None:
    """Whether a mean lies outside of two thresholds; None if one of them is within the interval."""
    inside = within(value, low, high)
    return None if inside is None else not inside


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Fit y = a + b x by least squares and return b."""
    mx, my = fmean(x), fmean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def combine_p_values(values: Sequence[float]) -> float:
    """Combine the p-values of K tests of one hypothesis, whatever their dependence: K / k times the k-th smallest one,
    k = ceil(K / 2) (Rüger 1978). A single p-value is returned unchanged."""
    k = math.ceil(len(values) / 2)
    return min(1.0, len(values) / k * sorted(values)[k - 1])


def correct_p_values(values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests (Holm 1979): the i-th smallest of m times m - i + 1, never below the one before."""
    found, last = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        last = max(last, min(1.0, (len(values) - rank) * values[at]))
        found[at] = last
    return found
