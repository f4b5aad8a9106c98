"""Small trainings for the claims: a recipe on embedded data, the package's own loop, and the curves and scores that come out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from qkv.config import DataConfig, DecodeConfig, ModelConfig, Recipe, TrainConfig, TuneConfig
from qkv.config.strict import Strict, merge, validate
from qkv.config.task import AugmentConfig, CorruptConfig
from qkv.convert import folder as ours
from qkv.convert.detect import open_config
from qkv.errors import QkvError
from qkv.parts.state import State
from qkv.tasks.base import Task, Words, task_of, unused
from qkv.train.checkpoint import Training
from qkv.train.loop import Hooks, collate, prepare, train
from qkv.train.step import loss_module, step
from qkv.train.warm_start import start_from

Table = Mapping[str, Any]
TABLES: dict[str, type[Strict]] = {"data": DataConfig, "train": TrainConfig, "decode": DecodeConfig, "tune": TuneConfig,
                                   "corrupt": CorruptConfig, "augment": AugmentConfig}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "data": {"train": [{"grammar": 20_000}], "valid": {"grammar": 300}, "max_length": 64, "batch_tokens": 1024},
    "train": {"device": "cpu", "precision": "float32", "schedule": "constant", "warmup": 20, "label_smoothing": 0.0,
              "evaluate_every": "100%", "save_every": "100%", "learning_rate": 2e-3},
}  # fmt: skip
"""Default tables of a recipe for claims."""


@dataclass(frozen=True)
class TrainedNetwork:
    """The result of a short training."""

    network: Any
    task: Task
    losses: list[float]
    """Training loss per target, one for each update."""
    scores: list[dict[str, float]]
    """Scores of the held-out set at each evaluation, with `step`."""
    diverged: bool = False
    """Whether the loss or the gradient became NaN or infinite."""

    @property
    def last(self) -> dict[str, float]:
        """The scores at the end; those of a run that diverged are infinite (loss) or missing."""
        return {"loss": math.inf} if self.diverged else self.scores[-1]


def make_recipe(task: str, model: Table, data: Table | None = None, **settings: Any) -> Recipe:
    """Return a recipe of small sizes on embedded data; keyword arguments are the other tables of a recipe (train, tune ...)."""
    tables = {"data": data or {}, "train": {}} | settings
    merged = {name: {**DEFAULTS.get(name, {}), **table} for name, table in tables.items()}
    fields = {"dropout": 0.0} | dict(model)
    if start := merged.get("tune", {}).get("start"):
        fields = merge(open_config(start).model_dump(exclude_unset=True), fields)
    elif "image_size" not in fields:
        fields = {"vocab_size": merged["data"].get("vocab_size", 8000)} | fields
    return validate(Recipe, {"task": task, "model": validate(ModelConfig, fields, "model"), **{
        name: validate(TABLES[name], table, name) for name, table in merged.items()}})  # fmt: skip


WORDS: dict[tuple[str, str, str | None], Words] = {}
"""Vocabularies and labels that were made in this process, by task, data and the model that training starts from."""


def open_task(recipe: Recipe) -> Task:
    """Return the task of a recipe, its corpora open and its tokenizer trained (once for all recipes with the same data)."""
    assert recipe.data is not None
    unused(recipe)
    kind = task_of(recipe)
    kind.possible(recipe)
    key = recipe.task, recipe.data.model_dump_json(), recipe.tune.start
    if key not in WORDS:
        WORDS[key] = kind.prepare(recipe, lambda _: None)
    return kind(recipe, kind.fitted(recipe, WORDS[key]), WORDS[key])


def train_network(recipe: Recipe) -> TrainedNetwork:
    """Train a recipe in memory, with the loop of `qkv train`; a run that diverges ends there."""
    task = open_task(recipe)
    torch.manual_seed(recipe.train.seed)
    network = task.network()
    if recipe.tune.start:
        start_from(recipe.tune.start, task.config, task.kept(network), lambda _: None)
    return run_updates(prepare(network, recipe.train, recipe.tune), task, recipe)


def run_updates(training: Training, task: Task, recipe: Recipe) -> TrainedNetwork:
    """Run the loop; raise KeyboardInterrupt if a signal stopped it."""
    lines: list[dict[str, Any]] = []
    ignore = lambda *_: None  # noqa: E731
    hooks = Hooks(lambda line, evaluated: lines.append(line), ignore, ignore, ignore)
    try:
        ending, diverged = train(training, task, recipe.train, hooks), False
        if ending.signal:
            raise KeyboardInterrupt
    except QkvError as error:
        if " is nan" not in str(error) and " is inf" not in str(error):
            raise
        diverged = True
    scores = [
        {"step": line["step"]} | {k.removeprefix("valid_"): v for k, v in line.items() if k.startswith("valid_")}
        for line in lines if any(k.startswith("valid_") for k in line)
    ]  # fmt: skip
    return TrainedNetwork(training.network.eval(), task, [line["loss"] for line in lines], scores, diverged)


def save_network(trained: TrainedNetwork, folder: Path) -> None:
    """Write a trained network as a model folder, which other trainings can start from (tune.start)."""
    task = trained.task
    ours.save(folder, task.config, task.kept(trained.network), task.words.source, task.words.target, task.usage())


class TimedUpdates(NamedTuple):
    """Updates that were timed."""

    seconds: float
    updates: int
    targets: int


def time_updates(task: Task, network: nn.Module, batches: Sequence[list[Any]], enough: float,
                 clock: Callable[[], float] = time.monotonic) -> TimedUpdates:  # fmt: skip
    """Train a network on these batches in turn, for at least three updates and `enough` seconds.

    The first update, which also allocates memory, is not counted. clock: time.process_time measures the CPU time of this process,
    which depends on other processes far less than wall-clock time.
    """
    c = task.recipe.train
    t = prepare(network, c, task.recipe.tune)
    model = loss_module(t.network.train(), task.objective, t.half)
    carried = [State()] if task.carries else None
    targets, start = 0, 0.0
    for number in count():
        if number == 1:
            start, targets = clock(), 0
        batch = collate(task, batches[number % len(batches)], c.seed)
        targets += step(model, t.optimizer, [batch], c.clip, carried).count
        if number >= 3 and clock() - start > enough:
            break
    return TimedUpdates(clock() - start, number, targets)
