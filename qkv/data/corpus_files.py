"""A user's files as a corpus of a task: which kind a file is follows from the task, its ending and what it begins with.

classification, regression    one table (.tsv, .csv, .jsonl): text, label; or text, second text, label
tagging                       one CoNLL or .conllu file, or a table: words, tags
translation, summary          one table: source, target; or two text files in step, line by line
answering                     one .json file in the layout of SQuAD, or a table: question, context, answer, start
language models, masked ...   any number of text files, or one table: text
images, captions              a folder with a folder per class; a table: path, text; or two idx files
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from qkv.config import CorpusConfig
from qkv.data.glue import TASKS
from qkv.data.lines import lines
from qkv.data.sources import TABLES, ending
from qkv.data.textsets import LANGUAGE
from qkv.errors import ConfigError, FileError

PICTURES = ("images", "captions")
Columns = Sequence[int | str]


def corpus_of(
    paths: Sequence[str | Path], columns: Columns, task: str, own: Sequence[CorpusConfig] = ()
) -> CorpusConfig:
    """The corpus that some files are to a task.

    columns: of a table, by name or by number from 0, in the order of the task. Where none are given they are those of the
    first corpus of `own`, the corpora that the model was trained with, that names some; otherwise those that the table's
    header names, or the first ones. What a document is (a file, a paragraph, a line) also follows the model's own corpora.
    """
    if not paths:
        raise ConfigError("no file: give at least one")
    for path in paths:
        if not Path(path).exists() and not any(
            parent.is_file() for parent in Path(path).parents
        ):  # a file in an archive
            raise FileError(f"{path} does not exist: give a file that is here")
    names = tuple(map(str, paths))
    if task in PICTURES and len(paths) == 1 and Path(paths[0]).is_dir():
        return CorpusConfig(images=names[0])
    if is_table(paths, task):
        return CorpusConfig(table=names[0], columns=tuple(columns or own_columns(own, task)))
    columns = columns or (conll_columns(names[0], own) if task == "tagging" else ())
    numbered = tuple(c for c in columns if isinstance(c, int))
    if columns and task != "tagging":
        raise ConfigError(
            f"columns are those of a table, {' or '.join(TABLES)}, and {names[0]} is none: leave them out"
        )
    if len(numbered) != len(columns):
        raise ConfigError(f"the columns of {names[0]} have no names: give numbers from 0, word then tag")
    needed = 2 if task in ("translation", "summary", *PICTURES) else None if task in LANGUAGE else 1
    if needed is not None and len(paths) != needed or task in ("classification", "regression"):
        raise ConfigError(f"{', '.join(names)}: {WANTED.get(task, WANTED['language'])}")
    documents = next((c.documents for c in own if c.documents), None) if task in LANGUAGE else None
    return CorpusConfig(files=names, columns=numbered, documents=documents)


def own_columns(own: Sequence[CorpusConfig], task: str) -> Columns:
    """Those that a model's own tables have; three where it learned from pairs of texts with a label (GLUE); else none."""
    for c in own:
        known = TASKS.get((c.dataset or "").rpartition("/")[2].replace("-", "").lower())
        if c.table and c.columns:
            return c.columns
        if known is not None and len(known.texts) == 2 and task in ("classification", "regression"):
            return 0, 1, 2
    return ()


def conll_columns(name: str, own: Sequence[CorpusConfig]) -> Columns:
    """Word and tag, as in the model's own files of the same kind."""
    return next((c.columns for c in own if c.columns and c.files and ending(c.files[0]) == ending(name)), ())


def is_table(paths: Sequence[str | Path], task: str) -> bool:
    """Whether it is one file with a record in each row. Tags in a .tsv file may also stand one per line, with a blank line
    after each sentence."""
    if len(paths) != 1 or ending(paths[0]) not in TABLES or (task == "answering" and ending(paths[0]) == ".json"):
        return False
    if task != "tagging" or ending(paths[0]) != ".tsv":
        return True
    return not any(text is not None and not text.strip() for text in islice(lines(paths[0]), 1000))


PAIRS = "give one table with source and target columns (.tsv, .csv, .jsonl), or two text files, line by line in step"
LABELLED = "give one table with text and label columns (.tsv, .csv, .jsonl)"
WANTED = {
    "translation": PAIRS,
    "summary": PAIRS,
    "classification": LABELLED,
    "regression": LABELLED,
    "tagging": "give one .conllu or CoNLL file, a word and its tag per line, or one table of words and tags",
    "answering": "give one .json file in the layout of SQuAD, or one table with question, context and answer",
    "images": "give one folder with a folder of pictures per class, one table of paths and labels, or two idx files",
    "captions": "give one table with paths and captions (.tsv, .csv, .jsonl)",
    "language": "give text files",
}
"""What a task can be evaluated on."""
