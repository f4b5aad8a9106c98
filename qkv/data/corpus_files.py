"""Open a user's files as a corpus of a task: the schema, the file name's ending and the first bytes determine the kind of file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qkv.config import CorpusConfig
from qkv.data.glue import TASKS
from qkv.data.schema import Schema
from qkv.data.sources import TABLES, ending
from qkv.errors import ConfigError, FileError

Columns = Sequence[int | str]


def corpus_of(
    paths: Sequence[str | Path], columns: Columns, schema: Schema, own: Sequence[CorpusConfig] = ()
) -> CorpusConfig:
    """The corpus that some files are to a task.

    columns: of a table, by name or by number from 0, in the order of the task. Where none are given they are those of the
    first corpus of `own`, the corpora that the model was trained with, that names some; otherwise those that the table's
    header names, or the first ones. What a document is (a file, a paragraph, a line) also follows the model's own corpora.
    """
    if not paths:
        raise ConfigError("no file: give at least one")
    for path in map(Path, paths):
        if not path.exists() and not any(parent.is_file() for parent in path.parents):  # a file in an archive
            raise FileError(f"{path} does not exist: give a file that is here")
    names = tuple(map(str, paths))
    first = names[0]
    if schema.pictures and len(paths) == 1 and Path(paths[0]).is_dir():
        return CorpusConfig(images=first)
    if len(paths) == 1 and ending(paths[0]) in TABLES and not schema.is_text(Path(paths[0])):
        return CorpusConfig(table=first, columns=tuple(columns or own_columns(own, schema)))
    columns = columns or (conll_columns(first, own) if schema.numbered else ())
    numbered = tuple(c for c in columns if isinstance(c, int))
    if columns and not schema.numbered:
        raise ConfigError(f"columns are those of a table, {' or '.join(TABLES)}, and {first} is none: leave them out")
    if len(numbered) != len(columns):
        raise ConfigError(f"the columns of {first} have no names: give numbers from 0, word then tag")
    if not (schema.read_files or schema.pictures) or schema.n_files not in (None, len(paths)):
        raise ConfigError(f"{', '.join(names)}: {schema.accepts}")
    documents = next((c.documents for c in own if c.documents), None) if schema.plain else None
    return CorpusConfig(files=names, columns=numbered, documents=documents)


def own_columns(own: Sequence[CorpusConfig], schema: Schema) -> Columns:
    """Those that a model's own tables have; three where it learned from pairs of texts with a label (GLUE); else none."""
    for c in own:
        known = TASKS.get((c.dataset or "").rpartition("/")[2].replace("-", "").lower())
        if c.table and c.columns:
            return c.columns
        if known is not None and len(known.texts) == 2 and schema.columns[0].partners:
            return 0, 1, 2
    return ()


def conll_columns(name: str, own: Sequence[CorpusConfig]) -> Columns:
    """Word and tag, as in the model's own files of the same kind."""
    return next((c.columns for c in own if c.columns and c.files and ending(c.files[0]) == ending(name)), ())
