"""Sentences: a translator reads one at a time; what stands between them is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence

END = re.compile(
    r"(?<=[.!?…。！？])(?<!\b[A-Z]\.)(?<!\b(?:Mr|Ms|Dr|St|Nr|No)\.)(?<!\bMrs\.)(?<!\bProf\.)[\"”»)'’]*(\s+)"
    r"(?=[\"“«(¿¡‘„]*[^\W_a-zß-öø-ÿ])"
)
"""The space behind a sentence: a mark that ends it, and then no small letter."""


def split(text: str) -> list[str]:
    """Pieces whose join is the text: sentences at even places, spaces and line breaks between them at odd ones."""
    pieces: list[str] = []
    for number, part in enumerate(re.split(r"(\s*\n\s*)", text)):
        if number % 2:
            pieces.append(part)
            continue
        start = 0
        for found in END.finditer(part):
            pieces += [part[start : found.start(1)], found[1]]
            start = found.end(1)
        pieces.append(part[start:])
    return pieces


def joined(pieces: Sequence[str], sentences: Sequence[str]) -> str:
    """The text with other sentences in the places of its own."""
    return "".join(sentences[number // 2] if number % 2 == 0 else space for number, space in enumerate(pieces))
