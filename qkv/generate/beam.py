"""Beam search of one text: its hypotheses, how they are ranked, and when no better one can follow."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.constraints import Candidate, Phrase, allocate, next_tokens, progress
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.sampling import top_k
from qkv.generate.sequence import Generation, Hypothesis, NextTokens

LENGTH_FORMULAS = {"power": float, "gnmt": lambda length: (5 + length) / 6}
"""Divisor of a sum of log-probabilities, before the exponent. Both grow with the length, as `BeamGroup.is_done` requires."""


@dataclass(frozen=True)
class BeamParams:
    """Settings of beam search."""

    size: int = 4
    """Hypotheses kept per text; 1 = greedy."""
    length_penalty: float = 1.0
    """score = log-probability / length^penalty, the end token counted: above 0 favours long texts, below 0 short ones."""
    n_best: int = 1
    """Number of hypotheses to return."""
    groups: int = 1
    """Diverse beam search (Vijayakumar et al. 2016): split the beam into groups, each avoiding the tokens of those before."""
    diversity: float = 0.5
    """Subtracted from the score of a token for each earlier group that has just generated it."""
    early: bool = False
    """Stop as soon as `size` hypotheses have ended, although a better one may follow."""
    length_formula: str = "power"
    """Base of the length penalty: "power" = length; "gnmt" = (5 + length) / 6 (Wu et al. 2016, Vaswani et al. 2017)."""

    def __post_init__(self) -> None:
        if not (self.size >= 1 and 1 <= self.n_best <= self.size):
            raise QkvError(f"a beam of {self.size} cannot give the {self.n_best} best: choose 1 <= n_best <= beam")
        if self.groups < 1 or self.size % self.groups:
            raise QkvError(f"a beam of {self.size} does not divide into {self.groups} groups")
        if not (abs(self.length_penalty) <= 10 and 0 <= self.diversity < math.inf):
            raise QkvError("length_penalty is a number from -10 to 10, diversity one from 0 upwards")
        if self.length_formula not in LENGTH_FORMULAS:
            raise QkvError(f"length_formula is one of {', '.join(LENGTH_FORMULAS)}, given {self.length_formula!r}")


@lru_cache(100)
def length_divisors(params: BeamParams, max_tokens: int) -> list[float]:
    """Return the divisors of the score: entry n divides the sum of the log-probabilities of n tokens, n = 0 ... `max_tokens`."""
    formula = LENGTH_FORMULAS[params.length_formula]
    return [1.0, *(formula(n) ** params.length_penalty for n in range(1, max_tokens + 1))]


class BeamGroup:
    """The beam of one text, or one of its groups."""

    def __init__(self, params: BeamParams, max_tokens: int, eos_ids: Sequence[int], phrases: Sequence[Phrase] = ()):
        self.params, self.max_tokens, self.eos_ids, self.phrases = params, max_tokens, eos_ids, phrases
        self.divisors = length_divisors(params, max_tokens)
        self.size, self.n_best = params.size // params.groups, -(-params.n_best // params.groups)
        self.live = [Hypothesis([], [])]
        self.origins = [0]
        """For each live hypothesis, the index of the one that it extends, among those before the last step."""
        self.finished: list[Hypothesis] = []
        """The best hypotheses that ended, best first."""
        self.cut: list[Hypothesis] = []
        """Live ones that were stopped at the maximum length."""
        self.n_ended = 0
        """Number of hypotheses that ended, whether or not they are among the best."""

    def advance(self, rows: Sequence[NextTokens], taken: Counter[int]) -> None:
        """Extend the hypotheses by a token.

        The best continuations that do not end stay live, and an end token among the best `size` finishes a hypothesis. `taken`
        counts the tokens of earlier groups.
        """
        before, live, origins = self.live, list[Hypothesis](), list[int]()
        for rank, (cost, origin, token, log_prob) in enumerate(self.rank_candidates(rows, taken)):
            if len(live) == self.size:
                break
            parent = before[origin]
            ids, log_probs = [*parent.ids, token], [*parent.log_probs, log_prob]
            if token not in self.eos_ids:
                live.append(Hypothesis(ids, log_probs, -cost))
                origins.append(origin)
            elif rank < self.size:
                ended = Hypothesis(ids, log_probs, -cost, -cost / self.divisors[len(ids)], True)
                insort(self.finished, ended, key=lambda h: -h.score)
                del self.finished[self.n_best :]
                self.n_ended += 1
        self.live, self.origins = live, origins
        if not live or len(live[0].ids) == self.max_tokens:
            self.cut, self.live = live or before, []
        elif self.is_done():
            self.live = []

    def rank_candidates(self, rows: Sequence[NextTokens], taken: Counter[int]) -> list[Candidate]:
        """Return the continuations of all live hypotheses, best first."""
        candidates = [
            Candidate(-(old.total + score - self.params.diversity * taken.get(token, 0)), origin, token, log_prob)
            for origin, (old, row) in enumerate(zip(self.live, rows, strict=True))
            for token, score, log_prob in zip(row.tokens, row.scores, row.log_probs, strict=True)
            if score > -math.inf
        ]
        if self.phrases:
            return allocate(candidates, [old.ids for old in self.live], self.phrases, self.eos_ids)
        return sorted(candidates)

    def is_done(self) -> bool:
        """Return whether no live hypothesis can become one of the best.

        Its sum of log-probabilities can only fall, so at best it stays. The best length for a negative sum is the longest if the
        length penalty is positive, the shortest if it is negative.
        """
        if self.params.early:
            return self.n_ended >= self.size
        if len(self.finished) < self.n_best:
            return False
        length = self.max_tokens if self.params.length_penalty > 0 else len(self.live[0].ids) + 1
        return self.finished[-1].score >= max(h.total for h in self.live) / self.divisors[length]

    def results(self) -> list[Hypothesis]:
        """Return the best that ended; if there are too few, also those that were cut, ones with more constraints met first."""
        scored = [
            Hypothesis(h.ids, h.log_probs, h.total, h.total / self.divisors[len(h.ids)]) for h in self.cut if h.ids
        ]
        scored.sort(key=lambda h: (-progress(self.phrases, h.ids), -h.score))
        return [*self.finished, *scored][: self.n_best]


class BeamSearch(Generation):
    """Beam search of one text: all groups of its beam."""

    def __init__(self, params: BeamParams, max_tokens: int, eos_ids: Sequence[int], phrases: Sequence[Phrase] = (),
                 processor: LogitsProcessor = NO_PROCESSING, index: int = 0):  # fmt: skip
        super().__init__(max_tokens, eos_ids, processor, index)
        self.params, self.phrases = params, phrases
        self.max_rows = params.size
        self.groups = [BeamGroup(params, max_tokens, eos_ids, phrases) for _ in range(params.groups)]
        self.live = [h for group in self.groups for h in group.live]

    def batch_key(self) -> object:
        """Return the number of candidates per hypothesis: even if all end tokens are among them, `size` others are left."""
        return self.params.size + len(self.eos_ids)

    def select(self, scores: Tensor, log_probs: Tensor, batch: Sequence[Generation]) -> tuple[Tensor, Tensor]:
        """Return the most probable tokens of each row and their scores, (R, count): count = beam size + end tokens."""
        best, tokens = top_k(scores, self.params.size + len(self.eos_ids))  # (R, count)
        return tokens, best

    def advance(self, candidates: Sequence[NextTokens]) -> list[int]:
        """Extend each group by a token; later groups are penalised for the tokens of earlier ones (`taken`)."""
        taken, origins, first = Counter[int](), list[int](), 0
        for group in self.groups:
            count = len(group.live)
            if count:
                group.advance(candidates[first : first + count], taken)
                origins += [first + origin for origin in group.origins] if group.live else []
                if group is not self.groups[-1]:
                    taken.update(h.ids[-1] for h in group.live)
            first += count
        self.live = [h for group in self.groups for h in group.live]
        return origins

    def required_tokens(self) -> Iterator[tuple[int, int]]:
        """Yield (live hypothesis, token) pairs: the tokens that continue a lexical constraint."""
        for index, h in enumerate(self.live if self.phrases else ()):
            for token in sorted(next_tokens(self.phrases, h.ids)):
                yield index, token

    def results(self) -> list[Hypothesis]:
        """Return the `n_best` hypotheses, best first: those that ended, then those that were cut."""
        candidates = [h for group in self.groups for h in group.results()]
        return sorted(candidates, key=lambda h: (not h.ended, -h.score))[: self.params.n_best]
