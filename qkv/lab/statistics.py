"""Mean, 95 % interval and paired difference of a few seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.stats import t


class Estimate(NamedTuple):
    """A mean and half the width of its 95 % confidence interval (Student's t); infinite for a single value."""

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def text(self, digits: int = 2) -> str:
        """Format as "3.14 ± 0.02"; a single value has no interval."""
        if math.isinf(self.half_width):
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.half_width:.{digits}f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean from the values of several seeds."""
    n = len(values)
    if n < 2:
        return Estimate(fmean(values), math.inf)
    return Estimate(fmean(values), float(t.ppf(0.975, n - 1)) * stdev(values) / math.sqrt(n))


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Estimate the mean of first - second, paired seed by seed."""
    return estimate([a - b for a, b in zip(first, second, strict=True)])


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Fit y = a + b x by least squares and return b."""
    mx, my = fmean(x), fmean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
