"""Rules: what may be written next, as edits of the scores that greedy, sampling and beam search all obey."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.errors import QkvError

Written = Sequence[Sequence[int]]
"""What each row has written so far, without the prompt or the start token."""


@dataclass(frozen=True)
class Rules:
    """Which tokens are forbidden, penalised or the only ones allowed. A forbidden token gets the score -infinity; the others
    keep theirs unless there are penalties. Greedy and sampling pass logits, beam search log-probabilities, as in Hugging Face.
    """

    ends: tuple[int, ...] = ()
    """End tokens."""
    never: tuple[int, ...] = ()
    """Tokens that are never written (padding)."""
    min_length: int = 0
    """Shortest text in tokens, its end token counted."""
    no_repeat_ngram: int = 0
    """Forbid repeated n-grams of this size; 0 = allow them. A text may always end: unlike Hugging Face's, end tokens that the
    prompt holds (as chat templates put them) are not blocked."""
    repetition_penalty: float = 1.0
    """CTRL's penalty (Keskar et al. 2019): a token that occurred before, in the prompt too, has a positive score divided by it
    and a negative one multiplied; 1 = none."""
    presence_penalty: float = 0.0
    """OpenAI's: subtracted from the score of every token that was written, the prompt not counted; 0 = none."""
    frequency_penalty: float = 0.0
    """OpenAI's: subtracted once for each time that the token was written; 0 = none."""
    prompts: Written = ()
    """The tokens before the text of each sentence: repetition_penalty and no_repeat_ngram count them, where they are given."""
    prefixes: Written = ()
    """How the text of each sentence must begin; it passes before all other rules."""
    opening: tuple[int, ...] = ()
    """Tokens that every text begins with, before its prefix; they cost nothing."""
    limits: Sequence[int] = ()
    """So many tokens long, the text of each sentence ends with the first end token, which costs nothing; none = it is cut."""

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < math.inf:
            raise QkvError(f"repetition_penalty is a number above 0 (1 = none), given {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise QkvError(f"{name} is a number from -2 to 2 (0 = none), given {getattr(self, name)}")
        if self.no_repeat_ngram < 0 or self.min_length < 0:
            raise QkvError("no_repeat_ngram and min_length are 0 (none) or counts of tokens")

    def after(self, prompt: Sequence[int], ends: Sequence[int]) -> Rules:
        """The same rules for one text after this prompt, by a model with these end tokens."""
        return self if self.idle else replace(self, ends=tuple(ends), prompts=[prompt])

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
        """Whether what is allowed loses its own score."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def apply(self, scores: Tensor, written: Written, sentences: Sequence[int]) -> None:
        """Edit logits or log-probabilities (R, V) in place; row r goes on from `written[r]`, a text of sentence `sentences[r]`."""
        if not self.depends:
            scores[:, self.never] = -math.inf
            return
        ends = scores[:, self.ends].clone()  # (R, ends)
        rows, tokens, free = self.forced(written, sentences)
        forced = scores[rows, tokens].masked_fill(
            torch.tensor(free, dtype=torch.bool, device=scores.device), 0
        )  # (rows,)
        seen = written  # with the prompt before it, where that counts
        if self.prompts:
            seen = [[*self.prompts[sentence], *ids] for sentence, ids in zip(sentences, written, strict=True)]
        if self.reweigh:
            self.penalise(scores, written, seen)
        if self.no_repeat_ngram:
            repeats = ((row, token) for row, ids in enumerate(seen) for token in closing(ids, self.no_repeat_ngram))
            forbid(scores, [pair for pair in repeats if pair[1] not in self.ends])
        scores[:, self.never] = -math.inf
        short = [row for row, ids in enumerate(written) if len(ids) + 1 < self.min_length]
        forbid(scores, [(row, end) for row in short for end in self.ends])
        if self.no_repeat_ngram or len(self.never) + len(self.ends) >= scores.size(1):
            stuck = (scores.amax(-1) == -math.inf).nonzero().flatten()  # nothing is left: the text may end
            scores[stuck[:, None], self.ends] = ends[stuck]
        scores[rows] = -math.inf
        scores[rows, tokens] = forced

    def penalise(self, scores: Tensor, written: Written, seen: Written) -> None:
        """Lower the scores (R, V) of tokens that occurred: `seen` is `written` with the prompt before it."""
        occurred = [(row, token) for row, ids in enumerate(seen) for token in set(ids)]
        if self.repetition_penalty != 1 and occurred:
            rows, tokens = torch.tensor(occurred, device=scores.device).T
            own, factor = scores[rows, tokens], self.repetition_penalty
            scores[rows, tokens] = torch.where(own > 0, own / factor, own * factor)
        counts = [(row, token, n) for row, ids in enumerate(written) for token, n in Counter(ids).items()]
        if (self.presence_penalty or self.frequency_penalty) and counts:
            rows, tokens, times = torch.tensor(counts, device=scores.device).T
            scores[rows, tokens] -= self.presence_penalty + self.frequency_penalty * times

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
    if n == 1:
        return set(ids)
    ids = list(ids)
    last = ids[len(ids) - n + 1 :]
    # the first token is compared alone: most places differ there, and a prompt can be long
    return {ids[at + n - 1] for at in range(len(ids) - n + 1) if ids[at] == last[0] and ids[at : at + n - 1] == last}


def forbid(scores: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """-infinity at these (row, token)."""
    if pairs:
        scores[tuple(torch.tensor(pairs, device=scores.device).T)] = -math.inf
