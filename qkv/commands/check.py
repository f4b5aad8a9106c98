"""`qkv check`: measure the contracts on a model."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from qkv.commands.common import Folder, Json

STATUS = {"holds": "[green]holds[/]", "broken": "[red]BROKEN[/]", "does not apply": "[dim]does not apply[/]"}


def run(folder: Folder, as_json: Json = False) -> None:
    """Check properties that every model must have: causality, padding and batch invariance, cache, kernels, round trips.

    Prints the largest difference and its tolerance for each property; exit code 1 if one is broken.

    [dim]qkv check my-model[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.check import check_folder

    results = check_folder(folder)
    if as_json:
        print(json.dumps([{**asdict(r), "status": r.status} for r in results], indent=2))
    else:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("contract", "meaning", "tolerance", "measured", ""):
            table.add_column(title, justify="right" if title in ("tolerance", "measured") else "left")
        for r in results:
            measured = "-" if r.measured is None else f"{r.measured:.1e}"
            table.add_row(r.contract, r.meaning, f"{r.tolerance:.0e}", measured, f"{STATUS[r.status]} {r.note}".strip())
        Console().print(table)
    if any(r.status == "broken" for r in results):
        raise typer.Exit(1)
