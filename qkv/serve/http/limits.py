"""Limits on requests: every parameter of every request has one, with a default."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field

from qkv.config.strict import Strict, override, validate
from qkv.serve.http.errors import ApiError

T = TypeVar("T")
MOST_ITEMS = 100_000
MOST_CHARACTERS = 10_000_000
"""Bounds of the schema, which no `--limit` can exceed; the default limits below are far tighter."""
Many = Annotated[list[T], Field(max_length=MOST_ITEMS, fail_fast=True)]
"""A list in a request. Only its first invalid entry is reported, not each of a million."""
BoundedStr = Annotated[str, Field(max_length=MOST_CHARACTERS)]
"""A text in a request."""


class Limits(Strict):
    """Limits that `--limit NAME=VALUE` sets."""

    body: int = Field(default=1_000_000, gt=0)
    """Bytes of a request body."""
    nesting: int = Field(default=32, gt=0)
    """Nesting depth of lists and objects in a JSON body."""
    characters: int = Field(default=10_000, gt=0, le=MOST_CHARACTERS)
    """Characters of one text."""
    texts: int = Field(default=64, gt=0, le=MOST_ITEMS)
    """Texts of one request: inputs, completions (prompts times `n`), or messages of a chat."""
    sentences: int = Field(default=512, gt=0)
    """Sentences to translate in one request, all texts together."""
    alternatives: int = Field(default=8, ge=0)
    """Additional translations of a text, and additional choices of a completion."""
    beam: int = Field(default=12, gt=0)
    """Beam size."""
    tokens: int = Field(default=1024, gt=0)
    """Generated tokens per text."""
    top: int = Field(default=20, ge=0)
    """Most likely tokens, words or classes to return per prediction."""
    looked: int = Field(default=128, gt=0)
    """Tokens of a text to inspect."""
    stops: int = Field(default=8, ge=0)
    """Stop strings of a completion."""
    stop_characters: int = Field(default=200, gt=0)
    """Characters of a stop string."""
    pixels: int = Field(default=4_000_000, gt=0)
    """Pixels of an image."""
    seconds: float = Field(default=60.0, gt=0)
    """Time from the arrival of a request to the end of its response."""
    waiting: int = Field(default=512, gt=0)
    """Texts queued for one model in all worker processes together; further requests get 503 with Retry-After."""
    rows: int = Field(default=128, gt=0)
    """Rows of a running batch; a text takes as many rows as its beam has hypotheses."""
    batch_tokens: int = Field(default=16_384, gt=0)
    """Tokens of a running batch, prompts and output; a single text may be longer."""
    cached_tokens: int = Field(default=4096, ge=0)
    """Prompt tokens of one model whose keys and values are kept for later prompts with the same prefix; 0 = none."""
    connections: int = Field(default=1024, gt=0)
    """Concurrent requests in all worker processes together; each process may hold twice as many open connections."""

    def check(self, name: str, given: int, what: str) -> None:
        """Raise an error if `given` exceeds the limit `name`."""
        if given > getattr(self, name):
            raise ApiError(400, f"{given:,} {what}, but this server takes at most {getattr(self, name):,}", param=name)

    def check_texts(self, texts: Sequence[str], what: str = "texts") -> None:
        """Raise an error if there are too many texts, or one of them is too long."""
        self.check("texts", len(texts), what)
        self.check("characters", max(map(len, texts), default=0), "characters in a text")

    def check_inputs(self, given: Any, what: str = "texts") -> list[Any]:
        """Return one or several texts or lists of token ids as a list, after checking their number and lengths."""
        one = isinstance(given, str) or not given or isinstance(given[0], int)
        items: list[Any] = [given or ""] if one else list(given)
        self.check("texts", len(items), what)
        self.check("characters", max(map(len, items)), "characters or tokens in a text")
        return items


def parse_limits(settings: Sequence[str]) -> Limits:
    """Read `--limit NAME=VALUE` options; a limit that is not given keeps its default."""
    limits: Limits = validate(Limits, override({}, list(settings)), "--limit")
    return limits


class SharedCount:
    """A count to which several worker processes contribute, each in a cell of its own.

    Adding first and then comparing the sum of all cells with the limit needs no lock: two processes that add at the same
    moment may both be rejected, but they never exceed the limit together. A process that dies leaves only its own cells
    behind, which the supervisor resets.
    """

    def __init__(self, cells: MutableSequence[int] | None = None, cell: int = 0):
        self.cells, self.cell = [0] if cells is None else cells, cell

    def set(self, value: int) -> None:
        self.cells[self.cell] = value

    def total(self) -> int:
        return sum(self.cells)

    def try_set(self, value: int, limit: int) -> bool:
        """Set the own cell to `value` unless the total then exceeds the limit; return whether it was set."""
        before = self.cells[self.cell]
        self.cells[self.cell] = value
        if sum(self.cells) <= limit:
            return True
        self.cells[self.cell] = before
        return False
