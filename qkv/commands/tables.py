"""Tables as input of a command: the columns with the texts, row by row."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def columns_to_read(file: Path | None, task: str, languages: tuple[str, str] | None = None, count: int = 1
                    ) -> Sequence[int | str]:  # fmt: skip
    """Choose the columns of a table that hold the texts (`count` of them), and print which; () for a file that is not a table.

    languages: of a translator, whose columns may be named by them.
    """
    from qkv.data.header import text_columns
    from qkv.data.schema import LABELLED, TRANSLATIONS
    from qkv.data.sources import TABLES, ending

    if file is None or ending(file) not in TABLES:
        return ()
    layout = TRANSLATIONS if task == "translation" else LABELLED
    columns = text_columns(file, layout, *(languages or ("", "")), count)
    named = any(isinstance(c, str) for c in columns)
    if count == 2 and not named and ending(file) == ".tsv":
        return ()  # two texts with a tab between, as on standard input
    names = " and ".join(f"column {c}" for c in columns)
    print(f"{file} is a table: reading {names}" + ("" if named else "; it has no header"), file=sys.stderr)
    return columns


def rows(file: Path, columns: Sequence[int | str]) -> Iterator[tuple[str | None, str]]:
    """Yield the texts of each row, with tabs between, or None and what is wrong with it."""
    from qkv.data.lines import MAX_ROW
    from qkv.data.sources import TableSource

    table = TableSource(file, columns, longest=MAX_ROW)
    for _, row in table.rows(0, 1):
        problem = "" if row is not None else next(iter(table.skipped), "no text")
        yield None if row is None else "\t".join(" ".join(text.split()) for text in row), problem
        table.skipped.clear()
