"""`qkv config`: list the fields of a recipe."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

from qkv.commands.common import Json


def run(as_json: Json = False) -> None:
    """List every field of a recipe, table by table: its type, its default and what it means.

    [dim]qkv config[/]
    [dim]qkv config --json[/]
    """
    from rich.console import Console
    from rich.table import Table

    tables = describe_recipe()
    if as_json:
        print(json.dumps(tables, indent=2, ensure_ascii=False))
        return
    console = Console()
    for title, fields in tables.items():
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("field", "type", "default", "meaning"):
            table.add_column(column, overflow="fold", no_wrap=column == "field")
        for row in fields:
            table.add_row(*(str(cell).replace("[", "\\[") for cell in row.values()))
        console.print(title, style="bold", markup=False)
        console.print(table, "")


def describe_recipe() -> dict[str, list[dict[str, str]]]:
    """Return the fields of every table, by the title of the table."""
    from qkv.config import CorpusConfig, Recipe, Strict
    from qkv.config.vectors import TextConfig, VectorsConfig

    tables: dict[str, type[Strict]] = {}
    for name, field in Recipe.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Strict):
                tables[f"[{name}]"] = kind
        if name == "data":
            tables["a corpus of [data]: train, valid, test"] = CorpusConfig
    tables |= {'with task = "vectors": [vectors]': VectorsConfig, 'with task = "vectors": [data]': TextConfig}
    above = [describe(name, f) for name, f in Recipe.model_fields.items() if f"[{name}]" not in tables]
    found = {title: [describe(name, f) for name, f in kind.model_fields.items()] for title, kind in tables.items()}
    return {"top level": above} | found


def describe(name: str, field: Any) -> dict[str, str]:
    """Return the name, type, default and meaning of a field."""
    kind = re.sub(r"typing\.|Literal|<class '([\w.]+)'>", r"\1", str(field.annotation))
    kind = re.sub(r"qkv\.config\.(\w+\.)?", "", kind)
    default = "required" if field.is_required() else str(field.default)
    return {"field": name, "type": kind, "default": default, "meaning": field.description or ""}
