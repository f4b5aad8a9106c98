"""Splitting texts into sentences, which are translated one by one, and the white space between them, which is kept."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

END = re.compile(
    r"(?<=[.!?…。！？])(?<!\b[A-Z]\.)(?<!\b(?:Mr|Ms|Dr|St|Nr|No)\.)(?<!\bMrs\.)(?<!\bProf\.)[\"”»)'’]*(\s+)"
    r"(?=[\"“«(¿¡‘„]*[^\W_a-zß-öø-ÿ])"
)
"""The space after a sentence: it follows a mark that ends a sentence, and no lower-case letter follows it."""
SPACE = re.compile(r"\s+")
"""Matches all white space at once: searching for a line break within it would take quadratic time."""


def split(text: str) -> list[str]:
    """Split a text into pieces whose join is the text: sentences at even indices, white space between them at odd ones."""
    pieces: list[str] = []
    begin = 0
    for space in SPACE.finditer(text):
        if "\n" in space[0]:
            pieces += [*split_line(text[begin : space.start()]), space[0]]
            begin = space.end()
    return [*pieces, *split_line(text[begin:])]


def split_line(text: str) -> list[str]:
    """Split a text without line breaks."""
    pieces, begin = list[str](), 0
    for found in END.finditer(text):
        pieces += [text[begin : found.start(1)], found[1]]
        begin = found.end(1)
    return [*pieces, text[begin:]]


def has_words(piece: str) -> bool:
    """Return whether there is more than digits, punctuation, symbols and spaces; control characters count, so that the
    translator reports them."""
    return any(unicodedata.category(one)[0] in "LMC" for one in piece)


def join(pieces: Sequence[str], sentences: Sequence[str]) -> str:
    """Join the white space of `pieces` with other sentences."""
    return "".join(sentences[number // 2] if number % 2 == 0 else space for number, space in enumerate(pieces))
