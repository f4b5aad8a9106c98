"""Tables as input of a trained model: the column with the text, row by row."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def columns_to_read(file: Path | None, task: str, folder: Path, count: int = 1) -> Sequence[int | str]:
    """The columns of `file` that hold its texts (`count` of them), () where it is no table. Which ones, is said."""
    from qkv.config.strict import read_toml
    from qkv.data.header import text_columns
    from qkv.data.sources import TABLES, ending
    from qkv.tasks.inspection import run_of

    if file is None or ending(file) not in TABLES:
        return ()
    recipe = run_of(folder) / "recipe.toml"
    data = read_toml(recipe).get("data", {}) if task == "translation" and recipe.is_file() else {}
    columns = text_columns(file, task, data.get("source", ""), data.get("target", ""), count)
    named = any(isinstance(c, str) for c in columns)
    if count == 2 and not named and ending(file) == ".tsv":
        return ()  # two texts with a tab between, as on standard input
    shown = " and ".join(f"column {c}" for c in columns)
    print(f"{file} is a table: reading {shown}" + ("" if named else "; it has no header"), file=sys.stderr)
    return columns


def rows(file: Path, columns: Sequence[int | str]) -> Iterator[tuple[str | None, str]]:
    """The texts of each row, with tabs between, or None and what is wrong with it."""
    from qkv.data.lines import MAX_ROW
    from qkv.data.sources import Table

    table = Table(file, columns, longest=MAX_ROW)
    for _, row in table.rows(0, 1):
        problem = "" if row is not None else next(iter(table.skipped), "no text")
        yield None if row is None else "\t".join(" ".join(text.split()) for text in row), problem
        table.skipped.clear()
