"""`qkv lectures`: the lectures' worked examples."""

from __future__ import annotations

from typing import Annotated

import typer

from qkv.errors import ConfigError

NAMES = typer.Argument(metavar="[B1 B2 ...]", help="Examples to compute. Default: all.", show_default=False)


def run(names: Annotated[list[str] | None, NAMES] = None) -> None:
    """Compute the lectures' worked examples step by step, with the parts that models are built from.

    [dim]qkv lectures[/]
    [dim]qkv lectures B1 B5[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.lab.examples import EXAMPLES

    chosen = [name.upper() for name in names or EXAMPLES]
    if unknown := [name for name in chosen if name not in EXAMPLES]:
        raise ConfigError(f"no worked example {unknown[0]}: choose from {', '.join(EXAMPLES)}")
    console = Console(highlight=False)
    for name in chosen:
        console.rule(f"[bold]{name}[/] {(EXAMPLES[name].__doc__ or '').splitlines()[0]}", align="left")
        for step in EXAMPLES[name]():
            if isinstance(step, str):
                console.print(step)
                continue
            table = Table(box=None, header_style="bold", pad_edge=False)
            for index, title in enumerate(step.titles):
                table.add_column(title, justify="right" if index else "left")
            for row in step.rows:
                table.add_row(*row)
            console.print(table)
        console.print()
