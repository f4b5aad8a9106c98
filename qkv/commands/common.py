"""Arguments and output shared by several commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qkv import pretrained
from qkv.config import ModelConfig, load_recipe, override, validate
from qkv.errors import ConfigError, QkvError


class Device(StrEnum):
    """Device to compute on; auto selects the best one available."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class Precision(StrEnum):
    """Precision of the weights."""

    float32 = "float32"
    int8 = "int8"


FOLDER = typer.Argument(
    metavar="FOLDER",
    help="A model: a qkv run or model folder, a Hugging Face folder, a .gguf or .bin file, or example (ships with qkv).",
    callback=pretrained.find,
)
SETTINGS = typer.Option(
    "--set", metavar="KEY=VALUE", help="Change a field: [cyan]model.d_model=256[/]; may be repeated."
)
Folder = Annotated[Path, FOLDER]
DeviceOption = Annotated[Device, typer.Option(help="Device to compute on.")]
PrecisionOption = Annotated[Precision | None, typer.Option(
    help="int8: round weights to 8 bits, faster on a CPU, a quarter of the memory. Default: as they are stored.")]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Settings = Annotated[list[str] | None, SETTINGS]


@contextmanager
def writing() -> Iterator[None]:
    """Write UTF-8 to standard output; a reader that closes the pipe ends the command without an error."""
    if sys.stdout is None:
        raise QkvError("standard output is closed: redirect it to a file or a terminal")
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def to_stderr(text: str) -> None:
    """Print a note on standard error."""
    print(text, file=sys.stderr, flush=True)


def parse_columns(columns: str | None) -> list[int | str]:
    """Parse comma-separated column names, or numbers from 0."""
    return [int(name) if name.isdecimal() else name for name in map(str.strip, (columns or "").split(",")) if name]


def align_columns(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Format rows of cells as aligned columns, those numbered in `left` flush left; nothing is wrapped or cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if at in left else cell.rjust(width)
                  for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]  # fmt: skip
    return [line.rstrip() for line in lines]


def config_of(what: str, settings: list[str] | None) -> ModelConfig:
    """Read the configuration of a preset, a recipe or a model folder, with `--set` changes."""
    from qkv.presets import PRESETS, preset
    from qkv.recipes import find, names

    path = pretrained.find(what)
    if path.suffix == ".toml" or (what in names() and what not in PRESETS and path == Path(what)):
        return load_recipe(find(what), settings).model
    if what in PRESETS or not (path.exists() or "/" in what):
        base = preset(what)
    else:
        from qkv.api import read_config

        base = read_config(path)
    values = override({"model": base.model_dump(exclude_unset=True)}, settings or [])
    if unknown := values.keys() - {"model"}:
        raise ConfigError(f"--set {sorted(unknown)[0]}: set the fields of a model as model.FIELD=VALUE")
    return validate(ModelConfig, values["model"], "model")
