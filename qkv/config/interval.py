"""Times and intervals as a recipe and the command line write them: 500 updates, "10%" of a run, "90s", "5m", "1h"."""

from __future__ import annotations

from typing import NamedTuple

from qkv.errors import ConfigError

UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0}
"""Minutes of each unit."""


class Interval(NamedTuple):
    """Interval between two events; exactly one of the three fields is not 0."""

    updates: int = 0
    share: float = 0.0
    """Of the whole run, by updates, or by time where a time budget ends it first."""
    minutes: float = 0.0


def interval(value: int | str) -> Interval:
    """Parse 500 (every 500 updates), "10%" (ten times per run) or "5m" (every 5 minutes); raise ConfigError for anything else."""
    if isinstance(value, int) and 0 < value <= 10**12:
        return Interval(updates=value)
    if isinstance(value, str):
        number = positive(value[:-1])
        if value.endswith("%") and 0 < number <= 100:
            return Interval(share=number / 100)
        if value[-1:] in UNITS and number:
            return Interval(minutes=number * UNITS[value[-1]])
    raise ConfigError(
        f'an interval is a number of updates (500), a share of the run ("10%") or a time ("5m"), given {value!r}'
    )


def minutes(text: str) -> float:
    """Parse 10m, 1h, 90s or a plain number of minutes."""
    value = positive(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else positive(text)
    if not value:
        raise ConfigError(f"--time-budget takes a time such as 10m, 1h or 90s, given {text!r}")
    return value


def positive(text: str) -> float:
    """Parse a number between 0 and a million; return 0 for anything else."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value < 1e6 else 0.0
