"""LogitsProcessor: forbid, force and penalise tokens by editing their scores, in greedy decoding, sampling and beam search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.errors import QkvError

TokenRows = Sequence[Sequence[int]]
"""The tokens generated so far in each row, without the prompt or the start token."""


@dataclass(frozen=True)
class LogitsProcessor:
    """Edits of the next token's scores. A forbidden token gets the score -infinity; the others keep theirs unless there are
    penalties, which act on logits in greedy decoding and sampling, on log-probabilities in beam search, as in Hugging Face.
    """

    eos_ids: tuple[int, ...] = ()
    """End tokens."""
    suppressed: tuple[int, ...] = ()
    """Tokens that are never generated (padding)."""
    min_length: int = 0
    """Shortest text in tokens, its end token counted."""
    no_repeat_ngram: int = 0
    """Forbid repeated n-grams of this size; 0 = allow them. Unlike in Hugging Face, end tokens are never blocked: chat
    templates put them into the prompt."""
    repetition_penalty: float = 1.0
    """CTRL's penalty (Keskar et al. 2019): a token that occurred before, in the prompt too, has a positive score divided by it
    and a negative one multiplied; 1 = none."""
    presence_penalty: float = 0.0
    """OpenAI's: subtracted from the score of every token generated before, the prompt not counted; 0 = none."""
    frequency_penalty: float = 0.0
    """OpenAI's: subtracted once for each time that the token was generated; 0 = none."""
    prompts: TokenRows = ()
    """The prompt of each text, counted by repetition_penalty and no_repeat_ngram."""
    prefixes: TokenRows = ()
    """Tokens that each text must begin with, whatever else is forbidden."""
    forced_first: tuple[int, ...] = ()
    """Tokens that every text begins with, before its prefix; their log-probability is 0."""
    forced_end_at: Sequence[int] = ()
    """Length at which each text ends with the first end token, of log-probability 0; empty = it is cut there."""

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < math.inf:
            raise QkvError(f"repetition_penalty is a number above 0 (1 = none), given {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise QkvError(f"{name} is a number from -2 to 2 (0 = none), given {getattr(self, name)}")
        if self.no_repeat_ngram < 0 or self.min_length < 0:
            raise QkvError("no_repeat_ngram and min_length are 0 (none) or counts of tokens")

    def for_prompt(self, prompt: Sequence[int], eos_ids: Sequence[int]) -> LogitsProcessor:
        """Return the same settings for one text that follows this prompt."""
        return self if self.is_identity else replace(self, eos_ids=tuple(eos_ids), prompts=[prompt])

    @property
    def is_identity(self) -> bool:
        return not (self.suppressed or self.uses_history)

    @property
    def uses_history(self) -> bool:
        """Whether the edits depend on the tokens generated so far."""
        forcing = self.forced_first or self.forced_end_at or any(self.prefixes)
        return bool(self.min_length > 1 or self.no_repeat_ngram or self.has_penalties or forcing)

    @property
    def has_penalties(self) -> bool:
        """Whether scores of allowed tokens change."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def process(self, scores: Tensor, generated: TokenRows, texts: Sequence[int]) -> None:
        """Edit logits or log-probabilities (R, V) in place; row r continues `generated[r]`, which belongs to text `texts[r]`."""
        if not self.uses_history:
            scores[:, self.suppressed] = -math.inf
            return
        ends = scores[:, self.eos_ids].clone()  # (R, ends)
        rows, tokens, free = self.forced_tokens(generated, texts)
        forced = scores[rows, tokens].masked_fill(
            torch.tensor(free, dtype=torch.bool, device=scores.device), 0
        )  # (rows,)
        history = generated
        if self.prompts:
            history = [[*self.prompts[text], *ids] for text, ids in zip(texts, generated, strict=True)]
        if self.has_penalties:
            self.penalise(scores, generated, history)
        if self.no_repeat_ngram:
            repeats = (
                (row, id_) for row, ids in enumerate(history) for id_ in repeated_tokens(ids, self.no_repeat_ngram)
            )
            forbid(scores, [pair for pair in repeats if pair[1] not in self.eos_ids])
        scores[:, self.suppressed] = -math.inf
        short = [row for row, ids in enumerate(generated) if len(ids) + 1 < self.min_length]
        forbid(scores, [(row, end) for row in short for end in self.eos_ids])
        if self.no_repeat_ngram or len(self.suppressed) + len(self.eos_ids) >= scores.size(1):
            stuck = (scores.amax(-1) == -math.inf).nonzero().flatten()  # nothing is left: the text may end
            scores[stuck[:, None], self.eos_ids] = ends[stuck]
        scores[rows] = -math.inf
        scores[rows, tokens] = forced

    def penalise(self, scores: Tensor, generated: TokenRows, history: TokenRows) -> None:
        """Lower the scores (R, V) of tokens that occurred; `history` is the prompt and `generated`."""
        occurred = [(row, token) for row, ids in enumerate(history) for token in set(ids)]
        if self.repetition_penalty != 1 and occurred:
            rows, tokens = torch.tensor(occurred, device=scores.device).T
            own, factor = scores[rows, tokens], self.repetition_penalty
            scores[rows, tokens] = torch.where(own > 0, own / factor, own * factor)
        counts = [(row, token, n) for row, ids in enumerate(generated) for token, n in Counter(ids).items()]
        if (self.presence_penalty or self.frequency_penalty) and counts:
            rows, tokens, times = torch.tensor(counts, device=scores.device).T
            scores[rows, tokens] -= self.presence_penalty + self.frequency_penalty * times

    def forced_tokens(self, generated: TokenRows, texts: Sequence[int]) -> tuple[list[int], list[int], list[bool]]:
        """Return the rows with a forced token, the token of each, and whether its log-probability is 0."""
        forced: list[tuple[int, int, bool]] = []
        if self.forced_first or self.forced_end_at or self.prefixes:
            for row, (ids, text) in enumerate(zip(generated, texts, strict=True)):
                first = [*self.forced_first, *(self.prefixes[text] if self.prefixes else ())]
                if len(ids) < len(first):
                    forced.append((row, first[len(ids)], len(ids) < len(self.forced_first)))
                elif self.forced_end_at and len(ids) + 1 == self.forced_end_at[text]:
                    forced.append((row, self.eos_ids[0], True))
        return [row for row, _, _ in forced], [token for _, token, _ in forced], [free for _, _, free in forced]


NO_PROCESSING = LogitsProcessor()


def repeated_tokens(ids: Sequence[int], n: int) -> set[int]:
    """Return the tokens that would complete an n-gram for the second time."""
    if n == 1:
        return set(ids)
    ids = list(ids)
    last = ids[len(ids) - n + 1 :]
    # the first token is compared alone: most places differ there, and a prompt can be long
    return {ids[at + n - 1] for at in range(len(ids) - n + 1) if ids[at] == last[0] and ids[at : at + n - 1] == last}


def forbid(scores: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Set the scores at these (row, token) pairs to -infinity."""
    if pairs:
        scores[tuple(torch.tensor(pairs, device=scores.device).T)] = -math.inf
