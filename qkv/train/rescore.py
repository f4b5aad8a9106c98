"""Score a trained model again: on the test set of its run, or on the user's files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from qkv.config import CorpusConfig, CorruptConfig, DataConfig, DecodeConfig, ModelConfig, Recipe, TaskName, load_recipe
from qkv.config.usage import Usage
from qkv.convert.detect import find_run, open_config, open_model, open_target, open_usage
from qkv.data.conversations import holds_conversations
from qkv.data.corpora import corpus, describe_headers
from qkv.data.corpus_files import Columns, corpus_of
from qkv.data.sources import Record
from qkv.device import pick_device
from qkv.engine.pack import pack
from qkv.errors import ConfigError, FileError
from qkv.tasks.base import Say, Task, Words, held_out, task_class, task_of
from qkv.tasks.few_shot import SCHEMA as FEW_SHOT
from qkv.tasks.few_shot import Prompting, evaluate_few_shot
from qkv.tasks.translation import SCHEMA as TRANSLATION
from qkv.text.tokenizer import Tokenizer

Paths = Sequence[str | Path]


@dataclass(frozen=True)
class Trained:
    """A trained network, and a recipe that says how to score it."""

    recipe: Recipe
    config: ModelConfig
    network: nn.Module
    words: Words
    own_test: bool = True
    """Whether the recipe is that of its run, which names a test set."""


def recipe_of(run: Path) -> Recipe:
    """Read the recipe of a run, with the changes that it was started with."""
    return load_recipe(run / "recipe.toml", None, open_config)


def open_trained_model(
    folder: Path, device: str = "cpu", own_test: bool = True, precision: str | None = None
) -> Trained:
    """Open a model for scoring: with `own_test` on the test set of its run, if there is one, otherwise on files."""
    run = find_run(folder) if own_test else None
    if run is not None and not (run / "best").is_dir():
        raise FileError(f"{run} has no best/ yet: let it train until it has evaluated its validation set")
    config, network, tokenizer = open_model(folder, precision)
    network, recipe = network.to(pick_device(device)).eval(), recipe_of(run) if run else None
    return from_parts(config, network, tokenizer, open_target(folder), open_usage(folder), recipe)


def from_parts(c: ModelConfig, network: nn.Module, source: Tokenizer | None, target: Tokenizer | None,
               usage: Usage, recipe: Recipe | None = None) -> Trained:  # fmt: skip
    """Combine the parts of a model; without a recipe, one that scores it as its run did is made from its usage."""
    c = with_labels(c)
    words = Words(source, target or source, c.labels)
    return Trained(recipe or recipe_for(c, usage), c, network, words, recipe is not None)


def with_labels(c: ModelConfig) -> ModelConfig:
    """Classes without names get those of Hugging Face."""
    if c.labels or c.n_classes < 2 or c.head not in ("classes", "classes-words", "tags"):
        return c
    return c.changed(labels=tuple(f"LABEL_{i}" for i in range(c.n_classes)))  # type: ignore[no-any-return]


def task_for(c: ModelConfig) -> TaskName:
    """The task that a configuration tells of; an encoder-decoder of texts is taken for a translator."""
    found: Any
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
    return found  # type: ignore[no-any-return]


def recipe_for(c: ModelConfig, usage: Usage) -> Recipe:
    """Return a recipe that scores a model according to its usage; without usage, with the longest inputs of the model."""
    corpus = usage.corpus or CorpusConfig(text="none")
    most = c.max_length - (1 if c.family == "encoder-decoder" else 0)
    fields: dict[str, Any] = {"max_length": usage.max_input or most, "target_length": usage.decoding.max_length,
                              "source": usage.source, "target": usage.target, "carry": usage.carry}  # fmt: skip
    given = {name: value for name, value in fields.items() if value is not None}
    decoding = usage.decoding.model_dump(include=set(DecodeConfig.model_fields), exclude_none=True)
    return Recipe(task=usage.task or task_for(c), model=c, data=DataConfig(train=(corpus,), valid=corpus, **given),
                  decode=DecodeConfig(**decoding), corrupt=usage.corrupt or CorruptConfig())  # fmt: skip


# --- scoring


def rescore(folder: Path, say: Say, paths: Paths = (), columns: Columns = (), device: str = "cpu",
            keep: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """Score the model in a folder; see `rescore_model`."""
    return rescore_model(open_trained_model(folder, device, not paths), str(folder), say, paths, columns, keep)


def rescore_model(trained: Trained, name: str, say: Say, paths: Paths = (), columns: Columns = (), keep: Path | None = None
                    ) -> dict[str, Any]:  # fmt: skip
    """{"task", "set", "examples", "how", "scores", ...} of a model, as results.json has them.

    name: the model's, for errors.
    paths: files to score it on (data/corpus_files.py: which, for each task). Without any, the test set of its run, or
    where that has none its validation set.
    columns: those of a table, by name or number.
    keep: a folder for what the task's `test` writes: the test set with the model's answers.
    """
    if not paths and not trained.own_test:
        raise ConfigError(f"{name} is not part of a training run, so it has no test set: give one with --data FILE")
    task = build_task(trained, paths, columns)
    for line in describe_headers(task.data, task.schema) if paths else ():
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


def rescore_few_shot(trained: Trained, path: str | Path, columns: Columns, pool: str | Path | None, how: Prompting,
                     say: Say) -> dict[str, Any]:  # fmt: skip
    """Score a language model on a table of texts and labels by prompts with solved examples from the table `pool`, or else
    from the other rows."""
    if trained.words.source is None:
        raise ConfigError("this model has no tokenizer: add tokenizer.json to its folder")
    data = DataConfig(train=(CorpusConfig(text="none"),), valid=CorpusConfig(text="none"))

    def read(file: str | Path) -> list[Record]:
        c = corpus_of([file], columns, FEW_SHOT)
        for line in describe_headers(data.model_copy(update={"valid": c}), FEW_SHOT):
            say(line)
        return held_out(corpus(c, data, "test", FEW_SHOT), "test")

    records = read(path)
    examples = records if pool is None else read(pool)
    device = next(trained.network.parameters()).device
    network = pack(trained.network) if device.type == "cpu" else trained.network
    found = evaluate_few_shot(trained.config, network, trained.words.source, records, examples, how)  # type: ignore[arg-type]
    for note, count in found["notes"].items():
        say(f"{count:,} of {len(records):,} prompts {note}")
    return {"task": "few-shot", "set": Path(path).name, **found}


def build_task(trained: Trained, paths: Paths, columns: Columns) -> Task:
    """Build the task with its own sets, or with the given files instead, so that the training data are not needed."""
    recipe = trained.recipe
    assert recipe.data is not None
    if paths:
        task_name = task_for_files(recipe.task, trained.words.source, paths)
        c = corpus_of(paths, columns, task_class(task_name).schema, [recipe.data.valid])
        data = recipe.data.model_copy(update={"train": (c,), "valid": c, "test": c})
        recipe = recipe.model_copy(update={"task": task_name, "data": data})
    task = task_of(recipe)(recipe, trained.config, trained.words)
    task.like(trained.recipe)
    return task


def task_for_files(task: TaskName, tokenizer: Tokenizer | None, paths: Paths) -> TaskName:
    """Return the task to score a model by: one with a chat template reads conversations as well as plain text."""
    if task not in ("language", "conversation") or tokenizer is None or tokenizer.chat_template is None:
        return task
    return "conversation" if holds_conversations(paths[0]) else "language"


def read_pairs(folder: Path, say: Say, paths: Paths, columns: Columns) -> list[Record]:
    """Read (source, target) of every record of the user's files, for the translator in `folder`."""
    data = recipe_for(open_config(folder), open_usage(folder)).data
    assert data is not None
    c = corpus_of(paths, columns, TRANSLATION, [data.valid])
    data = data.model_copy(update={"train": (c,), "valid": c})  # its languages may be the names of columns
    for line in describe_headers(data, TRANSLATION):
        say(line)
    return held_out(corpus(c, data, "test", TRANSLATION), "test")


def task_name(folder: Path) -> str:
    """Return the task of a run or a model; if the model does not name one, it is derived from the head."""
    run = find_run(folder)
    if run is None:
        return open_usage(folder).task or task_for(open_config(folder))
    named = open_usage(folder).task if (run / "best").is_dir() else None
    return named or recipe_of(run).task  # best/ is missing, or of format 0.1
