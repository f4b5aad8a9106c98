"""`qkv demo`: the lectures' worked examples."""

from __future__ import annotations


def run() -> None:
    """Compute the lectures' worked examples, step by step, with the parts every model is built from.

    [dim]qkv demo[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.lab.examples import EXAMPLES

    console = Console(highlight=False)
    for name, example in EXAMPLES.items():
        console.rule(f"[bold]{name}[/] {(example.__doc__ or '').splitlines()[0]}", align="left")
        for step in example():
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
