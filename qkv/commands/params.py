"""`qkv params`: how many parameters, matrix by matrix."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from qkv.commands.common import Json, Settings, config_of

WHAT = typer.Argument(metavar="NAME|RECIPE|FOLDER", help="A preset, a recipe or a model.", show_default=False)


def run(what: Annotated[str, WHAT], as_json: Json = False, settings: Settings = None) -> None:
    """Count the parameters by matrix, without allocating memory.

    Beside the full count stands, for decoders, the way lecture 003 counts: matrices only, one per head.

    [dim]qkv params gpt3-175b --json[/]
    [dim]qkv params transformer-base --set model.d_model=256[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.config.rules import config_warnings
    from qkv.models.params import count

    config = config_of(what, settings)
    for line in config_warnings(config):
        print(line, file=sys.stderr)
    counted = count(config)
    if as_json:
        print(json.dumps(counted.as_json(), indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("matrix", "shape", "times", "parameters"):
        table.add_column(title, justify="left" if title == "matrix" else "right", overflow="fold")
    for row in counted.rows:
        table.add_row(row.name, " x ".join(f"{n:,}" for n in row.shape), f"{row.times:,}", f"{row.total:,}")
    console = Console()
    console.print(table)
    console.print(f"\n[bold]{counted.parameters:,}[/] parameters", highlight=False)
    if counted.lecture is not None:
        matrices = f"{counted.lecture.weights:,} weights in {counted.lecture.matrices:,} matrices"
        console.print(f"as lecture 003 counts: {matrices} (no biases, norms, positions)", highlight=False)
