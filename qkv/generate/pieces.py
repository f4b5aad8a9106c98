"""From tokens to text as it is written: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class Decodes(Protocol):
    """What is asked of a tokenizer here."""

    def decode(self, ids: Sequence[int]) -> str: ...


def pieces(tokens: Iterable[int], tokenizer: Decodes, prompt: Sequence[int] = ()) -> Iterator[str]:
    """The text of a growing list of tokens, piece by piece; the pieces joined are the text of the whole list, as it
    stands after the prompt (whose last token decides whether a space comes first).

    A character may take several tokens: while the text ends in the mark of a broken one, nothing is given out. Only the
    last given tokens are decoded again, as context: how a token reads can depend on the one before it.
    """
    context = list(prompt[-1:])
    fresh: list[int] = []
    for token in tokens:
        fresh.append(token)
        piece = _after(context, fresh, tokenizer)
        if piece and not piece.endswith("\ufffd"):
            yield piece
            context, fresh = fresh, []
    if fresh and (rest := _after(context, fresh, tokenizer)):
        yield rest


def _after(context: list[int], fresh: list[int], tokenizer: Decodes) -> str:
    return tokenizer.decode(context + fresh)[len(tokenizer.decode(context)) :]


def until(texts: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """The pieces up to the first stop string, which may span pieces; what could be its beginning is held back."""
    held = ""
    for text in texts:
        held += text
        found = [at for end in stop if (at := held.find(end)) >= 0]
        if found:
            yield held[: min(found)]
            return
        keep = max((n for end in stop for n in range(1, len(end)) if held.endswith(end[:n])), default=0)
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held
