"""Files with a word and its tag on each line and a blank line after each sentence: CoNLL-U (Universal Dependencies), CoNLL.

A record is a sentence: its words, and their tags, each joined by tabs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from qkv.data.lines import Lines, about
from qkv.data.sources import Record, SequentialCorpus, ending
from qkv.errors import FileError

MAX_WORDS = 10_000
"""Words of a sentence at the most."""
CONLLU = re.compile(r"\d+(?:[-.]\d+)?(?:\t[^\t]*){9}")
"""The line of a word in CoNLL-U: its number and nine columns more."""


@dataclass
class ConllSource(SequentialCorpus):
    """Sentences of a file. In .conllu the word is column 1 and the tag column 3 (UPOS), of those counted from 0; in any
    other file they are the first and the last column, with tabs or spaces between. Standard input, which has no name, is
    what its first word's line looks like."""

    path: str | Path
    columns: Sequence[int] = ()
    """Word, tag."""
    tags: bool = True
    """False: a line needs none, and the word is given in its place."""

    def __post_init__(self) -> None:
        self.conllu = ending(self.path) == ".conllu"
        self.name = "standard input" if str(self.path) == "-" else str(self.path)
        layout = "each line has a word and its tag, a blank line ends a sentence"
        self.if_empty = f"{self.name}: no sentence at all; {layout}"

    def places(self) -> Sequence[int]:
        """The columns of word and tag."""
        word, tag = self.columns or ((1, 3) if self.conllu else (0, -1))
        return word, tag if self.tags else word

    def about(self) -> int:
        return about(self.path) // 15  # words of a sentence, and its blank line

    def every(self) -> Iterator[Record]:
        return (tuple("\t".join(column) for column in zip(*rows, strict=True)) for rows in self.sentences())

    def sentences(self) -> Iterator[list[tuple[str, str]]]:
        rows: list[tuple[str, str]] = []
        for number, text in self.lines():
            if text is None:
                raise FileError(f"{self.name}, line {number}: no UTF-8 text; correct it")
            if not text.strip():
                if rows:
                    yield rows
                rows = []
            elif row := self.row(text, number):
                rows.append(row)
            if len(rows) > MAX_WORDS:
                raise FileError(
                    f"{self.name}: {MAX_WORDS:,} words up to line {number} without a blank line; is one missing?"
                )
        if rows:
            yield rows

    def lines(self) -> Iterator[tuple[int, str | None]]:
        """Each line and its number; from those up to the first word of standard input it is known what they are."""
        reader = Lines(self.path, self.skipped)
        numbered = ((reader.number, text) for text in reader)
        if str(self.path) == "-":
            begin = list(islice(until_word(numbered), MAX_WORDS))
            self.conllu = any(CONLLU.fullmatch(text or "") for _, text in begin)
            yield from begin
        yield from numbered

    def row(self, text: str, number: int) -> tuple[str, str] | None:
        """Word and tag of a line; None for a comment, and for what CoNLL-U puts beside the words (1-2 and 1.1)."""
        if self.conllu and text.startswith("#") or text.startswith("-DOCSTART-"):
            return None
        cells = text.split("\t") if self.conllu or "\t" in text else text.split()
        if self.conllu and not cells[0].isdecimal() and re.fullmatch(r"\d+[-.]\d+", cells[0]):
            return None
        word, tag = self.places()
        needed = 2 if tag < 0 else max(word, tag) + 1
        if len(cells) < needed:
            raise FileError(
                f"{self.name}, line {number}: {len(cells)} of {needed} columns ({text[:40]!r}); a word and its tag are needed"
            )
        if not cells[word].strip() or not cells[tag].strip():
            raise FileError(f"{self.name}, line {number}: the word or its tag is empty ({text[:40]!r})")
        return cells[word].strip(), cells[tag].strip()


def until_word(numbered: Iterator[tuple[int, str | None]]) -> Iterator[tuple[int, str | None]]:
    """The lines up to and with the first one that is neither blank nor a comment."""
    for number, text in numbered:
        yield number, text
        if text is not None and text.strip() and not text.startswith("#"):
            return
