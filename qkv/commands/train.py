"""`qkv train`: a recipe in, a scored model out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.commands.common import Settings
from qkv.errors import ConfigError


def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe (TOML), for example recipes/demo.toml.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; default runs/NAME.", show_default=False)
    ] = None,
    settings: Settings = None,
    time_budget: Annotated[
        str | None, typer.Option("--time-budget", help="Stop after 10m, 1h or 90s; the schedule fits itself to it.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; default all cores.")] = None,
) -> None:
    """Train a model; the same command again goes on where it stopped.

    Examples:
      qkv train recipes/demo.toml
      qkv train recipes/demo.toml --out runs/wide --set model.d_model=256
      qkv train recipes/demo.toml --time-budget 5m
    """  # fmt: skip
    import json

    import torch

    from qkv.config import load_recipe
    from qkv.train import run as training
    from qkv.train.report import Report

    changes = list(settings or [])
    if time_budget is not None:
        changes.append(f"train.time_budget={minutes(time_budget)}")
    loaded = load_recipe(recipe, changes)
    if loaded.data is None:
        raise ConfigError(f"{recipe} has no [data] table: it says what a model is, not what it learns from")
    if threads is not None:
        torch.set_num_threads(threads)
    text = recipe.read_text() + "".join(f"# --set {json.dumps(change)}\n" for change in changes)
    finished = training.run(loaded, text, out or Path("runs") / recipe.stem, Report())
    progress = finished.training.progress
    print(
        f"best {finished.task.metric} {progress.best:.2f} at update {progress.best_step:,}: {finished.folder / 'best'}"
    )


def minutes(text: str) -> float:
    """10m, 1h, 90s or a plain number of minutes."""
    unit = {"s": 1 / 60, "m": 1.0, "h": 60.0}.get(text[-1:], 0.0)
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ConfigError(f"--time-budget takes a time such as 10m, 1h or 90s, given {text!r}")
    return value
