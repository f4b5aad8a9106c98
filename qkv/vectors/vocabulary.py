"""Vocabulary: the words of a text with their counts, the most frequent first; and what follows from the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qkv.errors import QkvError
from qkv.vectors.random import Alias, alias, chances

MAX_DISTINCT = 10_000_000
"""Different words that are counted; beyond, the rarest so far are forgotten, as word2vec.c does."""


@dataclass(frozen=True)
class Vocabulary:
    """Word i is words[i] and occurs counts[i] times."""

    words: list[str]
    counts: np.ndarray
    """(V,) int64, falling."""

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def keep(self, sample: float) -> np.ndarray:
        """Subsampling: the chance that a word stays where it stands, sqrt(t/f) + t/f for a share f of the text (as word2vec.c
        and gensim have it; the paper has sqrt(t/f)), as 32-bit numbers (V,)."""
        if sample == 0:
            return chances(np.ones(len(self.counts)))
        ratio = sample * self.counts.sum() / self.counts
        return chances(np.minimum(np.sqrt(ratio) + ratio, 1.0))

    def noise(self, power: float) -> Alias:
        """What negative samples are drawn from: count^power."""
        return alias(self.counts.astype(np.float64) ** power)


def counted(sentences: Iterable[list[str]], min_count: int, max_words: int, most: int = MAX_DISTINCT) -> Vocabulary:
    """The words that occur `min_count` times or more; of equally frequent ones, first who came first."""
    found: Counter[str] = Counter()
    least = 1
    for sentence in sentences:
        found.update(sentence)
        while len(found) > most:
            found = Counter({word: count for word, count in found.items() if count > least})
            least += 1
    if not found:
        raise QkvError("there is no word in the text: give data.train some")
    frequent = [(word, count) for word, count in found.most_common(max_words) if count >= min_count]
    if not frequent:
        word, count = found.most_common(1)[0]
        raise QkvError(
            f"no word occurs {min_count} times; the commonest, {word!r}, {count}: set vectors.min_count lower, or give more text"
        )
    if len(frequent) == 1:
        raise QkvError(
            f"the vocabulary has one word, {frequent[0][0]!r}, so there is nothing to tell it from: give more text, or set "
            f"vectors.min_count below {min_count}"
            if min_count > 1
            else f"the text has one word, {frequent[0][0]!r}, and no other: there is nothing to tell it from"
        )
    return Vocabulary([word for word, _ in frequent], np.array([count for _, count in frequent], dtype=np.int64))
