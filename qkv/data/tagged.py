"""Files with a word and its tag on each line and a blank line after each sentence: CoNLL-U (Universal Dependencies), CoNLL.

A record is a sentence: its words, and their tags, each joined by tabs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from qkv.data.lines import Lines, about
from qkv.data.sources import Record, ending, strided
from qkv.errors import FileError

MAX_WORDS = 10_000
"""Words of a sentence at the most."""


@dataclass
class Tagged:
    """Sentences of a file. In .conllu the word is column 1 and the tag column 3 (UPOS), of those counted from 0; in any
    other file they are the first and the last column, with tabs or spaces between."""

    path: str | Path
    columns: Sequence[int] = ()
    """Word, tag."""
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.conllu = ending(self.path) == ".conllu"
        self.name = "standard input" if str(self.path) == "-" else str(self.path)
        self.columns = self.columns or ((1, 3) if self.conllu else (0, -1))

    def about(self) -> int:
        return about(self.path) // 15  # words of a sentence, and its blank line

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        numbered, number = enumerate(self.sentences(), 1), 0
        for number, rows in strided(islice(numbered, start, None), stride):
            yield number, ("\t".join(word for word, _ in rows), "\t".join(tag for _, tag in rows))
        if number == 0 and start == 0:
            raise FileError(
                f"{self.name}: no sentence at all; each line has a word and its tag, a blank line ends a sentence"
            )

    def sentences(self) -> Iterator[list[tuple[str, str]]]:
        reader = Lines(self.path, self.skipped)
        rows: list[tuple[str, str]] = []
        for text in reader:
            if text is None:
                raise FileError(f"{self.name}, line {reader.number}: no UTF-8 text; mend it")
            if not text.strip():
                if rows:
                    yield rows
                rows = []
            elif row := self.row(text, reader.number):
                rows.append(row)
            if len(rows) > MAX_WORDS:
                raise FileError(
                    f"{self.name}: {MAX_WORDS:,} words up to line {reader.number} without a blank line; is one missing?"
                )
        if rows:
            yield rows

    def row(self, text: str, number: int) -> tuple[str, str] | None:
        """Word and tag of a line; None for a comment, and for what CoNLL-U puts beside the words (1-2 and 1.1)."""
        if self.conllu and text.startswith("#") or text.startswith("-DOCSTART-"):
            return None
        cells = text.split("\t") if self.conllu or "\t" in text else text.split()
        if self.conllu and not cells[0].isdecimal() and re.fullmatch(r"\d+[-.]\d+", cells[0]):
            return None
        word, tag = self.columns
        needed = 2 if tag < 0 else max(word, tag) + 1
        if len(cells) < needed:
            raise FileError(
                f"{self.name}, line {number}: {len(cells)} of {needed} columns ({text[:40]!r}); a word and its tag are needed"
            )
        if not cells[word].strip() or not cells[tag].strip():
            raise FileError(f"{self.name}, line {number}: the word or its tag is empty ({text[:40]!r})")
        return cells[word].strip(), cells[tag].strip()
