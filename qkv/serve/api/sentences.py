"""Sentences: a translator reads one at a time; what stands between them is kept."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

END = re.compile(
    r"(?<=[.!?…。！？])(?<!\b[A-Z]\.)(?<!\b(?:Mr|Ms|Dr|St|Nr|No)\.)(?<!\bMrs\.)(?<!\bProf\.)[\"”»)'’]*(\s+)"
    r"(?=[\"“«(¿¡‘„]*[^\W_a-zß-öø-ÿ])"
)
"""The space behind a sentence: a mark that ends it, and then no small letter."""
SPACE = re.compile(r"\s+")
"""All of a space at once: what looks for a line break within it would begin anew at each of its characters."""


def split(text: str) -> list[str]:
    """Pieces whose join is the text: sentences at even places, spaces and line breaks between them at odd ones."""
    pieces: list[str] = []
    begin = 0
    for space in SPACE.finditer(text):
        if "\n" in space[0]:
            pieces += [*of_line(text[begin : space.start()]), space[0]]
            begin = space.end()
    return [*pieces, *of_line(text[begin:])]


def of_line(text: str) -> list[str]:
    """The same for what stands between two line breaks."""
    pieces, begin = list[str](), 0
    for found in END.finditer(text):
        pieces += [text[begin : found.start(1)], found[1]]
        begin = found.end(1)
    return [*pieces, text[begin:]]


def worded(piece: str) -> bool:
    """Whether there is more than numbers, marks, signs and spaces; what is no character at all is for the translator to refuse."""
    return any(unicodedata.category(one)[0] in "LMC" for one in piece)


def joined(pieces: Sequence[str], sentences: Sequence[str]) -> str:
    """The text with other sentences in the places of its own."""
    return "".join(sentences[number // 2] if number % 2 == 0 else space for number, space in enumerate(pieces))
