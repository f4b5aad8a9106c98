"""From tokens to text as it is written: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class Decodes(Protocol):
    """What is asked of a tokenizer here."""

    def decode(self, ids: Sequence[int]) -> str: ...


class Pieces:
    """The text of a growing list of tokens: what each of them adds, as it stands after the prompt (whose last token decides
    whether a space comes first). The pieces joined are the text of the whole list.

    A character may take several tokens: while the text ends in the mark of a broken one, nothing is given out. Only the
    last given tokens are decoded again, as context: how a token reads can depend on the one before it.
    """

    def __init__(self, tokenizer: Decodes, prompt: Sequence[int] = ()):
        self.tokenizer, self.context = tokenizer, list(prompt[-1:])
        self.fresh: list[int] = []

    def add(self, token: int) -> str:
        """What can be given out now."""
        self.fresh.append(token)
        piece = self.after(self.fresh)
        if not piece or piece.endswith("\ufffd"):
            return ""
        self.context, self.fresh = self.fresh, []
        return piece

    def rest(self) -> str:
        """What is left when no token follows."""
        return self.after(self.fresh) if self.fresh else ""

    def after(self, tokens: list[int]) -> str:
        """How tokens read behind those that were given out."""
        decode = self.tokenizer.decode
        return decode(self.context + tokens)[len(decode(self.context)) :]


def pieces(tokens: Iterable[int], tokenizer: Decodes, prompt: Sequence[int] = ()) -> Iterator[str]:
    """What each token adds to the text that follows the prompt."""
    text = Pieces(tokenizer, prompt)
    for token in tokens:
        if piece := text.add(token):
            yield piece
    if rest := text.rest():
        yield rest


class Until:
    """A text up to the first stop string, which may span pieces; what could be its beginning is held back."""

    def __init__(self, stop: Sequence[str]):
        self.stop, self.held, self.found = stop, "", False

    def add(self, text: str) -> str:
        """What can be given out now; `found` says that the text ends with it."""
        self.held += text
        places = [at for end in self.stop if (at := self.held.find(end)) >= 0]
        self.found = bool(places)
        keep = max((self.begun(end) for end in self.stop), default=0)
        cut = min(places) if places else len(self.held) - keep
        given, self.held = self.held[:cut], "" if places else self.held[cut:]
        return given

    def begun(self, end: str) -> int:
        """How many of the last characters could be the beginning of this stop string."""
        longest = min(len(end) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(end[:n])), 0)


def until(texts: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """The pieces up to the first stop string."""
    text = Until(stop)
    for piece in texts:
        if given := text.add(piece):
            yield given
        if text.found:
            return
    if text.held:
        yield text.held
