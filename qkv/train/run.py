"""A run: a recipe and a folder that holds everything, so that the same command again goes on where it stopped.

recipe.toml            what was asked for
tokenizer.json         (and target_tokenizer.json)
log.jsonl              one line per update: the same bytes whether or not the run was interrupted
checkpoint-000500/     all that decides how training goes on; the newest one is kept
best/                  the model with the best score so far: what `qkv translate RUN` opens
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.config import ModelConfig, Recipe
from qkv.convert import folder as ours
from qkv.convert.files import read_text, write_text
from qkv.errors import FileError
from qkv.look.figures import curves
from qkv.models.build import build
from qkv.text.tokenizer import Tokenizer
from qkv.train import checkpoint
from qkv.train.checkpoint import Training
from qkv.train.loop import Hooks, prepare, train
from qkv.train.report import Report
from qkv.train.translation import TranslationTask, fitted, learn_tokenizers


@dataclass
class Run:
    """A run's folder and what is in it."""

    folder: Path
    recipe: Recipe
    config: ModelConfig
    source: Tokenizer
    target: Tokenizer
    training: Training
    task: TranslationTask


def run(recipe: Recipe, text: str, folder: Path, report: Report) -> Run:
    """Train what the recipe (its `text` is kept) describes in `folder`, from the start or from where it stopped."""
    r = open_run(recipe, text, folder, report)
    report.begin(r.config, recipe.train, r.training)
    with open(folder / "log.jsonl", "a") as log:
        hooks = Hooks(lambda line: write_line(log, line), report.tick, lambda t: store(r, t), lambda t: keep_best(r, t))
        why = train(r.training, r.task, recipe.train, hooks)
    report.end(why, r.task.encode.dropped)
    draw(folder)
    return r


def open_run(recipe: Recipe, text: str, folder: Path, report: Report) -> Run:
    """Make the folder or read it again."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "recipe.toml"
    if kept.exists() and read_text(kept) != text:
        raise FileError(f"{folder} holds a run of another recipe: choose another folder, or remove it to start anew")
    write_text(kept, text)
    assert recipe.data is not None
    source, target = tokenizers(recipe, folder, report)
    config = fitted(recipe.model, source, target)
    torch.manual_seed(recipe.train.seed)
    training = prepare(build(config), recipe.train)
    task = TranslationTask(recipe, config, source, target)
    last = checkpoint.newest(folder)
    if last is not None:
        checkpoint.load(last, training)
    checkpoint.cut_log(folder / "log.jsonl", training.progress.step)
    return Run(folder, recipe, config, source, target, training, task)


def tokenizers(recipe: Recipe, folder: Path, report: Report) -> tuple[Tokenizer, Tokenizer]:
    """Those of the folder, or new ones."""
    assert recipe.data is not None
    paths = [folder / "tokenizer.json", folder / ("tokenizer.json" if recipe.data.joint else "target_tokenizer.json")]
    if not all(path.exists() for path in paths):
        report.say("learning the vocabulary")
        for path, tokenizer in zip(paths[::-1], learn_tokenizers(recipe.data)[::-1], strict=True):
            write_text(path, tokenizer.to_json())
    opened = {path: Tokenizer.from_json(read_text(path), None, str(path)) for path in paths}
    return opened[paths[0]], opened[paths[1]]


def write_line(log: Any, line: dict[str, Any]) -> None:
    log.write(json.dumps(line) + "\n")
    log.flush()


def draw(folder: Path) -> None:
    """curves.svg from the log."""
    lines = [json.loads(line) for line in read_text(folder / "log.jsonl").splitlines()]
    of = lambda name: [(line["step"], line[name]) for line in lines if name in line]  # noqa: E731
    panels = {
        "loss per token": {"training": of("loss"), "held out": of("valid_loss")},
        "BLEU": {"held out": of("valid_bleu")},
    }
    write_text(folder / "curves.svg", curves(panels, "Training", "updates"))


def store(r: Run, t: Training) -> None:
    """A new checkpoint; the older ones go when it is whole."""
    new = r.folder / f"checkpoint-{t.progress.step:07d}"
    checkpoint.save(new, t)
    for old in (*r.folder.glob("checkpoint-*"), *r.folder.glob(".checkpoint-*")):  # the latter were interrupted
        if old != new:
            shutil.rmtree(old, ignore_errors=True)


def keep_best(r: Run, t: Training) -> None:
    """`best/` with the weights that the network has now; the old one stays until the new one is whole."""
    ours.save(r.folder / "best", r.config, t.network, r.source)
