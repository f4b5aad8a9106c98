"""WordCounts: the words of a text with their counts, most frequent first; subsampling and negative sampling from the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qkv.errors import QkvError
from qkv.vectors.random import AliasTable, alias_table, to_uint32

MAX_DISTINCT = 10_000_000
"""Maximum number of distinct words while counting; beyond it the rarest are dropped, as in word2vec.c."""


@dataclass(frozen=True)
class WordCounts:
    """Word i is words[i] and occurs counts[i] times."""

    words: list[str]
    counts: np.ndarray
    """(V,) int64, in descending order."""

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def keep(self, sample: float) -> np.ndarray:
        """Return the probability of keeping each word in subsampling as uint32 thresholds (V,): sqrt(t/f) + t/f for relative
        frequency f (as in word2vec.c and gensim; the paper has sqrt(t/f))."""
        if sample == 0:
            return to_uint32(np.ones(len(self.counts)))
        ratio = sample * self.counts.sum() / self.counts
        return to_uint32(np.minimum(np.sqrt(ratio) + ratio, 1.0))

    def noise(self, power: float) -> AliasTable:
        """Return the distribution of negative samples: count^power."""
        return alias_table(self.counts.astype(np.float64) ** power)


def count_words(sentences: Iterable[list[str]], min_count: int, max_words: int, most: int = MAX_DISTINCT) -> WordCounts:
    """Count the words of sentences; keep those with at least `min_count` occurrences, ties in order of first occurrence."""
    found: Counter[str] = Counter()
    least = 1
    for sentence in sentences:
        found.update(sentence)
        while len(found) > most:
            found = Counter({word: count for word, count in found.items() if count > least})
            least += 1
    if not found:
        raise QkvError("the training text has no words: check data.train")
    frequent = [(word, count) for word, count in found.most_common(max_words) if count >= min_count]
    if not frequent:
        word, count = found.most_common(1)[0]
        raise QkvError(
            f"no word occurs {min_count} times; the most frequent, {word!r}, occurs {count} times: lower vectors.min_count, or give "
            "more text"
        )
    if len(frequent) == 1:
        other = f", or set vectors.min_count below {min_count}" if min_count > 1 else ""
        raise QkvError(f"the vocabulary has only one word, {frequent[0][0]!r}: give more text{other}")
    return WordCounts([word for word, _ in frequent], np.array([count for _, count in frequent], dtype=np.int64))
