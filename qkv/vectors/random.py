"""Counter-based random numbers, the same in Python and C++: number n of a sentence is a function of (seed, epoch, position of the
sentence, n). They depend neither on the number of workers nor on where a run was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WORD = 2**64
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of splitmix64 (Steele, Lea and Flood 2014); word2vec.cpp has the same."""


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Apply splitmix64's mixing function, uint64 -> uint64; products wrap around."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(FIRST)
    x = (x ^ x >> np.uint64(27)) * np.uint64(SECOND)
    return x ^ x >> np.uint64(31)


def splitmix64_int(x: int) -> int:
    """Apply `splitmix64` to one integer."""
    return int(splitmix64(np.array([x % WORD], dtype=np.uint64))[0])


class RandomStream:
    """The random numbers of one sentence, 64 bits each."""

    def __init__(self, seed: int, place: int):
        self.state = splitmix64_int(seed + STEP * (place + 1))

    def take(self, count: int) -> np.ndarray:
        """Return the next numbers, uint64 (count,)."""
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(STEP)
        found = splitmix64(np.uint64(self.state) + steps)
        self.state = (self.state + count * STEP) % WORD
        return found


def high_bits(x: np.ndarray) -> np.ndarray:
    """Return the upper 32 bits."""
    return x >> np.uint64(32)


def low_bits(x: np.ndarray) -> np.ndarray:
    """Return the lower 32 bits."""
    return x & np.uint64(2**32 - 1)


def to_range(x: np.ndarray, count: int) -> np.ndarray:
    """Map random numbers to integers from 0 to count - 1 by their upper 32 bits."""
    return (high_bits(x) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


class AliasTable(NamedTuple):
    """The alias method (Walker 1977): draw from a distribution of any size in constant time, first a column, then the column's own
    word or its alias."""

    coins: np.ndarray
    """(V,) uint32: probability of the column's own word, times 2^32."""
    others: np.ndarray
    """(V,) int32: the alias."""

    def draw(self, x: np.ndarray) -> np.ndarray:
        """Draw one word per random number."""
        column = to_range(x, len(self.coins))
        return np.where(low_bits(x) <= self.coins[column], column, self.others[column])


def alias_table(weights: Sequence[float] | np.ndarray) -> AliasTable:
    """Build an alias table: columns of height 1, in which excess of one word fills up the column of another (Vose 1991)."""
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
    return AliasTable(to_uint32(np.array(chance)), np.array(others, dtype=np.int32))


def to_uint32(p: np.ndarray) -> np.ndarray:
    """Convert probabilities to thresholds for 32 random bits."""
    return np.clip(np.round(p * 2**32), 0, 2**32 - 1).astype(np.uint32)
