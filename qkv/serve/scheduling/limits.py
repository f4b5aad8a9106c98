"""Limits: how much anybody may ask of a server. Every knob of every request has one, and each has a default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field

from qkv.config.strict import Strict, checked, override
from qkv.serve.http.errors import Refusal

T = TypeVar("T")
MOST_ITEMS = 100_000
MOST_CHARACTERS = 10_000_000
"""Bounds of the schema, which no `--limit` can exceed; the limits below are far tighter."""
Many = Annotated[list[T], Field(max_length=MOST_ITEMS, fail_fast=True)]
"""A list in a request: only its first wrong entry is reported, not each of a million."""
BoundedStr = Annotated[str, Field(max_length=MOST_CHARACTERS)]
"""A text in a request."""


class Limits(Strict):
    """What `--limit NAME=VALUE` sets."""

    body: int = Field(default=1_000_000, gt=0)
    """Bytes of a request."""
    nesting: int = Field(default=32, gt=0)
    """Lists and objects within each other in a request's JSON."""
    characters: int = Field(default=10_000, gt=0, le=MOST_CHARACTERS)
    """Characters of one text."""
    texts: int = Field(default=64, gt=0, le=MOST_ITEMS)
    """Texts that one request has read or, with all choices of a completion, written; messages of a chat."""
    sentences: int = Field(default=512, gt=0)
    """Sentences, in all texts of a request, that are translated."""
    alternatives: int = Field(default=8, ge=0)
    """Further translations of a text, and further choices of a completion."""
    beam: int = Field(default=12, gt=0)
    """Hypotheses of a search."""
    tokens: int = Field(default=1024, gt=0)
    """Tokens that are written for one text."""
    top: int = Field(default=20, ge=0)
    """Likeliest tokens, words or classes that are told beside the chosen one."""
    looked: int = Field(default=128, gt=0)
    """Tokens of a text that is looked into."""
    stops: int = Field(default=8, ge=0)
    """Stop strings of a completion."""
    stop_characters: int = Field(default=200, gt=0)
    """Characters of a stop string."""
    pixels: int = Field(default=4_000_000, gt=0)
    """Pixels of a picture."""
    seconds: float = Field(default=60.0, gt=0)
    """Time from the arrival of a request to the end of its answer."""
    waiting: int = Field(default=512, gt=0)
    """Texts that wait for one model; further requests get 503 with Retry-After."""
    rows: int = Field(default=128, gt=0)
    """Rows of a running batch, of which a text takes as many as it has hypotheses."""
    batch_tokens: int = Field(default=16_384, gt=0)
    """Tokens, read and written, of a running batch; a text alone may be longer."""
    connections: int = Field(default=1024, gt=0)
    """Requests at once; twice as many connections may be open."""

    def at_most(self, name: str, given: int, what: str) -> None:
        """Refuse what is over the limit of that name."""
        if given > getattr(self, name):
            raise Refusal(400, f"{given:,} {what}, but this server takes at most {getattr(self, name):,}", param=name)

    def texts_of(self, texts: Sequence[str], what: str = "texts") -> None:
        """Refuse too many texts, or one that is too long."""
        self.at_most("texts", len(texts), what)
        self.at_most("characters", max(map(len, texts), default=0), "characters in a text")

    def several(self, given: Any, what: str = "texts") -> list[Any]:
        """One or several texts or lists of token ids, as a list; too many, or one that is too long, are refused."""
        one = isinstance(given, str) or not given or isinstance(given[0], int)
        found: list[Any] = [given or ""] if one else list(given)
        self.at_most("texts", len(found), what)
        self.at_most("characters", max(map(len, found)), "characters or tokens in a text")
        return found


def limits_of(settings: Sequence[str]) -> Limits:
    """Defaults, changed by NAME=VALUE."""
    limits: Limits = checked(Limits, override({}, list(settings)), "--limit")
    return limits
