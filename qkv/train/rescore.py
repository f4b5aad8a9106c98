"""Score a trained model again: on the test set of its run, or on files of the user's."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe, load_recipe
from qkv.convert import folder as ours
from qkv.convert.detect import open_config, open_model, open_target, run_of
from qkv.data.corpora import corpus, notes
from qkv.data.corpus_files import Columns, corpus_of
from qkv.data.sources import Record
from qkv.device import pick_device
from qkv.errors import ConfigError, FileError
from qkv.tasks.base import Say, Task, Words, held_out, task_of
from qkv.text.tokenizer import Tokenizer
from qkv.train.artifacts import open_words

Paths = Sequence[str | Path]


@dataclass(frozen=True)
class Trained:
    """A trained network, and the recipe that says what it is for."""

    recipe: Recipe
    config: ModelConfig
    network: nn.Module
    words: Words
    run: bool = True
    """Whether it comes from a run, which has a test set of its own."""


def corpora_of(data: DataConfig | None) -> list[CorpusConfig]:
    """The corpora of a recipe, the test set first."""
    return [] if data is None else [c for c in (data.test, data.valid, *data.train) if c is not None]


def recipe_of(run: Path, changes: list[str] | None = None) -> Recipe:
    """The recipe of a run's folder, with the changes it was started with, and further ones."""
    if not (run / "recipe.toml").is_file():
        raise FileError(f"{run} is not the folder of a run: it has no recipe.toml")
    return load_recipe(run / "recipe.toml", changes, open_config)


def open_trained(folder: Path, device: str = "cpu") -> Trained:
    """The best model of a run; or any other model, whose task follows from its head."""
    run = run_of(folder)
    if not (run / "recipe.toml").is_file():
        config, network, tokenizer = open_model(folder)
        return from_parts(config, network.to(pick_device(device)).eval(), tokenizer, open_target(folder))
    recipe = recipe_of(run)
    if not (run / "best").is_dir():
        raise FileError(f"{run} has no best/ yet: let it train until it has evaluated its validation set")
    config, network, _ = ours.load(run / "best")
    return Trained(recipe, config, network.to(pick_device(device)).eval(), open_words(run))


def from_parts(c: ModelConfig, network: nn.Module, source: Tokenizer | None, target: Tokenizer | None = None,
               task: str | None = None) -> Trained:  # fmt: skip
    """A model that came without a run."""
    c = with_labels(c)
    return Trained(recipe_for(c, task or task_for(c)), c, network, Words(source, target or source, c.labels), run=False)


def with_labels(c: ModelConfig) -> ModelConfig:
    """Classes without names get those of Hugging Face."""
    if c.labels or c.n_classes < 2 or c.head not in ("classes", "classes-words", "tags"):
        return c
    return c.changed(labels=tuple(f"LABEL_{i}" for i in range(c.n_classes)))  # type: ignore[no-any-return]


def task_for(c: ModelConfig) -> str:
    """The task that a configuration tells of; an encoder-decoder of texts is taken for a translator."""
    if c.image_size is not None:
        found = {"encoder": "images" if c.head == "classes" else None, "encoder-decoder": "captions"}.get(c.family)
    elif c.head in ("classes", "classes-words"):
        found = "regression" if c.n_classes == 1 else "classification"
    elif c.head == "vocabulary":
        found = {"decoder": "language", "encoder-decoder": "translation"}.get(c.family)
    else:
        found = {"tags": "tagging", "span": "answering", "masked": "masked", "masked-next": "masked"}.get(c.head)
    if found is None:
        raise ConfigError(
            f"a model of family {c.family!r} with head = {c.head!r} has no task to evaluate: train it for one"
        )
    return found


def recipe_for(c: ModelConfig, task: str) -> Recipe:
    """A recipe for a model that came without one: it reads as much as the model can."""
    nothing = CorpusConfig(text="none")
    most = c.max_length - (1 if c.family == "encoder-decoder" else 0)
    data = DataConfig(train=(nothing,), valid=nothing, max_length=most)
    return Recipe(task=task, model=c, data=data)  # type: ignore[arg-type]


# --- scoring


def rescore(folder: Path, say: Say, paths: Paths = (), columns: Columns = (), device: str = "cpu",
            keep: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """The scores of the model in a folder; see `rescore_trained`."""
    return rescore_trained(open_trained(folder, device), str(folder), say, paths, columns, keep)


def rescore_trained(trained: Trained, name: str, say: Say, paths: Paths = (), columns: Columns = (), keep: Path | None = None
                    ) -> dict[str, Any]:  # fmt: skip
    """{"task", "set", "examples", "how", "scores", ...} of a model, as results.json has them.

    name: the model's, for errors.
    paths: files to score it on (data/corpus_files.py: which, for each task). Without any, the test set of its run, or
    where that has none its validation set.
    columns: those of a table, by name or number.
    keep: a folder for what the task's `test` writes: the test set with the model's answers.
    """
    if not paths and not trained.run:
        raise ConfigError(f"{name} is a model without a run, and so without a test set: give one with --data FILE")
    task = opened(trained, paths, columns)
    for line in notes(task.data, task.name) if paths else ():
        say(line)
    with tempfile.TemporaryDirectory() if keep is None else nullcontext(keep) as place:
        found = task.test(trained.network, Path(place), say)
    if found is not None and found["scores"]:
        return {"task": task.name, "set": ", ".join(Path(p).name for p in paths) or "test", **found}
    if paths:
        raise ConfigError(f"{paths[0]} has no labels to compare the model's answers with: is it the right file?")
    numbers = task.evaluate(trained.network)
    scores = [{"name": name, "value": value, "signature": ""} for name, value in numbers.items()]
    return {"task": task.name, "set": "valid", "examples": len(task.valid), "how": task.how, "scores": scores}


def opened(trained: Trained, paths: Paths, columns: Columns) -> Task:
    """The task with its own sets, or with the given files in the place of all of them: training data are not needed then."""
    recipe = trained.recipe
    if paths:
        recipe = asked_of(trained, corpus_of(paths, columns, recipe.task, corpora_of(recipe.data)))
    task = task_of(recipe)(recipe, trained.config, trained.words)
    task.like(trained.recipe)
    return task


def asked_of(trained: Trained, c: CorpusConfig) -> Recipe:
    assert trained.recipe.data is not None
    data = trained.recipe.data.model_copy(update={"train": (c,), "valid": c, "test": c, "root": "", "extra_valid": {}})
    return trained.recipe.model_copy(update={"data": data})


def pairs_of(folder: Path, say: Say, paths: Paths, columns: Columns) -> list[Record]:
    """(source, target) of every record of a user's files, for the translator in `folder`."""
    run = run_of(folder)
    data = recipe_of(run).data if (run / "recipe.toml").is_file() else None
    c = corpus_of(paths, columns, "translation", corpora_of(data))
    some = DataConfig(train=(c,), valid=c)
    if data is not None:  # its languages may be the names of columns
        some = some.model_copy(update={"source": data.source, "target": data.target})
    for line in notes(some, "translation"):
        say(line)
    return held_out(corpus(c, some, "test", "translation"), "test")


def task_name(folder: Path) -> str:
    """What the model in a folder was trained for."""
    run = run_of(folder)
    return recipe_of(run).task if (run / "recipe.toml").is_file() else task_for(open_config(folder))
