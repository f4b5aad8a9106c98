"""Records of text files as written, so that they can be copied verbatim: rows of a table, lines of parallel files,
sentences of a CoNLL file, documents of plain text; each with the texts it is compared by."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from qkv.data.header import SAMPLE, cells, guess_columns, is_prose, names_of, simple
from qkv.data.lines import MAX_ROW, Lines, lines
from qkv.data.schema import TEXT_NAMES
from qkv.data.sources import JSON_LINES, Parallel, ending, read_csv
from qkv.data.tagged import ConllSource
from qkv.errors import ConfigError, FileError

Column = int | str
KINDS = {".tsv": "tsv", ".csv": "csv", **dict.fromkeys(JSON_LINES, "jsonl"),
         **dict.fromkeys((".conllu", ".conll", ".bio", ".iob", ".iob2"), "conll")}  # fmt: skip
"""Ending -> format; any other ending is plain text."""
TABLES = ("tsv", "csv", "jsonl")
NOUNS = {"conll": "sentences", "lines": "lines", "blank": "documents", "parallel": "lines"}
"""What a record is called; of tables, rows."""


class RawRecord(NamedTuple):
    """One record."""

    written: tuple[str, ...]
    """As it stands in each of the files, with its line end."""
    texts: tuple[str, ...]
    """What it is compared by; records that share one of them belong together."""
    group: str = ""
    """The value of the group column."""
    label: str = ""
    """The value of the label column."""


@dataclass
class RawRecords:
    """The records of one file, or of several in step, as often as they are read.

    Columns are chosen by number or by name; a name needs a header, or JSON objects.
    """

    paths: Sequence[str | Path]
    kind: str = ""
    """tsv, csv, jsonl, conll, lines or blank (documents between blank lines); "" = the ending of the file's name tells."""
    text: Sequence[Column] = ()
    """The columns that rows of a table are compared by; () = those that hold its texts."""
    group: Column | None = None
    label: Column | None = None
    header: bool | None = None
    """Is the first row a header? None = it is recognised."""
    skipped: Counter[str] = field(default_factory=Counter)
    """What the last pass could not read, by reason."""
    names: tuple[str, ...] = ()
    """The columns of a table, where they have names; found at the start."""

    def __post_init__(self) -> None:
        if len(self.paths) > 1:
            if any(ending(path) in KINDS for path in self.paths) or self.kind not in ("", "lines"):
                raise ConfigError(
                    "several files are parallel ones, a sentence per line: split tables and CoNLL files one at a time"
                )
            self.kind = "parallel"
        self.kind = self.kind or KINDS.get(ending(self.paths[0])) or ("blank" if has_blocks(self.paths[0]) else "lines")
        columns = [c for c in (*self.text, self.group, self.label) if c is not None]
        if self.kind not in TABLES and (columns or self.header is not None):
            raise ConfigError(
                f"columns and headers are for tables (.tsv .csv .jsonl): {self.paths[0]} is read as {self.kind}"
            )
        if self.kind in TABLES:
            self.name_columns(columns)

    @property
    def noun(self) -> str:
        return "sentence pairs" if len(self.paths) == 2 else NOUNS.get(self.kind, "rows")

    @property
    def has_header(self) -> bool:
        return bool(self.names) and self.kind != "jsonl"

    def name_columns(self, columns: Sequence[Column]) -> None:
        """Find the header and the columns to compare."""
        path, kind = self.paths[0], f".{self.kind}"
        if self.kind == "tsv" and has_blocks(path):  # a table of tags may have a sentence between blank lines
            raise ConfigError(
                f"{path} has blank lines between its rows, as CoNLL files have between sentences: say --format conll, or "
                "take the blank lines out of the table"
            )
        named = any(isinstance(c, str) for c in columns)
        if self.kind != "jsonl" and (self.header or named and self.header is None):
            self.names = tuple(next(cells(path, kind), []))
        elif self.kind == "jsonl" or self.header is None:
            self.names = names_of(path, kind)
        for column in columns:
            if isinstance(column, str) and column not in self.names:
                known = f"it has {', '.join(self.names)[:300]}"
                unnamed = "its columns have no names, only numbers"
                raise ConfigError(f"{path} has no column {column!r}: {known if self.names else unnamed}")
        self.text = self.text or self.compared()

    def compared(self) -> Sequence[Column]:
        """The columns that hold texts: by their names, otherwise by what is in them, otherwise the first one."""
        if guessed := guess_columns(self.names):
            return [name for column, name in guessed if column.identifies]
        usual = [name for name in self.names if simple(name) in TEXT_NAMES]
        if usual:
            return usual[:1]
        sample = [row for row, _ in islice(self.rows(), SAMPLE)]
        choices: Sequence[Column] = self.names or range(max(map(len, sample), default=1))
        texts = {column: [text for row in sample if (text := self.cell(row, column))] for column in choices}
        found = [column for column, held in texts.items() if is_prose(held) and 2 * len(set(held)) > len(held)]
        return found or list(choices[:1])

    # --- reading

    def head(self) -> str:
        """The header row with its line end; "" without one."""
        return next((written for _, written in self.rows()), "") if self.has_header else ""

    def read(self) -> Iterator[RawRecord]:
        """All records in their order."""
        self.skipped.clear()
        path = self.paths[0]
        if self.kind == "parallel":
            for _, texts in Parallel(self.paths, skipped=self.skipped).read():
                yield RawRecord(tuple(f"{text}\n" for text in texts), texts)
        elif self.kind == "lines":
            for text in Lines(path, self.skipped, longest=MAX_ROW):
                if text is not None and self.full(text):
                    yield RawRecord((f"{text}\n",), (text,))
        elif self.kind in TABLES:
            for row, written in islice(self.rows(), int(self.has_header), None):
                group, label = ("" if c is None else self.cell(row, c) for c in (self.group, self.label))
                yield RawRecord((written,), tuple(self.cell(row, c) for c in self.text), group, label)
        else:
            yield from self.blocks()

    def rows(self) -> Iterator[tuple[Any, str]]:
        """The cells of each row of a table (of JSON, its fields), and the row as it is written."""
        path = self.paths[0]
        if self.kind == "csv":
            yield from (one for one in read_csv(path, self.skipped, MAX_ROW) if self.full("".join(one[0])))
            return
        for text in Lines(path, self.skipped, longest=MAX_ROW):
            if text is None or not self.full(text):
                continue
            row: Any = text.split("\t") if self.kind == "tsv" else fields(text)
            if row is None:
                self.skipped["not a JSON object"] += 1
            else:
                yield row, f"{text}\n"

    def full(self, text: str) -> bool:
        """Is there anything in it? Blank lines are counted."""
        if not text.strip():
            self.skipped["blank"] += 1
        return bool(text.strip())

    def cell(self, row: Any, column: Column) -> str:
        """The text of a column; "" where the row does not have it."""
        if isinstance(row, dict):
            value = row.get(column if isinstance(column, str) else next(islice(row, column, None), ""), "")
        else:
            at = self.names.index(column) if isinstance(column, str) else column
            value = row[at] if at < len(row) else ""
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)

    def blocks(self) -> Iterator[RawRecord]:
        """What stands between blank lines: sentences of a CoNLL file, compared by their words, or documents."""
        path = self.paths[0]
        tagged = ConllSource(path, tags=False)
        held: list[tuple[int, str]] = []
        reader = Lines(path, self.skipped, longest=MAX_ROW)
        size = 0
        for text in reader:
            if text is None and self.kind == "conll":
                raise FileError(f"{path}, line {reader.number}: {next(iter(self.skipped))}; correct it first")
            if text and text.strip():
                held.append((reader.number, text))
                size += len(text)
                if size > MAX_ROW:
                    raise FileError(f"{path}, line {held[0][0]}: more than {MAX_ROW:,} characters without a blank line")
            elif text is not None:
                yield from self.block(held, tagged)
                held, size = [], 0
        yield from self.block(held, tagged)

    def block(self, held: Sequence[tuple[int, str]], tagged: ConllSource) -> Iterator[RawRecord]:
        """One sentence or document, if there is one in these lines."""
        written = "".join(f"{text}\n" for _, text in held) + "\n"
        if self.kind == "blank":
            compared = "\n".join(text for _, text in held)
        else:
            compared = " ".join(row[0] for number, text in held if (row := tagged.row(text, number)))
        if compared:
            yield RawRecord((written,), (compared,))
        elif held:
            self.skipped["without words (comments, -DOCSTART-)"] += 1


def fields(text: str) -> Any:
    """A JSON object or list; None for anything else."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict | list) else None


def has_blocks(path: str | Path) -> bool:
    """Are there blank lines among the first ones that have text?"""
    sample = [bool(text.strip()) for text in islice(lines(path, longest=MAX_ROW), SAMPLE) if text is not None]
    full = [at for at, there in enumerate(sample) if there]
    return bool(full) and not all(sample[full[0] : full[-1]])
