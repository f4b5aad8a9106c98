"""Hypotheses: the texts that a beam holds, how they are ranked, and when no better one can come. No tensors here."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.generate.constraints import Candidate, Phrase, dealt, met, next_tokens

LENGTH_FORMULAS = {"power": float, "gnmt": lambda length: (5 + length) / 6}
"""What a sum of log-probabilities is divided by, before the exponent. Both grow with the length, which `Group.settled` needs."""


@dataclass(frozen=True)
class Beam:
    """How to search."""

    size: int = 4
    """Hypotheses kept per sentence; 1 = greedy."""
    length_penalty: float = 1.0
    """score = log-probability / length^penalty, the end token counted: above 0 favours long texts, below 0 short ones."""
    n_best: int = 1
    """How many texts are wanted."""
    groups: int = 1
    """Diverse beam search (Vijayakumar et al. 2016): the beam in so many groups, each avoiding the tokens of those before."""
    diversity: float = 0.5
    """What a token costs for each earlier group that has just written it."""
    early: bool = False
    """Stop as soon as `size` texts have ended, although a better one may be on its way."""
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

    def score(self, total: float, length: int) -> float:
        return total / LENGTH_FORMULAS[self.length_formula](length) ** self.length_penalty


@dataclass(frozen=True)
class Hypothesis:
    """A text, or the beginning of one."""

    ids: list[int]
    """Tokens, with the end token where it `ended`."""
    log_probs: list[float]
    """What the model gives each of them."""
    total: float = 0.0
    """What the search adds up: log-probabilities, and penalties where there are any."""
    score: float = 0.0
    """total / length^penalty."""
    ended: bool = False

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)


@dataclass(frozen=True)
class Continuations:
    """The tokens that may follow one hypothesis, best first: what the search adds for each, what the model gives it."""

    tokens: list[int]
    gains: list[float]
    log_probs: list[float]


class Group:
    """The beam of one sentence, or one of its groups."""

    def __init__(self, beam: Beam, longest: int, ends: Sequence[int], phrases: Sequence[Phrase] = ()):
        self.beam, self.longest, self.ends, self.phrases = beam, longest, ends, phrases
        self.size, self.wanted = beam.size // beam.groups, -(-beam.n_best // beam.groups)
        self.live = [Hypothesis([], [])]
        self.origins = [0]
        """Which of the hypotheses before each live one goes on from."""
        self.finished: list[Hypothesis] = []
        """The best texts so far that ended, best first."""
        self.cut: list[Hypothesis] = []
        """Live ones that had to stop at the longest length."""
        self.endings = 0

    def advance(self, rows: Sequence[Continuations], taken: Counter[int]) -> None:
        """One token further: of all continuations the best that do not end live on; an end among the best `size` is a
        text. `taken` counts the tokens of earlier groups."""
        before, live, origins = self.live, list[Hypothesis](), list[int]()
        for rank, (cost, origin, token, log_prob) in enumerate(self.candidates(rows, taken)):
            if len(live) == self.size:
                break
            old = before[origin]
            ids, log_probs = [*old.ids, token], [*old.log_probs, log_prob]
            if token not in self.ends:
                live.append(Hypothesis(ids, log_probs, -cost))
                origins.append(origin)
            elif rank < self.size:
                self.finish(Hypothesis(ids, log_probs, -cost, self.beam.score(-cost, len(ids)), True))
        self.live, self.origins = live, origins
        if not live or len(live[0].ids) == self.longest:
            self.cut, self.live = live or before, []
        elif self.settled():
            self.live = []

    def candidates(self, rows: Sequence[Continuations], taken: Counter[int]) -> list[Candidate]:
        """Continuations of all live hypotheses in the order in which they are considered."""
        found = [
            Candidate(-(old.total + gain - self.beam.diversity * taken.get(token, 0)), origin, token, log_prob)
            for origin, (old, row) in enumerate(zip(self.live, rows, strict=True))
            for token, gain, log_prob in zip(row.tokens, row.gains, row.log_probs, strict=True)
            if gain > -math.inf
        ]
        if self.phrases:
            return dealt(found, [old.ids for old in self.live], self.phrases, self.ends)
        return sorted(found)

    def finish(self, text: Hypothesis) -> None:
        insort(self.finished, text, key=lambda h: -h.score)
        del self.finished[self.wanted :]
        self.endings += 1

    def settled(self) -> bool:
        """Whether no live hypothesis can become one of the best. Its sum can only fall, so at best it stays, and the
        length that serves a negative sum best is the longest for a positive penalty, the shortest for a negative one."""
        if self.beam.early:
            return self.endings >= self.size
        if len(self.finished) < self.wanted:
            return False
        length = self.longest if self.beam.length_penalty > 0 else len(self.live[0].ids) + 1
        return self.finished[-1].score >= self.beam.score(max(h.total for h in self.live), length)

    def results(self) -> list[Hypothesis]:
        """The best texts that ended; where they are too few, what was cut off, the most constraints first."""
        scored = [
            Hypothesis(h.ids, h.log_probs, h.total, self.beam.score(h.total, len(h.ids))) for h in self.cut if h.ids
        ]
        scored.sort(key=lambda h: (-met(self.phrases, h.ids), -h.score))
        return [*self.finished, *scored][: self.wanted]


class Sentence:
    """All groups of one sentence."""

    def __init__(self, beam: Beam, longest: int, ends: Sequence[int], phrases: Sequence[Phrase] = ()):
        self.beam, self.phrases = beam, phrases
        self.count = beam.size + len(ends)
        """Tokens that are considered after each hypothesis: if all end tokens are among the best, enough are left."""
        self.groups = [Group(beam, longest, ends, phrases) for _ in range(beam.groups)]

    @property
    def live(self) -> list[Hypothesis]:
        return [h for group in self.groups for h in group.live]

    def advance(self, rows: Sequence[Continuations]) -> list[int]:
        """One token further, `rows` being those of `live`; for each of the new `live`, which of the old it goes on from."""
        taken, origins, first = Counter[int](), list[int](), 0
        for group in self.groups:
            count = len(group.live)
            if count:
                group.advance(rows[first : first + count], taken)
                origins += [first + origin for origin in group.origins] if group.live else []
                if group is not self.groups[-1]:  # a beam without groups has nobody to tell
                    taken.update(h.ids[-1] for h in group.live)
            first += count
        return origins

    def wishes(self) -> Iterator[tuple[int, int]]:
        """(live hypothesis, token) that bring a constraint nearer: considered even where they are not among the best."""
        for index, h in enumerate(self.live if self.phrases else ()):
            for token in sorted(next_tokens(self.phrases, h.ids)):
                yield index, token

    def results(self) -> list[Hypothesis]:
        found = [h for group in self.groups for h in group.results()]
        return sorted(found, key=lambda h: (not h.ended, -h.score))[: self.beam.n_best]
