"""Sources: where records come from. A record is a tuple of strings, such as a sentence and its translation.

A source is read from a cursor, a small JSON value, and gives the cursor behind each record, so that reading can go on at
exactly that record in another process. Nothing is held in memory.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Protocol

from qkv.data.grammar import pairs
from qkv.data.lines import MAX_LINE, lines
from qkv.errors import FileError

Record = tuple[str, ...]
csv.field_size_limit(MAX_LINE)


class Source(Protocol):
    """One pass over a corpus."""

    @property
    def skipped(self) -> Counter[str]:
        """What could not be read in the last pass, by reason."""
        ...

    def read(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        """Records from number `start` on, each with the number behind it."""
        ...


@dataclass
class Parallel:
    """Files in step: line n of each is one record (Moses, OPUS, WMT). A single file gives records of one string."""

    paths: Sequence[str | Path]
    skipped: Counter[str] = field(default_factory=Counter)

    def read(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        end = object()
        rows = zip_longest(*(lines(path, self.skipped) for path in self.paths), fillvalue=end)
        number = start
        for number, row in enumerate(islice(rows, start, None), start + 1):
            if end in row:
                short = [str(path) for path, text in zip(self.paths, row, strict=True) if text is end]
                raise FileError(
                    f"{', '.join(short)} ends after line {number - 1}, but {self._longest(row, end)} goes on: parallel "
                    "files need one line for each line of the other; check that both are whole"
                )
            if None not in row:
                yield number, row  # type: ignore[misc]
        if number == 0:
            raise FileError(f"{', '.join(map(str, self.paths))}: no lines at all; give files with text")

    def _longest(self, row: tuple[object, ...], end: object) -> str:
        return ", ".join(str(path) for path, text in zip(self.paths, row, strict=True) if text is not end)


@dataclass
class Table:
    """Columns of a TSV or CSV file, or fields of a JSONL file, chosen by number or name; the ending tells which."""

    path: str | Path
    columns: Sequence[int | str]
    skipped: Counter[str] = field(default_factory=Counter)

    def read(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        number = start
        for number, row in enumerate(islice(self.rows(), start, None), start + 1):
            if row is not None:
                yield number, row
        if number == 0:
            raise FileError(f"{self.path}: no rows at all; give a file with text")

    def rows(self) -> Iterator[Record | None]:
        suffixes = Path(self.path).suffixes or [""]
        kind = suffixes[-2] if suffixes[-1] in (".gz", ".bz2", ".xz", ".zst") and len(suffixes) > 1 else suffixes[-1]
        texts = lines(self.path, self.skipped)
        if kind in (".jsonl", ".json", ".ndjson"):
            return (None if text is None else self.fields(text) for text in texts)
        return self.cells(texts, "," if kind == ".csv" else "\t")

    def cells(self, texts: Iterator[str | None], delimiter: str) -> Iterator[Record | None]:
        """A header line is read where columns are named."""
        present: Iterable[str] = (text + "\n" for text in texts if text is not None)
        if delimiter == ",":
            rows: Iterator[list[str]] = csv.reader(present)
        else:  # TSV has no quotes: a quotation mark is a quotation mark
            rows = (text.rstrip("\n").split("\t") for text in present)
        wanted = list(self.columns)
        if any(isinstance(c, str) for c in wanted):
            header = next(rows, [])
            absent = [c for c in wanted if isinstance(c, str) and c not in header]
            if absent:
                raise FileError(f"{self.path} has no column {absent[0]!r}; its header is {', '.join(header)}")
            wanted = [header.index(c) if isinstance(c, str) else c for c in wanted]
        for row in rows:
            if max(wanted) >= len(row):  # type: ignore[type-var, operator]
                self.skipped["too few columns"] += 1
                yield None
            else:
                yield tuple(row[c] for c in wanted)  # type: ignore[index]

    def fields(self, text: str) -> Record | None:
        try:
            row = json.loads(text)
            return tuple(str(row[c]) for c in self.columns)
        except (ValueError, KeyError, TypeError, IndexError):
            self.skipped["not a JSON object with these fields"] += 1
            return None


@dataclass
class GrammarSource:
    """The embedded grammar: `size` pairs of a split, always the same for a seed."""

    split: str
    size: int
    seed: int = 0
    reverse: bool = False
    """German to English."""
    skipped: Counter[str] = field(default_factory=Counter)

    def read(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        for number, pair in enumerate(islice(pairs(self.split, self.seed), start, self.size), start + 1):
            yield number, (pair.target, pair.source) if self.reverse else (pair.source, pair.target)


@dataclass
class Memory:
    """Records that are already here."""

    records: Sequence[Record]
    skipped: Counter[str] = field(default_factory=Counter)

    def read(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        yield from enumerate(islice(self.records, start, None), start + 1)
