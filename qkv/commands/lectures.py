"""`qkv lectures`: the lectures' worked examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.errors import ConfigError

NAMES = typer.Argument(metavar="[B1 D1 ...]", help="Examples to compute. Default: all.")
MODEL = typer.Option(
    metavar="FOLDER", help="D4, D5: model to run on the sentences. Default: the example model that ships with qkv."
)


def run(names: Annotated[list[str] | None, NAMES] = None, model: Annotated[Path | None, MODEL] = None) -> None:
    """Compute the lectures' worked examples step by step, with the parts that models are built from.

    B1-B7 are examples with answers on the slides, D1-D12 smaller demonstrations.
    To run the claims (C1-C26) as experiments, use qkv lab.

    [dim]qkv lectures[/]
    [dim]qkv lectures B1 D6[/]
    [dim]qkv lectures D5 --model all-MiniLM-L6-v2       # a pre-trained encoder[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.lab.examples import EXAMPLES, WITH_MODEL

    chosen = [name.upper() for name in names or EXAMPLES]
    if unknown := [name for name in chosen if name not in EXAMPLES]:
        raise ConfigError(f"no worked example {unknown[0]}: choose from {', '.join(EXAMPLES)}")
    console = Console(highlight=False)
    for name in chosen:
        console.rule(f"[bold]{name}[/] {(EXAMPLES[name].__doc__ or '').splitlines()[0]}", align="left")
        for step in EXAMPLES[name](model) if name in WITH_MODEL else EXAMPLES[name]():
            if isinstance(step, str):
                console.print(step, soft_wrap=step.startswith("qkv "))  # a command that breaks cannot be copied
                continue
            table = Table(box=None, header_style="bold", pad_edge=False)
            for index, title in enumerate(step.titles):
                table.add_column(title, justify="right" if index and not step.words else "left")
            for row in step.rows:
                table.add_row(*row)
            console.print(table)
        console.print()
