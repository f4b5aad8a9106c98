"""Rules: what may be written next, as edits of the log-probabilities that greedy, sampling and beam search all obey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError

Written = Sequence[Sequence[int]]
"""What each row has written so far, without the prompt or the start token."""


@dataclass(frozen=True)
class Rules:
    """Which tokens are forbidden, made dearer or the only ones allowed. What is forbidden gets log-probability -infinity;
    the others keep theirs, so the score of a text is still what the model gives it."""

    ends: tuple[int, ...] = ()
    """End tokens."""
    never: tuple[int, ...] = ()
    """Tokens that are never written (padding)."""
    min_length: int = 0
    """Shortest text in tokens, its end token counted."""
    no_repeat_ngram: int = 0
    """No n tokens in a row occur twice; 0 = they may."""
    repetition_penalty: float = 1.0
    """The log-probability of a token that occurred before is multiplied by it (after Keskar et al. 2019)."""
    prefixes: Written = ()
    """How the text of each sentence must begin; it passes before all other rules."""
    opening: tuple[int, ...] = ()
    """Tokens that every text begins with, before its prefix; they cost nothing."""
    limits: Sequence[int] = ()
    """So many tokens long, the text of each sentence ends with the first end token, which costs nothing; none = it is cut."""

    def __post_init__(self) -> None:
        if not 1 <= self.repetition_penalty < math.inf:
            raise QkvError(f"repetition_penalty is 1 (none) or more, given {self.repetition_penalty}")
        if self.no_repeat_ngram < 0 or self.min_length < 0:
            raise QkvError("no_repeat_ngram and min_length are 0 (none) or counts of tokens")

    @property
    def idle(self) -> bool:
        return not (self.never or self.depends)

    @property
    def depends(self) -> bool:
        """Whether it matters what was written so far."""
        forcing = self.opening or self.limits or any(self.prefixes)
        return bool(self.min_length > 1 or self.no_repeat_ngram or self.reweigh or forcing)

    @property
    def reweigh(self) -> bool:
        """Whether what is allowed loses its own log-probability."""
        return self.repetition_penalty != 1

    def apply(self, scores: Tensor, written: Written, sentences: Sequence[int]) -> None:
        """Edit log-probabilities (R, V) in place; row r goes on from `written[r]`, a text of sentence `sentences[r]`."""
        if not self.depends:
            scores[:, self.never] = -math.inf
            return
        ends = scores[:, self.ends].clone()  # (R, ends)
        rows, tokens, free = self.forced(written, sentences)
        forced = scores[rows, tokens].masked_fill(
            torch.tensor(free, dtype=torch.bool, device=scores.device), 0
        )  # (rows,)
        if self.reweigh:
            pairs = [(row, token) for row, ids in enumerate(written) for token in set(ids)]
            scale(scores, pairs, self.repetition_penalty)
        if self.no_repeat_ngram:
            repeats = ((row, token) for row, ids in enumerate(written) for token in closing(ids, self.no_repeat_ngram))
            forbid(scores, [pair for pair in repeats if pair[1] not in self.ends])
        scores[:, self.never] = -math.inf
        short = [row for row, ids in enumerate(written) if len(ids) + 1 < self.min_length]
        forbid(scores, [(row, end) for row in short for end in self.ends])
        if self.no_repeat_ngram or len(self.never) + len(self.ends) >= scores.size(1):
            stuck = (scores.amax(-1) == -math.inf).nonzero().flatten()  # nothing is left: the text may end
            scores[stuck[:, None], self.ends] = ends[stuck]
        scores[rows] = -math.inf
        scores[rows, tokens] = forced

    def forced(self, written: Written, sentences: Sequence[int]) -> tuple[list[int], list[int], list[bool]]:
        """Rows that have no choice, the token that each must write, and whether it costs nothing."""
        found: list[tuple[int, int, bool]] = []
        if self.opening or self.limits or self.prefixes:
            for row, (ids, sentence) in enumerate(zip(written, sentences, strict=True)):
                begun = [*self.opening, *(self.prefixes[sentence] if self.prefixes else ())]
                if len(ids) < len(begun):
                    found.append((row, begun[len(ids)], len(ids) < len(self.opening)))
                elif self.limits and len(ids) + 1 == self.limits[sentence]:
                    found.append((row, self.ends[0], True))
        return [row for row, _, _ in found], [token for _, token, _ in found], [free for _, _, free in found]


def closing(ids: Sequence[int], n: int) -> set[int]:
    """The tokens that would write an n-gram for the second time."""
    last = list(ids[len(ids) - n + 1 :])
    return {ids[at + n - 1] for at in range(len(ids) - n + 1) if list(ids[at : at + n - 1]) == last}


def forbid(scores: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """-infinity at these (row, token)."""
    if pairs:
        scores[tuple(torch.tensor(pairs, device=scores.device).T)] = -math.inf


def scale(scores: Tensor, pairs: Sequence[tuple[int, int]], factor: float) -> None:
    if pairs:
        where = tuple(torch.tensor(pairs, device=scores.device).T)
        scores[where] = scores[where] * factor
