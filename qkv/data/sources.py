"""Sources: where records come from. A record is a tuple of strings, such as a sentence and its translation.

A source is read from a cursor, a small JSON value, and gives the cursor behind each record, so that reading can go on at
exactly that record in another process. Nothing is held in memory.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

from qkv.data.casual import casual
from qkv.data.grammar import sentences
from qkv.data.lines import COMPRESSED, MAX_LINE, MAX_ROW, RUN, Lines, about, lines
from qkv.errors import FileError

Record = tuple[Any, ...]
"""Strings; of images, the image and a string."""
csv.field_size_limit(MAX_ROW)


JSON_LINES = (".jsonl", ".json", ".ndjson")
TABLES = (".tsv", ".csv", *JSON_LINES)
"""Endings of tables."""


class PartialRecord(tuple[str, ...]):
    """A record whose document is too long for one: it goes on in the next record."""


class Source(Protocol):
    """One pass over a corpus."""

    @property
    def skipped(self) -> Counter[str]:
        """What could not be read in the last pass, by reason."""
        ...

    def read(self, start: int = 0) -> Iterator[tuple[int, Record]]:
        """Records from number `start` on, each with the number behind it."""
        ...


class Corpus(Source, Protocol):
    """A source that a sample can be taken from."""

    def about(self) -> int:
        """Estimated number of records; 0 if unknown."""
        ...

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        """With a `stride` of n, RUN records of every n * RUN, so that they are spread over the whole corpus."""
        ...


@dataclass
class DerivedCorpus:
    """Some of the records of another corpus; which, says `read`."""

    source: Corpus

    @property
    def skipped(self) -> Counter[str]:
        return self.source.skipped

    def about(self) -> int:
        return self.source.about()


@dataclass
class CountingCorpus:
    """A corpus that counts what it cannot read."""

    skipped: Counter[str] = field(default_factory=Counter, kw_only=True)


@dataclass
class SequentialCorpus(CountingCorpus):
    """A corpus of which `every` record is made in order; those before the start are passed over."""

    if_empty = ""
    """The error where there is no record at all; "" = none."""

    def every(self) -> Iterator[Record]:
        raise NotImplementedError

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        number = start
        for number, record in sample_runs(islice(enumerate(self.every(), 1), start, None), stride):
            yield number, record
        if number == 0 and self.if_empty:
            raise FileError(self.if_empty)


@dataclass
class Parallel(CountingCorpus):
    """Files in step: line n of each is one record (Moses, OPUS, WMT). A single file gives records of one string."""

    paths: Sequence[str | Path]

    def about(self) -> int:
        return about(self.paths[0])

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        readers = [Lines(path, self.skipped, start, stride) for path in self.paths]
        end = object()
        for row in zip_longest(*readers, fillvalue=end):
            if end in row:
                break
            if None not in row:
                yield readers[0].number, row  # type: ignore[misc]
        numbers = [reader.number for reader in readers]
        if min(numbers) < max(numbers):
            short, long = (self.paths[numbers.index(extreme(numbers))] for extreme in (min, max))
            raise FileError(
                f"{short} ends after line {min(numbers)}, but {long} goes on: parallel files need one line for each line "
                "of the other; check that both are whole"
            )
        if max(numbers) == 0:
            raise FileError(f"{', '.join(map(str, self.paths))}: no lines at all; give files with text")


@dataclass
class TableSource(CountingCorpus):
    """Columns of a TSV or CSV file, or fields of a JSONL file, chosen by number or name; the ending tells which.

    A row of TSV or JSONL is a line; a row of CSV may go over several, where a line end stands in quotes.
    """

    path: str | Path
    columns: Sequence[int | str]
    kind: str = ""
    """.tsv, .csv or .jsonl, where the ending does not tell."""
    longest: int = MAX_LINE
    """Bytes of a line at the most."""

    def about(self) -> int:
        return about(self.path)

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        number, good = 0, False
        for number, row in self.rows(start, stride):
            if row is not None:
                good = True
                yield number, row
        if number == 0 and start == 0:
            raise FileError(f"{self.path}: no rows at all; give a file with text")
        if not good and start == 0:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.items())
            raise FileError(f"{self.path}: no row can be read ({reasons}); are its columns {list(self.columns)}?")

    def rows(self, start: int, stride: int) -> Iterator[tuple[int, Record | None]]:
        """Each row, or None for one without the columns, and the number behind it."""
        kind = self.kind or ending(self.path)
        if kind == ".csv":
            rows = (row for row, _ in read_csv(self.path, self.skipped, self.longest))
            places = self.places(next(rows, []) if self.named() else [])
            yield from sample_runs(islice(enumerate((self.cells(row, places) for row in rows), 1), start, None), stride)
            return
        json_lines = kind in JSON_LINES
        head = 1 if self.named() and not json_lines else 0  # lines before the first row
        first = next(lines(self.path), None) if head else None
        places = [] if json_lines else self.places((first or "").split("\t"))
        reader = Lines(self.path, self.skipped, start + head, stride, longest=self.longest)
        for text in reader:  # TSV has no quotes: a quotation mark is a quotation mark
            row = None if text is None else self.fields(text) if json_lines else self.cells(text.split("\t"), places)
            yield reader.number - head, row

    def named(self) -> bool:
        """Are columns named, so that the first line is a header?"""
        return any(isinstance(c, str) for c in self.columns)

    def places(self, header: list[str]) -> list[int]:
        """The columns as numbers; a header is there where some are named."""
        absent = [c for c in self.columns if isinstance(c, str) and c not in header]
        if absent:
            found = " ".join(", ".join(header).split())[:200]
            raise FileError(f"{self.path} has no column {absent[0]!r}; its header is {found}")
        return [header.index(c) if isinstance(c, str) else c for c in self.columns]

    def cells(self, row: list[str], places: list[int]) -> Record | None:
        if max(places) >= len(row):
            self.skipped["too few columns"] += 1
            return None
        return tuple(row[c] for c in places)

    def fields(self, text: str) -> Record | None:
        try:
            row = json.loads(text)
            if isinstance(row, dict) and not self.named():
                raise FileError(f"the rows of {self.path} have names ({', '.join(row)[:200]}): say which with columns")
            found = tuple(row[c] if isinstance(row[c], str) else json.dumps(row[c]) for c in self.columns)
            "".join(found).encode()  # half a pair of surrogates is no text
            if any(row[c] is None for c in self.columns):
                raise ValueError
            return found
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            self.skipped["not a JSON object with these fields"] += 1
            return None


def read_csv(path: str | Path, skipped: Counter[str], longest: int) -> Iterator[tuple[list[str], str]]:
    """The cells of each row of a CSV file, and the row as it is written, with a line end. `longest`: characters of a row at
    the most; lines that are no text are counted in `skipped`."""
    texts = Lines(path, skipped, longest=longest)
    taken: list[str] = []

    def feed() -> Iterator[str]:
        # a line that no file has (Lines leaves out what has NUL in it) comes last: in quotes that are open it is swallowed too
        for text in chain(texts, ["\0"]):
            if text is not None:
                taken.append(text + "\n")
                yield taken[-1]

    rows = csv.reader(feed())
    while True:
        first = texts.number + 1
        try:
            row = next(rows)
            if row == ["\0"]:
                return
            if sum(map(len, row)) > longest:
                raise csv.Error(f"a row of more than {longest:,} characters")
            if row and "\0" in row[-1]:
                raise csv.Error("a quotation that does not end")
        except csv.Error as error:
            raise FileError(
                f"{path}, the row that begins in line {first}: {error}; is a quotation mark left open there?"
            ) from None
        yield row, "".join(taken)
        taken.clear()


def ending(path: str | Path) -> str:
    """The ending of a file's name, below that of its compression: .tsv of rows.tsv.gz."""
    path = Path(path)
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


Numbered = TypeVar("Numbered")


def sample_runs(rows: Iterator[Numbered], stride: int) -> Iterator[Numbered]:
    """RUN of every stride * RUN rows."""
    return (row for at, row in enumerate(rows) if stride == 1 or at // RUN % stride == 0)


@dataclass
class GeneratedCorpus(SequentialCorpus):
    """`size` records of a split that are made when they are read, always the same for a seed."""

    split: str
    size: int
    seed: int = field(default=0, kw_only=True)

    def about(self) -> int:
        return self.size


@dataclass
class GrammarSource(GeneratedCorpus):
    """Sentence pairs of the embedded grammar."""

    reverse: bool = False
    """German to English."""
    casual: bool = False
    """Half of the pairs as people type them: see qkv.data.casual."""

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        numbered = enumerate(sentences(self.seed).read(self.split, start, self.size), start + 1)
        for number, (english, german) in sample_runs(numbered, stride):
            if self.casual:
                yield number, casual(english, german, number, self.reverse)
            else:
                yield number, (german, english) if self.reverse else (english, german)


@dataclass
class InMemorySource(SequentialCorpus):
    """Records that are in memory."""

    records: Sequence[Record]

    def about(self) -> int:
        return len(self.records)

    def every(self) -> Iterator[Record]:
        return iter(self.records)


class Listing(InMemorySource):
    """Records (path, label) of files that are opened later."""
