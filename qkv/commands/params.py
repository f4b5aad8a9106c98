"""`qkv params`: count parameters, matrix by matrix."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Json, Settings, align_columns, config_of

if TYPE_CHECKING:
    from qkv.models.params import Count

WHAT = typer.Argument(metavar="NAME|RECIPE|FOLDER", help="A preset, a recipe or a model folder.")


def run(what: Annotated[str, WHAT], as_json: Json = False, settings: Settings = None) -> None:
    """Count the parameters by matrix, without allocating memory.

    For decoders it also prints the count of lecture 003 (docs/lectures.md, B4): weight matrices only, one per head, output
    matrix included.

    [dim]qkv params gpt3-175b --json[/]
    [dim]qkv params transformer-base --set model.d_model=256[/]
    """
    from qkv.config.rules import config_warnings
    from qkv.models.params import count

    config = config_of(what, settings)
    for line in config_warnings(config):
        print(line, file=sys.stderr)
    counted = count(config)
    if as_json:
        print(json.dumps(counted.as_json(), indent=2))
        return
    for line in align_columns(cells(counted)):
        print(line)
    used = "" if counted.active == counted.parameters else f", of which a token uses {counted.active:,}"
    print(f"\n{counted.parameters:,} parameters{used}")
    if counted.lecture is not None:
        matrices = f"{counted.lecture.weights:,} weights in {counted.lecture.matrices:,} matrices"
        print(f"matrices alone, one per head, output matrix included:\n{matrices} (as in lecture 003)")


def cells(counted: Count) -> list[list[str]]:
    """Return a row for each matrix; those of the blocks of a stack are grouped under its name."""
    rows, group = [["matrix", "shape", "times", "parameters"]], ""
    for row in counted.rows:
        before, repeated, name = row.name.rpartition("*.")
        if before + repeated != group and repeated:
            rows.append([before + "*", "", "", ""])
        group = before + repeated
        shape = " x ".join(f"{n:,}" for n in row.shape)
        rows.append(["  " * bool(repeated) + name, shape, f"{row.times:,}", f"{row.total:,}"])
    return rows
