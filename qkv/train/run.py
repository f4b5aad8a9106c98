"""A run: a recipe and a folder that holds everything, so that the same command again goes on where it stopped.

recipe.toml            what was asked for
tokenizer.json         (and target_tokenizer.json, labels.json)
log.jsonl              one line per update: the same bytes whether or not the run was interrupted
checkpoint-0000500/    all that decides how training goes on; the newest one is kept, or `train.keep` of them. One whose
                       checksums are wrong is renamed checkpoint-0000500.damaged, and the run goes on from the one before
best/                  the model with the best score so far: what `qkv translate RUN` (classify, tag ...) opens
tensorboard/           the log as an event file
curves.svg             the log as a picture
README.md              the model card, when the run has ended; also in best/. What else there is then, results.py says
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qkv.config import ModelConfig, Recipe, load_recipe
from qkv.config.rules import config_warnings
from qkv.config.usage import Usage
from qkv.convert import folder as ours
from qkv.convert.detect import open_config
from qkv.convert.files import read_text, to_disk, write_text
from qkv.convert.manifest import seal
from qkv.data.corpora import describe_headers
from qkv.errors import ConfigError, FileError
from qkv.look.charts import curves
from qkv.tasks.base import Task, Words, task_of, unused
from qkv.tasks.predictions import example_inputs
from qkv.tasks.vocabulary import describe_vocabulary
from qkv.train import checkpoint, lora
from qkv.train.artifacts import FILES, has_words, open_words, save_words
from qkv.train.card import card
from qkv.train.checkpoint import Training
from qkv.train.extend import R, check_rules, extend
from qkv.train.input_checksums import check_data, check_network, check_words, word_checksums
from qkv.train.launch import local_workers, worker_count
from qkv.train.lock import locked
from qkv.train.loop import Hooks, ended, prepare, train
from qkv.train.report import Report, in_words
from qkv.train.results import finish
from qkv.train.tensorboard import Events
from qkv.train.warm_start import check_start, start_from
from qkv.train.workers import by_torchrun, is_first, rank_zero_first, world


@dataclass
class Run:
    """A run's folder and what is in it."""

    folder: Path
    recipe: Recipe
    config: ModelConfig
    words: Words
    training: Training
    task: Task
    workers: int = 1
    """How many processes have shared each batch."""
    why: str = ""
    """Why training ended, for now or for good."""
    results: dict[str, Any] = field(default_factory=dict)
    """Of a run that has ended for good: what results.json holds."""

    @property
    def stopped(self) -> bool:
        """Whether there is more to do: somebody stopped it."""
        return not ended(self.training.progress, self.recipe.train)


def run(recipe: Recipe, text: str, folder: Path, report: Report, workers: int | None = 1,
        changed_data: bool = False) -> Run:  # fmt: skip
    """Train what the recipe describes in `folder`, from the start or from where it stopped.

    `text` is the recipe as a file, which the folder keeps. `workers` processes share each batch; None chooses (launch.py).
    `changed_data`: go on although the training data are not those that the run began with.
    """
    if recipe.data is None or not recipe.data.train:
        raise ConfigError("there is nothing to learn from: name a corpus in data.train")
    if by_torchrun() and workers not in (None, 1):
        raise ConfigError(f"--workers {workers} starts workers, and torchrun has started some: leave it out")
    unused(recipe)
    task_of(recipe).possible(recipe)
    with locked(folder) if is_first() else nullcontext(), report.heartbeat():
        if is_first():
            checkpoint.set_aside_damaged(folder, report.say)
            check_rules(folder, recipe)
            claim(folder, recipe, text, lambda path: load_recipe(path, None, open_config), report.say)
        with local_workers(worker_count(recipe, folder) if workers is None else workers, recipe, folder):
            r = train_in_group(recipe, folder, report, changed_data)
        if is_first():
            conclude(r, report)
        return r


def train_in_group(recipe: Recipe, folder: Path, report: Report, changed_data: bool = False) -> Run:
    """One worker's part of a run: open it and train until it ends or is stopped."""
    r = open_run(recipe, folder, report, changed_data)
    try:
        r.why = ended(r.training.progress, recipe.train) or learn(r, report)
    finally:
        report.close()
    return r


def conclude(r: Run, report: Report) -> None:
    """Say why it ended, draw the curves and, of a run that has ended for good, score the best model and describe it."""
    report.end(r.why, r.task.dropped + r.task.batches.source.skipped)
    draw(r)
    if not r.stopped:
        r.results = finish(r, report)
        ours.replace_usage(r.folder / "best", usage_of(r))
        for place in (r.folder, r.folder / "best"):
            write_text(place / "README.md", card(r.task, r.results, r.folder.resolve().name))


def learn(r: Run, report: Report) -> str:
    """Train on from where the run stands; why it ended. What is logged goes to the event file too.

    Of several workers the first one tells and keeps; the others only have a part in the checkpoints.
    """
    if not is_first():
        silent = lambda _: None  # noqa: E731
        return train(r.training, r.task, r.recipe.train, Hooks(silent, silent, lambda t: store(r, t), silent))
    report.begin(r.task, r.training)
    past, seconds = read_log(r.folder), r.training.progress.seconds
    with open(r.folder / "log.jsonl", "a") as log, Events(r.folder / "tensorboard", past, seconds) as events:

        def write(line: dict[str, Any]) -> None:
            write_line(log, line)
            events.add(line)

        hooks = Hooks(write, report.tick, lambda t: store(r, t), lambda t: keep_best(r, t))
        return train(r.training, r.task, r.recipe.train, hooks)


def open_run(recipe: Recipe, folder: Path, report: Report, changed_data: bool = False) -> Run:
    """Begin the run in `folder`, or read it again where it stopped."""
    with rank_zero_first():
        folder.mkdir(parents=True, exist_ok=True)
        last = checkpoint.newest(folder)
        old_words, old_data = checkpoint.inputs_of(last) if last is not None else ({}, {})
        if last is not None:
            check_words(folder, old_words)
        words = known_words(recipe, folder, report)
    kind = task_of(recipe)
    config = kind.fitted(recipe, words)
    if last is not None:
        check_network(folder, config)
    task = kind(recipe, config, words)
    torch.manual_seed(recipe.train.seed)
    network = task.network()
    if recipe.tune.start and last is None:
        start_from(recipe.tune.start, config, task.kept(network), report.say if is_first() else lambda _: None)
    training = prepare(network, recipe.train, recipe.tune)
    if last is not None:
        checkpoint.load(last, training)
    if is_first() and not ended(training.progress, recipe.train):
        training.words = word_checksums(folder)
        training.data = check_data(task.batches.source, old_data, changed_data, report.say)
    if is_first():
        for line in [] if recipe.tune.start else config_warnings(config):
            report.say(line)
        for reason, count in task.left_out.items():
            report.say(f"left out of the valid set: {count:,} {reason}")
        for name, one in task.extra.items():  # what is wrong with them is said now
            for reason, count in one.left_out.items():
                report.say(f"left out of data.extra_valid.{name}: {count:,} {reason}")
        checkpoint.cut_log(folder / "log.jsonl", training.progress.step)
    return Run(folder, recipe, config, words, training, task, world())


def claim(folder: Path, recipe: R, text: str, read: Callable[[Path], R], say: Callable[[str], None]) -> None:
    """Make the folder that of this recipe, whose `text` is kept; a run that is there goes on with it, where extend.py allows.
    Before the first checkpoint nothing is kept of an earlier attempt: it may have failed for its recipe or its text, which
    were mended since. What is not a run's is not touched."""
    kept, fresh = folder / "recipe.toml", checkpoint.newest(folder) is None
    if not kept.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise FileError(f"{folder} holds something else than a run: choose a new folder with --out")
    if kept.exists() and read_text(kept) != text and not (fresh and not (folder / "best").exists()):
        extend(folder, recipe, read, say)
    for name in (*FILES, "log.jsonl") if fresh else ():
        (folder / name).unlink(missing_ok=True)
    write_text(kept, text)


def known_words(recipe: Recipe, folder: Path, report: Report) -> Words:
    """Read the folder's vocabulary and labels, or make them: learned, or those of a given model, which is announced."""
    if not has_words(folder):
        for line in describe_headers(recipe.data, task_of(recipe).schema) if recipe.data else ():
            report.say(line)
        if recipe.tune.start:
            check_start(recipe, report.say)
        words = task_of(recipe).prepare(recipe, report.say)
        given = recipe.data and (recipe.data.vocabulary or recipe.tune.start)
        if given and words.source is not None:
            report.say(f"vocabulary of {given}: {describe_vocabulary(words.source, words.target)}")
        save_words(folder, words)
    return open_words(folder)


def write_line(log: Any, line: dict[str, Any]) -> None:
    log.write(json.dumps(line) + "\n")
    log.flush()


def read_log(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def draw(r: Run) -> None:
    """curves.svg from the log. Smoothed labels cost more even where every word is right, so the two losses are told apart."""
    lines, smoothing, metric = read_log(r.folder), r.task.smoothing, r.task.metric
    training = f"training, labels smoothed by {smoothing:g}" if smoothing else "training"
    of = lambda name: [(line["step"], line[name]) for line in lines if name in line]  # noqa: E731
    names = ("", *(f"{name}_" for name in r.task.data.extra_valid))
    held = lambda metric: {f"held out {name[:-1]}".rstrip(): of(f"valid_{name}{metric}") for name in names}  # noqa: E731
    panels = {"loss": {training: of("loss")} | held("loss")}
    if metric != "loss":
        panels[in_words(metric)] = held(metric)
    write_text(r.folder / "curves.svg", curves(panels, "Training", "updates"))


def store(r: Run, t: Training) -> None:
    """A new checkpoint; when it is whole, those go that are older than the ones to keep. Its log is on the disk before it."""
    if is_first():
        to_disk(r.folder / "log.jsonl")
    checkpoint.save(r.folder / f"checkpoint-{t.progress.step:07d}", t)
    if is_first():
        interrupted, whole = r.folder.glob(".checkpoint-*"), checkpoint.all_of(r.folder)
        for old in (*interrupted, *whole[: -r.recipe.train.keep]):
            shutil.rmtree(old, ignore_errors=True)


def usage_of(r: Run) -> Usage:
    """Return what best/ says about the use of the model, with example inputs of the run's test set."""
    return r.task.usage().model_copy(update={"examples": example_inputs(r.folder)})


def keep_best(r: Run, t: Training) -> None:
    """`best/` with the weights that the network has now; the old one stays until the new one is whole."""
    network = r.task.kept(t.network)
    plain = lora.plain(r.config, network)
    ours.save(r.folder / "best", r.config, plain, r.words.source, r.words.target, r.task.usage())
    if lora.updates(network):
        lora.save(r.folder / "best", network)
        seal(r.folder / "best", ours.SEALED)
