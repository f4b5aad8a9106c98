"""`qkv config`: what a recipe can say."""

from __future__ import annotations

import json
import re
from typing import Any

from qkv.commands.common import Json


def run(as_json: Json = False) -> None:
    """List every field of a recipe, table by table: its type, its default and what it means.

    [dim]qkv config[/]
    [dim]qkv config --json[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.config import CorpusConfig, DataConfig, DecodeConfig, ModelConfig, Recipe, Strict, TrainConfig
    from qkv.config.vectors import TextConfig, VectorsConfig

    first = {"above all tables": [described("preset", Recipe.model_fields["preset"])]}
    tables: dict[str, type[Strict]] = {
        "[model]": ModelConfig,
        "[data]": DataConfig,
        "a corpus of [data]: train, valid, test": CorpusConfig,
        "[train]": TrainConfig,
        "[decode]": DecodeConfig,
        'with task = "vectors": [vectors]': VectorsConfig,
        'with task = "vectors": [data]': TextConfig,
    }
    found = first | {
        title: [described(name, f) for name, f in kind.model_fields.items()] for title, kind in tables.items()
    }
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    console = Console()
    for title, fields in found.items():
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("field", "type", "default", "meaning"):
            table.add_column(column, overflow="fold", no_wrap=column == "field")
        for row in fields:
            table.add_row(*(str(cell).replace("[", "\\[") for cell in row.values()))
        console.print(title, style="bold", markup=False)
        console.print(table, "")


def described(name: str, field: Any) -> dict[str, str]:
    kind = re.sub(r"typing\.|Literal|<class '([\w.]+)'>", r"\1", str(field.annotation))
    kind = re.sub(r"qkv\.config\.(\w+\.)?", "", kind)
    default = "required" if field.is_required() else str(field.default)
    return {"field": name, "type": kind, "default": default, "meaning": field.description or ""}
