"""Open the corpus of a configuration: files, tables, named data sets or embedded texts. The schema of a task defines which columns
its records have, and how they are read from files and rows."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from qkv.config import CorpusConfig, DataConfig
from qkv.data import datasets, textsets
from qkv.data.dataset_files import Mapped
from qkv.data.distinct import Distinct
from qkv.data.documents import Documents
from qkv.data.grammar_tasks import GrammarRecords, plain_sentences
from qkv.data.header import describe_header, find_columns
from qkv.data.mixture import Mixture
from qkv.data.schema import PLAIN, TRANSLATIONS, Schema
from qkv.data.sources import Corpus, DerivedCorpus, GrammarSource, InMemorySource, Record, Source, TableSource
from qkv.data.stdlib import StandardLibrary
from qkv.errors import ConfigError


def corpus(c: CorpusConfig, data: DataConfig, split: str, schema: Schema) -> Corpus:
    """The corpus that a configuration names; the embedded ones and data sets have a `split` of their own."""
    if schema.pictures:
        raise ConfigError(f"{schema.task} reads images, and this is a corpus of texts")
    found = take_share(whole_corpus(c, data, split, schema), c.share)
    if not c.swap:
        return found
    if not schema.columns[0].partners:
        raise ConfigError(f"swap is for pairs of texts with a label, not for {schema.task}: leave it out")
    return Mapped(found, swap_texts)


def training(data: DataConfig, schema: Schema) -> Source:
    """All training corpora as one."""
    found: list[Source] = [corpus(c, data, "train", schema) for c in data.train]
    found = found if data.duplicates else [Distinct(one) for one in found]  # type: ignore[arg-type]
    return found[0] if len(found) == 1 else Mixture(found, [c.weight for c in data.train])


def whole_corpus(c: CorpusConfig, data: DataConfig, split: str, schema: Schema) -> Corpus:
    """All of a corpus, whatever its share."""
    task = schema.task
    if c.grammar is not None:
        if schema.columns == TRANSLATIONS:
            return GrammarSource(split, c.grammar, reverse=data.source == "de", casual=c.casual)
        if c.casual:
            raise ConfigError(f"casual is for pairs of sentences of the grammar, not for {task}: leave it out")
        if schema.from_grammar is None:
            raise ConfigError(f"the embedded grammar has no records for {task}: give files, a table or a data set")
        return GrammarRecords(split, c.grammar, schema.from_grammar)
    if (c.text is not None or c.stdlib) and not schema.plain:
        kind = "text is one document" if c.text is not None else "the standard library has texts alone"
        raise ConfigError(f"{kind}, for language models and pre-training, not for {task}")
    if c.text is not None:
        return InMemorySource([(c.text,)])
    if c.stdlib:
        return StandardLibrary(split)
    if c.dataset is not None:
        path = Path(data.root) / (c.path or "") if data.root or c.path else None
        if path is not None and c.path is None and c.dataset.partition("/")[0] in textsets.FOLDERS and single(path):
            raise ConfigError(
                f"data.root = {data.root!r} is one file, and would be training, valid and test set alike: give the folder"
            )
        return open_dataset(c.dataset, data, c.split or split, path, schema)
    if c.table is not None:
        return open_table(Path(data.root) / c.table, c, data, schema)
    if not c.files:
        raise ConfigError(f"this corpus has images, and {task} reads texts: {schema.accepts}")
    return open_files([Path(data.root) / name for name in c.files], c, schema)


def single(path: Path) -> bool:
    """A file that holds no others."""
    return path.is_file() and not zipfile.is_zipfile(path)


def open_dataset(name: str, data: DataConfig, split: str, path: Path | None, schema: Schema | None = None) -> Corpus:
    """A public data set: pairs of languages, or single texts; with a schema, its records must have those columns."""
    if name.partition("/")[0] in textsets.TEXTSETS:
        return textsets.textset(name, split, path, schema)
    if schema is not None and not schema.plain and schema.columns != TRANSLATIONS:
        raise ConfigError(
            f"no data set {name!r} for {schema.task}: there are {textsets.NAMES}; for translation {datasets.NAMES}"
        )
    try:
        pairs = datasets.dataset(name, data.source, data.target, split, path)
    except ConfigError as error:
        known = f"; for other tasks {textsets.NAMES}" if str(error).startswith("no data set") else ""
        raise ConfigError(f"{error}{known}") from None
    return Mapped(pairs, lambda record: (record[0],)) if schema is not None and schema.plain else pairs


def open_files(paths: list[Path], c: CorpusConfig, schema: Schema) -> Corpus:
    """Text files, read as the schema says."""
    if c.documents is not None and not schema.plain:
        raise ConfigError(
            f"documents says how files of plain text are cut, which {schema.task} does not read: leave it out"
        )
    if schema.read_files is None or schema.n_files not in (None, len(paths)):
        raise ConfigError(f"{schema.task} cannot read {', '.join(map(str, paths))}: {schema.accepts}")
    return schema.read_files(paths, c)


def open_table(path: Path, c: CorpusConfig, data: DataConfig, schema: Schema) -> Corpus:
    """Columns of a table: the given ones, otherwise those that its header names, otherwise the first ones."""
    least, most = schema.least, schema.most
    columns = c.columns or find_columns(path, schema, data.source, data.target) or tuple(range(least))
    if not least <= len(columns) <= most:
        wanted = f"{least}" if least == most else f"{least} or {most}"
        raise ConfigError(f"a table for {schema.task} has {wanted} columns, given {list(columns)}")
    rows = TableSource(path, columns, longest=schema.longest)
    return rows if schema.from_row is None else Mapped(rows, schema.from_row, schema.reason)


def describe_headers(data: DataConfig, schema: Schema) -> list[str]:
    """Describe which columns are read of all tables of a run; of those with the same header in one line."""
    paths_of: dict[tuple[str, str], list[str]] = {}
    for c in (*data.train, data.valid, data.test):
        if c is not None and c.table:
            path = Path(data.root) / c.table
            words = describe_header(path, c.columns, schema, data.source, data.target)
            paths_of.setdefault(words, []).append(str(path))
    named = ((before, ", ".join(dict.fromkeys(paths)), behind) for (before, behind), paths in paths_of.items())
    return [" ".join(parts).rstrip() for parts in named if parts[0]]


def swap_texts(record: Record) -> Record:
    """Exchange the two texts of a labelled pair."""
    if len(record) != 3:
        raise ConfigError("swap is for pairs of texts, and this corpus has single ones: leave it out")
    return record[1], record[0], record[2]


def plain_texts(
    task: str, by: str = "blank", from_grammar: Callable[[str, int], Iterator[Record]] = plain_sentences
) -> Schema:
    """The schema of tasks that read plain text. `by`: what a document of a file is, unless the corpus says it."""
    return Schema(
        task, (PLAIN,), "give text files, or one table with a text column (.tsv, .csv, .jsonl)",
        read_files=lambda paths, c: Documents(paths, c.documents or by),  # type: ignore[arg-type]
        from_row=lambda record: record if record[0].strip() else None, reason="an empty document", from_grammar=from_grammar,
    )  # fmt: skip


# --- a share of a corpus


def take_share(source: Corpus, share: tuple[float, float]) -> Corpus:
    """The part between two shares: of whole files by characters, otherwise by records."""
    if share == (0.0, 1.0):
        return source
    if isinstance(source, Documents) and source.by == "file":
        return replace(source, shares=(*source.shares, share))
    return Share(source, share)


@dataclass
class Share(DerivedCorpus):
    """Records from int(low * n) to int(high * n) of n, which are counted at the first reading."""

    share: tuple[float, float]
    bounds: tuple[int, int] | None = None
    """The numbers behind which the part begins and ends."""

    def about(self) -> int:
        return int(self.source.about() * (self.share[1] - self.share[0]))

    def find(self) -> tuple[int, int]:
        count = sum(1 for _ in self.source.read())
        low, high = (int(share * count) for share in self.share)
        begin = end = 0
        for place, (number, _) in enumerate(islice(self.source.read(), high), 1):
            begin, end = number if place == low else begin, number
        return begin, end

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        self.bounds = self.bounds or self.find()
        begin, end = self.bounds
        for number, record in self.source.read(max(start, begin), stride):
            if number > end:
                return
            yield number, record
