"""corpus: the records that a configuration names, as a task needs them; files, tables, named data sets and the embedded
texts alike.

    language, masked, replaced, span-corruption, denoising, vectors   (text,)
    classification, regression                               (text, label) or (text, second text, label)
    tagging                                                  (words, tags), each joined by tabs
    answering                                                (question, context, answer, start), further right answers
    translation, summary                                     (source, target)
"""

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
from qkv.data.grammar_tasks import GrammarView
from qkv.data.header import note, usual_columns
from qkv.data.lines import MAX_LINE, MAX_ROW
from qkv.data.mixture import Mixture
from qkv.data.sources import Corpus, GrammarSource, Memory, Parallel, Part, Record, Source, Table, ending
from qkv.data.stdlib import StandardLibrary
from qkv.data.tagged import Tagged
from qkv.data.textsets import LANGUAGE
from qkv.errors import ConfigError

PAIRS = ("translation", "summary")
COLUMNS = {"classification": (2, 3), "regression": (2, 3), "tagging": (2, 2), "answering": (3, 4), "translation": (2, 2),
           "summary": (2, 2), **dict.fromkeys(LANGUAGE, (1, 1))}  # fmt: skip
"""Columns of a table at the least, which are the default, and at the most."""


def corpus(c: CorpusConfig, data: DataConfig, split: str, task: str) -> Corpus:
    """The corpus that a configuration names; the embedded ones and data sets have a `split` of their own."""
    if task not in COLUMNS:
        raise ConfigError(f"{task} does not read its records from a corpus of texts")
    found = shared(whole(c, data, split, task), c.share)
    if not c.swap:
        return found
    if task not in ("classification", "regression"):
        raise ConfigError(f"swap is for pairs of texts with a label, not for {task}")
    return Mapped(found, swapped)


def training(data: DataConfig, task: str) -> Source:
    """All training corpora as one."""
    found: list[Source] = [corpus(c, data, "train", task) for c in data.train]
    found = found if data.duplicates else [Distinct(one) for one in found]  # type: ignore[arg-type]
    return found[0] if len(found) == 1 else Mixture(found, [c.weight for c in data.train])


def whole(c: CorpusConfig, data: DataConfig, split: str, task: str) -> Corpus:
    """All of it, whatever its share."""
    if c.grammar is not None:
        if task == "translation":
            return GrammarSource(split, c.grammar, reverse=data.source == "de", casual=c.casual)
        if c.casual:
            raise ConfigError(f"casual is for pairs of sentences of the grammar, not for {task}")
        return GrammarView(split, c.grammar, task)
    if c.text is not None:
        if task not in LANGUAGE:
            raise ConfigError(f"text is one document, for language models and pre-training, not for {task}")
        return Memory([(c.text,)])
    if c.stdlib:
        if task not in LANGUAGE:
            raise ConfigError(
                f"the standard library has texts alone, for language models and pre-training, not for {task}"
            )
        return StandardLibrary(split)
    if c.dataset is not None:
        path = Path(data.root) / (c.path or "") if data.root or c.path else None
        if path is not None and c.path is None and c.dataset.partition("/")[0] in textsets.FOLDERS and single(path):
            raise ConfigError(
                f"data.root = {data.root!r} is one file, and would be training, valid and test set alike: give the folder"
            )
        return named(c.dataset, data, c.split or split, path, task)
    if c.table is not None:
        return table(Path(data.root) / c.table, c, data, task)
    if not c.files:
        raise ConfigError(f"pictures are for images and captions, not for {task}")
    return files([Path(data.root) / name for name in c.files], c, task)


def single(path: Path) -> bool:
    """A file that holds no others."""
    return path.is_file() and not zipfile.is_zipfile(path)


def named(name: str, data: DataConfig, split: str, path: Path | None, task: str) -> Corpus:
    """A public data set: pairs of languages for translation, and those of single texts."""
    kind = name.partition("/")[0]
    if kind in textsets.KINDS:
        return textsets.textset(name, split, path, task)
    if task not in ("translation", *LANGUAGE):
        raise ConfigError(
            f"no data set {name!r} for {task}: there are {textsets.NAMES}; for translation {datasets.NAMES}"
        )
    try:
        pairs = datasets.dataset(name, data.source, data.target, split, path)
    except ConfigError as error:
        known = f"; for other tasks {textsets.NAMES}" if str(error).startswith("no data set") else ""
        raise ConfigError(f"{error}{known}") from None
    return pairs if task == "translation" else Mapped(pairs, lambda record: (record[0],))


def files(paths: list[Path], c: CorpusConfig, task: str) -> Corpus:
    """Text files. Two in step; one of tags; any number of documents."""
    if c.documents is not None and task not in LANGUAGE:
        raise ConfigError(f"documents says how a language model's files are cut; {task} has no use for it")
    if task in PAIRS:
        if len(paths) != 2:
            raise ConfigError(f"{task} has two files, source and target, given {len(paths)}")
        return Parallel(paths)
    if task == "tagging":
        numbers = [column for column in c.columns if isinstance(column, int)]
        if len(paths) != 1 or len(numbers) != len(c.columns) or len(numbers) not in (0, 2):
            raise ConfigError(
                "tagging has one file, .conllu or with a word and its tag per line, and columns by number: word, tag"
            )
        return Tagged(paths[0], numbers)
    if task == "answering" and len(paths) == 1 and ending(paths[0]) == ".json":
        return Memory(textsets.answers(paths[0]))
    if task not in LANGUAGE:
        raise ConfigError(
            f"{task} has its records in a table (.tsv, .csv or .jsonl) or a data set, not in files of text"
        )
    return Documents(paths, c.documents or ("file" if task == "language" else "blank"))


def table(path: Path, c: CorpusConfig, data: DataConfig, task: str) -> Corpus:
    """Columns of a table: the given ones, otherwise those that its header names, otherwise the first ones. Words and tags
    have spaces between; where no start of an answer is given, it is looked for."""
    least, most = COLUMNS[task]
    columns = c.columns or usual_columns(path, task, data.source, data.target) or tuple(range(least))
    if not least <= len(columns) <= most:
        wanted = f"{least}" if least == most else f"{least} or {most}"
        raise ConfigError(f"a table for {task} has {wanted} columns, given {list(columns)}")
    rows = Table(path, columns, longest=MAX_LINE if task == "translation" else MAX_ROW)
    if task in MADE:
        make, reason = MADE[task]
        return Mapped(rows, make, reason)
    return rows


def notes(data: DataConfig, task: str) -> list[str]:
    """What is to be said of the headers of all tables that a run reads; of those with the same header in one line."""
    said: dict[tuple[str, str], list[str]] = {}
    for c in (*data.train, data.valid, data.test):
        if c is not None and c.table:
            path = Path(data.root) / c.table
            said.setdefault(note(path, c.columns, task, data.source, data.target), []).append(str(path))
    return [
        f"{before} {', '.join(dict.fromkeys(paths))} {behind}".rstrip()
        for (before, behind), paths in said.items()
        if before
    ]


def tags(record: Record) -> Record | None:
    words, names = (text.split() for text in record)
    return ("\t".join(words), "\t".join(names)) if words and len(words) == len(names) else None


def answer(record: Record) -> Record | None:
    """The answer must be in the context, at its start or, where that is wrong, in one place alone; an empty one is none."""
    question, context, text, *given = record
    if not text:
        return question, context, "", "-1"
    told = given[0] if given and given[0].isdecimal() else ""
    start = int(told) if 0 < len(told) < 12 else context.find(text)
    if start < 0 or not context.startswith(text, start):
        start = context.find(text) if context.count(text) == 1 else -1
    return (question, context, text, str(start)) if start >= 0 else None


def swapped(record: Record) -> Record:
    if len(record) != 3:
        raise ConfigError("swap is for pairs of texts, and this corpus has single ones: leave it out")
    return record[1], record[0], record[2]


def nonempty(record: Record) -> Record | None:
    return record if record[0].strip() else None


MADE: dict[str, tuple[Callable[[Record], Record | None], str]] = {
    "tagging": (tags, "as many tags as words are needed"),
    "answering": (answer, "the answer is not in the context"),
    **dict.fromkeys(LANGUAGE, (nonempty, "an empty document")),
}


# --- a share of a corpus


def shared(source: Corpus, share: tuple[float, float]) -> Corpus:
    """The part between two shares: of whole files by characters, otherwise by records."""
    if share == (0.0, 1.0):
        return source
    if isinstance(source, Documents) and source.by == "file":
        return replace(source, shares=(*source.shares, share))
    return Share(source, share)


@dataclass
class Share(Part):
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
