"""Text files as documents: one per file, per paragraph (between blank lines) or per line; of any length, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from qkv.data.lines import check_whole, open_binary
from qkv.data.sources import PartialRecord, Record, SequentialCorpus
from qkv.errors import FileError

PIECE = 100_000
"""Characters from which on a document is cut, at the next line end."""


@dataclass
class Documents(SequentialCorpus):
    """Records (text,). A document of a whole file keeps every character; one that is longer than PIECE comes in several
    records, all but the last a `PartialRecord`, which joined are the document. Blank documents (of one record) are skipped and counted."""

    paths: Sequence[str | Path]
    by: str = "file"
    """file, blank or lines: what a document is."""
    shares: Sequence[tuple[float, float]] = ()
    """Only the part of all the characters between these shares; the second is a share of the first, and so on."""
    sizes: list[int] = field(default_factory=list)
    """Characters of each file, if shares are requested; counted in the first pass."""

    def __post_init__(self) -> None:
        lost = "no text in this share of it; make it larger" if self.shares else "no text at all; give files with text"
        self.if_empty = f"{', '.join(map(str, self.paths))}: {lost}"

    def about(self) -> int:
        sizes = [Path(path).stat().st_size for path in self.paths if Path(path).is_file()]
        return sum(size // (PIECE if self.by == "file" else 100) + 1 for size in sizes)  # a line has about 100 bytes

    def every(self) -> Iterator[Record]:
        return (record for path, first, last in self.parts() for record in self.records(path, first, last))

    def records(self, path: str | Path, first: int, last: int | None) -> Iterator[Record]:
        """The documents of a file, or of its characters from `first` to `last`."""
        goes_on = False
        with open_text(path) as file:
            for text, ends in cut(within(file, first, last), self.by):
                if "\0" in text:
                    raise FileError(f"{path} is no text file: it has NUL characters")
                text = text if self.by == "file" or not ends else text.rstrip("\r\n")
                if text.strip() or goes_on or not ends:
                    yield (text,) if ends else PartialRecord((text,))
                else:
                    self.skipped["an empty document"] += 1
                goes_on = not ends

    def parts(self) -> Iterator[tuple[str | Path, int, int | None]]:
        """Each file, and which of its characters are wanted."""
        if not self.shares:
            yield from ((path, 0, None) for path in self.paths)
            return
        self.sizes = self.sizes or [characters(path) for path in self.paths]
        a, b = 0, sum(self.sizes)
        for low, high in self.shares:
            a, b = a + int(low * (b - a)), a + int(high * (b - a))
        behind = 0
        for path, size in zip(self.paths, self.sizes, strict=True):
            first, last = (min(max(bound - behind, 0), size) for bound in (a, b))
            if first < last:
                yield path, first, last
            behind += size


def cut(lines: Iterator[str], by: str) -> Iterator[tuple[str, bool]]:
    """Lines -> (text, whether the document ends with it)."""
    held: list[str] = []
    size = 0
    for line in lines:
        blank = by == "blank" and not line.strip()
        if held and (blank or size >= PIECE):
            yield "".join(held), blank
            held, size = [], 0
        if blank:
            continue
        held.append(line)
        size += len(line)
        if by == "lines" and line.endswith("\n"):
            yield "".join(held), True
            held, size = [], 0
    if held:
        yield "".join(held), True


def within(file: TextIO, first: int, last: int | None) -> Iterator[str]:
    """The lines of a file, at most PIECE characters at once, from one character to another."""
    while first > 0 and (passed := len(file.read(min(first, PIECE)))):
        first -= passed
        last = None if last is None else last - passed
    while line := file.readline(PIECE if last is None else min(PIECE, last)):
        yield line
        last = None if last is None else last - len(line)


def characters(path: str | Path) -> int:
    """How many a file has."""
    with open_text(path) as file:
        return sum(map(len, iter(partial(file.read, PIECE), "")))


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """A text file, its line ends as they are, without a byte order mark; what is wrong with it is said in words."""
    try:
        with check_whole(path), io.TextIOWrapper(open_binary(path), encoding="utf-8-sig", newline="\n") as file:
            yield file
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text ({error.reason}); convert it first") from None
