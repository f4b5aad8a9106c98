"""A finished run asked again: its best model on its own test set, or on another one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.config import Recipe, load_recipe
from qkv.convert import folder as ours
from qkv.convert.detect import open_config
from qkv.errors import FileError
from qkv.tasks.base import task_of
from qkv.train.words import open_words


def recipe_of(run: Path, changes: list[str] | None = None) -> Recipe:
    """The recipe of a run's folder, with the changes it was started with, and further ones."""
    if not (run / "recipe.toml").is_file():
        raise FileError(f"{run} is not the folder of a run: it has no recipe.toml")
    return load_recipe(run / "recipe.toml", changes, open_config)


def ask(run: Path, changes: list[str], say: Callable[[str], None]) -> dict[str, Any]:
    """{"examples", "how", "scores"} of the test set; where the recipe has none, of the validation set."""
    recipe = recipe_of(run, changes)
    if not (run / "best").is_dir():
        raise FileError(f"{run} has no best/ yet: let it train until it has looked at its validation set")
    config, network, _ = ours.load(run / "best")
    task = task_of(recipe)(recipe, config, open_words(run))
    with tempfile.TemporaryDirectory() as place:
        found = task.test(network, Path(place), say)
    if found is not None and found["scores"]:
        return {"set": "test", **found}
    numbers = task.evaluate(network)
    scores = [{"name": name, "value": value, "signature": ""} for name, value in numbers.items()]
    return {"set": "valid", "examples": len(task.valid), "how": task.how, "scores": scores}
