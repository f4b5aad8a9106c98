"""A run: a recipe and a folder that contains its whole state, so that the same command resumes it.

recipe.toml            the recipe
tokenizer.json         (and target_tokenizer.json, labels.json)
log.jsonl              one line per update: the same bytes whether or not the run was interrupted
checkpoint-0000500/    the state of training; the newest one is kept, or `train.keep` of them. One whose checksums are
                       wrong is renamed checkpoint-0000500.damaged, and the run continues from the one before
best/                  the model with the best score so far: what `qkv translate RUN` (classify, tag ...) loads
tensorboard/           the log as an event file
curves.svg             the log as a figure
README.md              the model card, when the run has ended; also in best/. results.py lists the other files
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qkv.config import ModelConfig, Recipe, load_recipe
from qkv.config.rules import config_warnings, impossible_training
from qkv.config.usage import Usage
from qkv.convert import folder as ours
from qkv.convert.detect import open_config
from qkv.convert.files import read_text, to_disk, write_text
from qkv.convert.manifest import seal
from qkv.data.corpora import describe_headers
from qkv.distributed import (
    broadcast_data,
    is_rank_zero,
    launched_by_agent,
    process_group,
    rank_zero_first,
    restart_count,
    world_size,
)
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
from qkv.train.launch import RESTARTS, launch, worker_count
from qkv.train.lock import lock_folder
from qkv.train.loop import Ending, Hooks, end_reason, prepare, seed_of, train
from qkv.train.outcome import RunOutcome
from qkv.train.report import Report, in_words
from qkv.train.results import finish
from qkv.train.sharding import replica
from qkv.train.training_log import NAME, TrainingLog, cut_log, read_log
from qkv.train.warm_start import check_start, start_from


@dataclass(kw_only=True)
class Run(RunOutcome):
    """A run that is open in this process."""

    config: ModelConfig
    words: Words
    training: Training
    task: Task
    workers: int = 1
    """How many processes share each batch."""


def run(recipe: Recipe, text: str, folder: Path, report: Report, workers: int | None = 1,
        changed_data: bool = False, max_restarts: int | None = None) -> RunOutcome:  # fmt: skip
    """Train a recipe in `folder`, from the start or from where it stopped.

    text: the recipe as TOML, which is stored in the folder.
    workers: processes that share each batch; None = chosen by launch.worker_count.
    changed_data: continue although the training data have changed since the run began.
    max_restarts: how often the workers may be restarted when one is lost; None = launch.RESTARTS.
    """
    if launched_by_agent() and (workers not in (None, 1) or max_restarts is not None):
        raise ConfigError(
            "torchrun has started the workers already: remove --workers, and pass --max-restarts to torchrun"
        )
    check_recipe(recipe)
    with lock_folder(folder) if is_rank_zero() else nullcontext():
        if is_rank_zero():
            checkpoint.set_aside_damaged_checkpoints(folder, report.say)
            check_rules(folder, recipe)
            claim(folder, recipe, text, lambda path: load_recipe(path, None, open_config), report.say)
        count = worker_count(recipe, folder) if workers is None else workers
        if count > 1:
            return launch(
                recipe, folder, count, RESTARTS if max_restarts is None else max_restarts, report, changed_data
            )
        return train_as_worker(recipe, folder, report, changed_data)


def train_as_worker(
    recipe: Recipe, folder: Path, report: Report, changed_data: bool = False, threads: int | None = None
) -> Run:
    """Train alone, or as one of several workers; then rank 0 scores the model with `threads` threads."""
    with report.heartbeat():
        with process_group(recipe.train.worker_timeout, recipe.train.idle_timeout):
            r = train_in_group(recipe, folder, report, changed_data)
        if is_rank_zero():
            torch.set_num_threads(threads or torch.get_num_threads())
            conclude(r, report)
    return r


def check_recipe(recipe: Recipe) -> None:
    """ConfigError for a recipe that can never be trained; no data are read."""
    if recipe.data is None or not recipe.data.train:
        raise ConfigError("no training data: name a corpus in data.train")
    if recipe.tune.lora_rank and not (recipe.tune.start or recipe.tune.lora_from_scratch):
        raise ConfigError(
            f"tune.lora_rank = {recipe.tune.lora_rank} without tune.start would adapt random weights: name the model to adapt in "
            "tune.start, or set tune.lora_from_scratch = true"
        )
    if problems := impossible_training(recipe.model, recipe.train, recipe.tune.lora_rank > 0):
        raise ConfigError("; ".join(problems))
    unused(recipe)
    task_of(recipe).possible(recipe)


def train_in_group(recipe: Recipe, folder: Path, report: Report, changed_data: bool = False) -> Run:
    """Open a run and train until it ends or is stopped, as one of its workers."""
    r = open_run(recipe, folder, report, changed_data)
    try:
        done = end_reason(r.training.progress, recipe.train)
        r.ending = Ending(done) if done else learn(r, report)
        checkpoint.finish_saving(r.training)
    except BaseException:
        with suppress(BaseException):  # the first error is the one to report
            checkpoint.finish_saving(r.training)
        raise
    finally:
        report.close()
    return r


def conclude(r: Run, report: Report) -> None:
    """Report why training ended and draw the curves; if it ended for good, score the best model and write its card."""
    report.end(r.why, r.task.dropped + r.task.batches.source.skipped)
    draw(r)
    if not r.ending.signal:
        r.results = finish(r, report)
        ours.replace_usage(r.folder / "best", usage_of(r))
        for place in (r.folder, r.folder / "best"):
            write_text(place / "README.md", card(r.task, r.results, r.folder.resolve().name))
        r.use = r.task.use(shlex.quote(str(r.folder)))[0]


def learn(r: Run, report: Report) -> Ending:
    """Train from the current state of the run. Rank 0 logs, reports and stores the best model; all workers save checkpoints."""
    if not is_rank_zero():
        silent = lambda *_: None  # noqa: E731
        return train(r.training, r.task, r.recipe.train, Hooks(silent, silent, lambda t: store(r, t), silent))
    report.begin(r.task, r.training)
    with TrainingLog(r.folder, r.training.progress.seconds) as log:
        hooks = Hooks(log.add, report.tick, lambda t: store(r, t), lambda network: keep_best(r, network), report.say)
        return train(r.training, r.task, r.recipe.train, hooks)


def open_run(recipe: Recipe, folder: Path, report: Report, changed_data: bool = False) -> Run:
    """Begin the run in `folder`, or load its newest checkpoint."""
    last = checkpoint_to_load(folder, report)
    with rank_zero_first():
        folder.mkdir(parents=True, exist_ok=True)
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
        start_from(recipe.tune.start, config, task.kept(network), report.say if is_rank_zero() else lambda _: None)
    training = prepare(network, recipe.train, recipe.tune)
    if last is not None:
        checkpoint.load(last, training)
        change_workers(checkpoint.workers_of(last), recipe.train.seed, training, report)
    if is_rank_zero() and not end_reason(training.progress, recipe.train):
        training.words = word_checksums(folder)
        training.data = check_data(task.batches.source, old_data, changed_data, report.say)
    if is_rank_zero():
        report_warnings(recipe, config, task, report)
        cut_log(folder, training.progress.step)
    return Run(
        folder,
        recipe,
        training.progress,
        config=config,
        words=words,
        training=training,
        task=task,
        workers=world_size(),
    )


def checkpoint_to_load(folder: Path, report: Report) -> Path | None:
    """Return the newest intact checkpoint of a run: on all workers the one that rank 0 finds.

    On a shared file system such as NFS, another machine may still see an older listing of the folder.
    """
    name = None
    if is_rank_zero():
        if restart_count():
            checkpoint.set_aside_damaged_checkpoints(folder, report.say)
        last = checkpoint.newest(folder)
        name = None if last is None else last.name
    name = broadcast_data(name)
    return None if name is None else folder / name


def change_workers(before: int, seed: int, t: Training, report: Report) -> None:
    """Continue with another number of workers than wrote the checkpoint: each gets a new random state."""
    if before == world_size():
        return
    torch.manual_seed(seed_of(seed, replica(t), world_size(), t.progress.step))
    if is_rank_zero():
        report.say(
            f"continuing with {world_size()} workers instead of {before}: equal up to rounding and dropout masks"
        )


def report_warnings(recipe: Recipe, config: ModelConfig, task: Task, report: Report) -> None:
    """Report what is unusual about the configuration and the held-out sets."""
    for line in [] if recipe.tune.start else config_warnings(config):
        report.say(line)
    for reason, count in task.left_out.items():
        report.say(f"left out of the valid set: {count:,} {reason}")
    for name, one in task.extra.items():  # problems are reported now
        for reason, count in one.left_out.items():
            report.say(f"left out of data.extra_valid.{name}: {count:,} {reason}")


def claim(folder: Path, recipe: R, text: str, read: Callable[[Path], R], say: Callable[[str], None]) -> None:
    """Write the recipe's `text` into the folder; an existing run continues with it, if extend.py allows.

    Before the first checkpoint nothing of an earlier attempt is kept, since it may have failed because of its recipe or data.
    FileError for a folder with other contents.
    """
    kept, fresh = folder / "recipe.toml", checkpoint.newest(folder) is None
    if not kept.exists() and not fresh:
        raise FileError(
            f"{folder} holds a run that lacks recipe.toml: put it back, or choose a new folder with --out NEW"
        )
    if not kept.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise FileError(f"{folder} contains files that are not a run: choose a new folder with --out")
    if kept.exists() and read_text(kept) != text and not (fresh and not (folder / "best").exists()):
        extend(folder, recipe, read, say)
    for name in (*FILES, NAME) if fresh else ():
        (folder / name).unlink(missing_ok=True)
    write_text(kept, text)


def known_words(recipe: Recipe, folder: Path, report: Report) -> Words:
    """Read the folder's vocabulary and labels, or create them: trained, or copied from a given model, which is reported."""
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


def draw(r: Run) -> None:
    """Draw curves.svg from the log. The training loss with label smoothing has its own label: it is above 0 for a perfect model."""
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
    """Write a checkpoint, after the log; then delete those that are older than the ones to keep."""
    if is_rank_zero():
        to_disk(r.folder / NAME)
    remove_old = lambda: checkpoint.remove_old(r.folder, r.recipe.train.keep)  # noqa: E731
    checkpoint.save(r.folder / f"checkpoint-{t.progress.step:07d}", t, remove_old)


def usage_of(r: Run) -> Usage:
    """Return what best/ says about the use of the model, with example inputs of the run's test set."""
    return r.task.usage().model_copy(update={"examples": example_inputs(r.folder)})


def keep_best(r: Run, network: nn.Module) -> None:
    """Save the network in best/; the old one stays until the new one is complete."""
    network = r.task.kept(network)
    plain = lora.plain(r.config, network)
    ours.save(r.folder / "best", r.config, plain, r.words.source, r.words.target, r.task.usage())
    if lora.updates(network):
        lora.save(r.folder / "best", network)
        seal(r.folder / "best", ours.SEALED)
