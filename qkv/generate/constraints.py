"""Lexical constraints: words or phrases that must occur in the generated text, wherever the model prefers them.

Dynamic beam allocation (Post and Vilar 2018): hypotheses that have met equally many constraint tokens share a bank, and
the banks fill the beam in turn. So an improbable step into a constraint does not compete with fluent texts that avoid it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

Phrase = Sequence[int]


class Candidate(NamedTuple):
    """A live hypothesis and a token that could follow it. Sorted, the best comes first."""

    cost: float
    """Minus the sum that the search maximises."""
    origin: int
    """Which of the live hypotheses."""
    token: int
    log_prob: float


def occurs(phrase: Phrase, ids: Sequence[int]) -> bool:
    n = len(phrase)
    return any(list(ids[at : at + n]) == list(phrase) for at in range(len(ids) - n + 1))


def matched_length(phrase: Phrase, ids: Sequence[int]) -> int:
    """Return the length of the longest beginning of the phrase, not all of it, that the text ends with."""
    n = min(len(phrase) - 1, len(ids))
    return next((k for k in range(n, 0, -1) if list(ids[-k:]) == list(phrase[:k])), 0)


def progress(phrases: Sequence[Phrase], ids: Sequence[int]) -> int:
    """Count the constraint tokens in the text: all of each phrase that occurs, and of the others the longest beginning at its end."""
    missing = [phrase for phrase in phrases if not occurs(phrase, ids)]
    return (
        total_length(phrases)
        - total_length(missing)
        + max((matched_length(phrase, ids) for phrase in missing), default=0)
    )


def total_length(phrases: Sequence[Phrase]) -> int:
    return sum(map(len, phrases))


def next_tokens(phrases: Sequence[Phrase], ids: Sequence[int]) -> set[int]:
    """Return the tokens that continue a missing phrase."""
    return {phrase[matched_length(phrase, ids)] for phrase in phrases if not occurs(phrase, ids)}


def allocate(candidates: Sequence[Candidate], texts: Sequence[Sequence[int]], phrases: Sequence[Phrase], eos_ids: Sequence[int]
          ) -> list[Candidate]:  # fmt: skip
    """Order the candidates: the best of each bank, the fullest bank first, then the second
    of each, and so on. A text may end only when everything has occurred."""
    banks: dict[int, list[Candidate]] = {}
    for candidate in sorted(set(candidates)):
        count = progress(phrases, [*texts[candidate.origin], candidate.token])
        if candidate.token not in eos_ids or count == total_length(phrases):
            banks.setdefault(count, []).append(candidate)
    turns = zip_longest(*(banks[count] for count in sorted(banks, reverse=True)))
    return [candidate for turn in turns for candidate in turn if candidate is not None]
