"""`qkv config`: the fields of a model's configuration."""

from __future__ import annotations

import re


def run() -> None:
    """List every field of \\[model] in a recipe: its type, its default and what it means.

    [dim]qkv config[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.config import ModelConfig

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("field", "type", "default", "meaning"):
        table.add_column(title, overflow="fold", no_wrap=title == "field")
    for name, field in ModelConfig.model_fields.items():
        kind = re.sub(r"typing\.|Literal|<class '(\w+)'>", r"\1", str(field.annotation)).replace("qkv.config.", "")
        default = "required" if field.is_required() else str(field.default)
        table.add_row(name, kind.replace("[", "\\["), default, (field.description or "").replace("[", "\\["))
    Console().print(table)
