"""Detokenizer: tokens to text while it is generated, in whole characters and up to a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class Decodes(Protocol):
    """The part of a tokenizer that is used here."""

    def decode(self, ids: Sequence[int]) -> str: ...


class Detokenizer:
    """The text that each token adds behind the prompt, whose last token decides whether a space comes first. All pieces
    joined are the text of the whole list.

    A character may take several tokens: while the text ends in a replacement character, nothing is returned. Only the
    last tokens are decoded again, as context: how a token is spelled can depend on the one before it.
    """

    def __init__(self, tokenizer: Decodes, prompt: Sequence[int] = ()):
        self.tokenizer, self.context = tokenizer, list(prompt[-1:])
        self.fresh: list[int] = []

    def add(self, token: int) -> str:
        """Return the text that is complete now."""
        self.fresh.append(token)
        piece = self.after(self.fresh)
        if not piece or piece.endswith("\ufffd"):
            return ""
        self.context, self.fresh = self.fresh, []
        return piece

    def rest(self) -> str:
        """Return the text of the remaining tokens when no other follows."""
        return self.after(self.fresh) if self.fresh else ""

    def after(self, tokens: list[int]) -> str:
        """Decode tokens that follow those returned before."""
        decode = self.tokenizer.decode
        return decode(self.context + tokens)[len(decode(self.context)) :]


def detokenize(tokens: Iterable[int], tokenizer: Decodes, prompt: Sequence[int] = ()) -> Iterator[str]:
    """Yield the text that each token adds behind the prompt."""
    text = Detokenizer(tokenizer, prompt)
    for token in tokens:
        if piece := text.add(token):
            yield piece
    if rest := text.rest():
        yield rest


class StopStrings:
    """Cut a text at the first stop string, which may span pieces; what could be its beginning is held back."""

    def __init__(self, stop: Sequence[str]):
        self.stop, self.held, self.found = stop, "", False

    def add(self, text: str) -> str:
        """Return the text that is certain now; `found` says that it ends there."""
        self.held += text
        # the one that is complete first, wherever the pieces break
        places = [(at + len(end), at) for end in self.stop if (at := self.held.find(end)) >= 0]
        self.found = bool(places)
        keep = max((self.matched_length(end) for end in self.stop), default=0)
        cut = min(places)[1] if places else len(self.held) - keep
        given, self.held = self.held[:cut], "" if places else self.held[cut:]
        return given

    def matched_length(self, end: str) -> int:
        """Count the last characters that could be the beginning of this stop string."""
        longest = min(len(end) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(end[:n])), 0)


def cut_at_stop(texts: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """Yield the pieces up to the first stop string."""
    text = StopStrings(stop)
    for piece in texts:
        if given := text.add(piece):
            yield given
        if text.found:
            return
    if text.held:
        yield text.held
