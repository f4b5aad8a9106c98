"""Schedules: the learning rate as a function of the update, and of how much of the run is over."""

from __future__ import annotations

import math

from qkv.config import TrainConfig


def learning_rate(c: TrainConfig, step: int, done: float) -> float:
    """Of update `step` (from 1), when the share `done` (0 to 1) of the run is over.

    It rises linearly for `warmup` updates; with epochs or a time budget, in which fewer may fit, for a tenth of the run at the most.
    """
    return c.learning_rate * min(rising(c, step, done), 1.0) * falling(c, step, min(max(done, 0.0), 1.0))


def rising(c: TrainConfig, step: int, done: float) -> float:
    """The share of the warm-up that is over; 1 or more behind it."""
    return max(step / max(c.warmup, 1), done / 0.1 if c.time_budget or c.epochs else 0.0)


def warming_up(c: TrainConfig, step: int, done: float) -> bool:
    """Whether this update has less than the full learning rate because of the warm-up."""
    return rising(c, step, done) < 1


def falling(c: TrainConfig, step: int, done: float) -> float:
    """The factor after the warm-up."""
    if c.schedule == "inverse-sqrt":  # Vaswani et al. 2017, 5.3
        return min(1.0, math.sqrt(max(c.warmup, 1) / step))
    if c.schedule == "cosine":  # Loshchilov and Hutter 2017, down to a tenth
        return 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
    if c.schedule == "linear":  # straight down to nothing
        return 1 - done
    if c.schedule == "stable-decay":  # full speed, then down in the last fifth
        return min(1.0, (1 - done) / 0.2)
    return 1.0
