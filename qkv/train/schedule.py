"""Learning-rate schedules: functions of the update and of the share of the run that is done."""

from __future__ import annotations

import math
from collections.abc import Callable

from qkv.config import TrainConfig

LONGEST_WARMUP = 0.1
"""Largest share of a run that the warm-up takes if epochs or a time budget limit the run: it may have few updates."""


def learning_rate(c: TrainConfig, step: int, done: float) -> float:
    """Return the learning rate of update `step` (from 1), before which the share `done` (0 to 1) of the run is done.

    It rises linearly for `warmup` updates to c.learning_rate, its maximum, then decays over the rest of the run. The last update
    has a rate above 0, since before it the run is not done.
    """
    warmup = c.warmup * done / max(step - 1, 1)  # share of the run, as done / (step - 1) is that of an update
    warmup = min(warmup, LONGEST_WARMUP) if c.time_budget or c.epochs else warmup
    after = max(min(done, 1.0) - warmup, 0.0) / (1 - warmup) if warmup < 1 else 0.0  # share of the rest that is done
    return c.learning_rate * min(warmup_share(c, step, done), 1.0) * DECAYS[c.schedule](c, step, after)


def warmup_share(c: TrainConfig, step: int, done: float) -> float:
    """Return the share of the warm-up that is done with update `step`; 1 or more after it."""
    return max(step / max(c.warmup, 1), done / LONGEST_WARMUP if c.time_budget or c.epochs else 0.0)


DECAYS: dict[str, Callable[[TrainConfig, int, float], float]] = {
    "constant": lambda c, step, done: 1.0,
    "linear": lambda c, step, done: 1 - done,
    "stable-decay": lambda c, step, done: min(1.0, (1 - done) / 0.2),  # constant, then linear in the last fifth
    "inverse-sqrt": lambda c, step, done: min(1.0, math.sqrt(max(c.warmup, 1) / step)),  # Vaswani et al. 2017, 5.3
    # Loshchilov and Hutter 2017
    "cosine": lambda c, step, done: c.cosine_floor + (1 - c.cosine_floor) * (1 + math.cos(math.pi * done)) / 2,
}
"""Schedule -> factor after the warm-up; `done` is the share of the rest of the run that is done."""
