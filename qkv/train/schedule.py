"""Schedules: the learning rate as a function of the update, and of how much of the run is over."""

from __future__ import annotations

import math

from qkv.config import TrainConfig

LONGEST_WARMUP = 0.1
"""Share of a run with epochs or a time budget that the warm-up takes at the most: few updates may fit in it."""


def learning_rate(c: TrainConfig, step: int, done: float) -> float:
    """Of update `step` (from 1), before which the share `done` (0 to 1) of the run was over.

    It rises linearly for `warmup` updates to c.learning_rate, the largest, then falls over the rest of the run; the last
    update still has more than 0, for before it the run is not over.
    """
    return c.learning_rate * min(rising(c, step, done), 1.0) * falling(c, step, since_warmup(c, step, done))


def rising(c: TrainConfig, step: int, done: float) -> float:
    """The share of the warm-up that is over; 1 or more behind it."""
    return max(step / max(c.warmup, 1), done / LONGEST_WARMUP if c.time_budget or c.epochs else 0.0)


def since_warmup(c: TrainConfig, step: int, done: float) -> float:
    """The share that is over of the run without its warm-up, which is `warmup` updates of the average length so far."""
    ended = c.warmup * done / max(step - 1, 1)  # with steps alone: warmup / steps
    ended = min(ended, LONGEST_WARMUP) if c.time_budget or c.epochs else ended
    return max(min(done, 1.0) - ended, 0.0) / (1 - ended) if ended < 1 else 0.0


def warming_up(c: TrainConfig, step: int, done: float) -> bool:
    """Whether this update has less than the full learning rate because of the warm-up."""
    return rising(c, step, done) < 1


def falling(c: TrainConfig, step: int, done: float) -> float:
    """The factor after the warm-up, when the share `done` of the updates after it is over."""
    if c.schedule == "inverse-sqrt":  # Vaswani et al. 2017, 5.3
        return min(1.0, math.sqrt(max(c.warmup, 1) / step))
    if c.schedule == "cosine":  # Loshchilov and Hutter 2017
        return c.cosine_floor + (1 - c.cosine_floor) * (1 + math.cos(math.pi * done)) / 2
    if c.schedule == "linear":  # straight down to nothing
        return 1 - done
    if c.schedule == "stable-decay":  # full speed, then down in the last fifth
        return min(1.0, (1 - done) / 0.2)
    return 1.0
