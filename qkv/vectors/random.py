"""Random numbers that the readable and the fast way draw alike: number n of a sentence is a function of (seed, epoch, place of
the sentence, n). So no draw depends on how many workers there are, or on where a run was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WORD = 2**64
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Of splitmix64 (Steele, Lea and Flood 2014); word2vec.cpp has the same."""


def mixed(x: np.ndarray) -> np.ndarray:
    """64 bits well stirred, uint64 -> uint64; products wrap around."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(FIRST)
    x = (x ^ x >> np.uint64(27)) * np.uint64(SECOND)
    return x ^ x >> np.uint64(31)


def stirred(x: int) -> int:
    """`mixed` of one number."""
    return int(mixed(np.array([x % WORD], dtype=np.uint64))[0])


class Draws:
    """The random numbers of one sentence, 64 bits each."""

    def __init__(self, seed: int, place: int):
        self.state = stirred(seed + STEP * (place + 1))

    def take(self, count: int) -> np.ndarray:
        """The next ones, uint64 (count,)."""
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(STEP)
        found = mixed(np.uint64(self.state) + steps)
        self.state = (self.state + count * STEP) % WORD
        return found


def high(x: np.ndarray) -> np.ndarray:
    """The upper 32 bits."""
    return x >> np.uint64(32)


def low(x: np.ndarray) -> np.ndarray:
    """The lower 32 bits."""
    return x & np.uint64(2**32 - 1)


def below(x: np.ndarray, count: int) -> np.ndarray:
    """A whole number from 0 to count - 1, from the upper 32 bits."""
    return (high(x) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


class Alias(NamedTuple):
    """A distribution that is drawn from in two reads, however many words it has (Walker 1977): a column, then by a coin the
    column's own word or its alias."""

    coins: np.ndarray
    """(V,) uint32: chance of the column's own word, times 2^32."""
    others: np.ndarray
    """(V,) int32: the alias."""

    def draw(self, x: np.ndarray) -> np.ndarray:
        """Words by their chance, one per random number."""
        column = below(x, len(self.coins))
        return np.where(low(x) <= self.coins[column], column, self.others[column])


def alias(weights: Sequence[float] | np.ndarray) -> Alias:
    """Columns of height 1, made by laying what is above it onto columns that are below (Vose 1991)."""
    chance = np.asarray(weights, dtype=np.float64)
    chance = (chance * (len(chance) / chance.sum())).tolist()
    others = list(range(len(chance)))
    small = [i for i, p in enumerate(chance) if p < 1]
    large = [i for i, p in enumerate(chance) if p >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        others[low] = high
        chance[high] -= 1 - chance[low]
        if chance[high] < 1:
            small.append(large.pop())
    for rest in (*small, *large):  # 1 but for rounding
        chance[rest] = 1.0
    return Alias(chances(np.array(chance)), np.array(others, dtype=np.int32))


def chances(p: np.ndarray) -> np.ndarray:
    """Probabilities as what 32 random bits may at most be: uint32."""
    return np.clip(np.round(p * 2**32), 0, 2**32 - 1).astype(np.uint32)
