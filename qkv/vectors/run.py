"""A run of word2vec: a recipe and a folder that holds everything, so that the same command resumes it.

recipe.toml            the settings
vocabulary.json        the words and their counts
corpus.ids             the text as ids; removed at the end of the run
log.jsonl              one line per part of the text
checkpoint-0000116/    input and output vectors and the progress: after each epoch, and when interrupted; `vectors.keep` of them
best/                  the word vectors, which `qkv nearest RUN` and `qkv analogy RUN` open
tensorboard/ curves.svg README.md results.json    as in other runs, at the end
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.config.vectors import VectorsRecipe, load_vectors_recipe
from qkv.convert.files import new_folder, read_json, read_tensors, to_disk, write_json, write_tensors, write_text
from qkv.convert.manifest import seal, sha256
from qkv.errors import FileError, QkvError
from qkv.look.charts import curves
from qkv.train import checkpoint
from qkv.train.lock import lock_folder
from qkv.train.loop import catch_signals
from qkv.train.report import Report
from qkv.train.run import claim
from qkv.train.training_log import TrainingLog, cut_log, read_log
from qkv.vectors import kernel, store
from qkv.vectors.card import card, results
from qkv.vectors.corpus import damage_error, is_valid, next_part, open_ids, sentences, sources, write_ids
from qkv.vectors.evaluate import check_evaluation_files
from qkv.vectors.model import Word2Vec
from qkv.vectors.report import Bar
from qkv.vectors.state import VectorsProgress, VectorsRun
from qkv.vectors.vocabulary import WordCounts, count_words

PART = 100_000
"""Ids per training step and line of the log."""
SAVE_SECONDS = 600.0
"""Maximum time between checkpoints: an epoch may take hours."""
IDS = "corpus.ids"


def run(recipe: VectorsRecipe, text: str, folder: Path, report: Report) -> VectorsRun:
    """Train the word vectors of a recipe (`text` is its source) in `folder`, from the start or from the last checkpoint."""
    with lock_folder(folder):
        r = open_run(recipe, text, folder, report)
        if not r.ended:
            learn(r, report)
        if r.ended:
            r.why = "all epochs are done"
        report.say(f"training ended: {r.why}")
        if r.ended:
            finish(r)
    return r


# --- start or resume


def open_run(recipe: VectorsRecipe, text: str, folder: Path, report: Report) -> VectorsRun:
    """Create the folder, or read it to resume."""
    checkpoint.set_aside_damaged_checkpoints(folder, report.say)
    claim(folder, recipe, text, load_vectors_recipe, report.say)
    last, texts = checkpoint.newest(folder), sources(recipe.data)
    if last is None:
        check_evaluation_files(recipe.vectors)
        (folder / IDS).unlink(missing_ok=True)
        report.say("counting words")
        vocabulary = count_words(sentences(texts, recipe.data), recipe.vectors.min_count, recipe.vectors.max_words)
        store.write_vocabulary(folder, vocabulary.words, vocabulary.counts.tolist())
    else:
        check_files(folder, read_progress(last).files)
        vocabulary = read_words(folder)
    progress = read_progress(last) if last is not None else None
    if (progress is None or progress.epoch < recipe.vectors.epochs) and not (folder / IDS).exists():
        write_ids(folder / IDS, sentences(texts, recipe.data), vocabulary)
    if progress is None:
        skipped = sum((source.skipped for source in texts), Counter[str]())
        files = {name: sha256(folder / name) for name in (store.WORDS, IDS)}
        progress = VectorsProgress(len(open_ids(folder / IDS)), skipped=dict(skipped.most_common()), files=files)
    else:
        check_files(folder, progress.files)
    r = VectorsRun(folder, recipe, vocabulary, Word2Vec.create(recipe.vectors, vocabulary, progress.length), progress)
    if last is not None:
        load_weights(last, r.model)
    cut_log(folder, progress.step)
    return r


def check_files(folder: Path, began: dict[str, str]) -> None:
    """Raise an error where vocabulary or ids are not those that the run started with (older checkpoints have no checksums)."""
    if store.WORDS in began and not (folder / store.WORDS).is_file():
        raise FileError(
            f"{folder} lacks {store.WORDS}, which its checkpoints need: restore it, or start a new run with --out NEW"
        )
    for name, checksum in began.items():
        if (folder / name).is_file() and sha256(folder / name) != checksum:
            advice = "restore it, or start a new run with --out NEW"
            changed = FileError(f"{folder / name} has changed since this run started: {advice}")
            raise damage_error(folder / name) if name == IDS else changed


def read_words(folder: Path) -> WordCounts:
    """Read the vocabulary that was counted at the start of the run."""
    words, counts = store.read_vocabulary(folder)
    if counts is None:
        raise FileError(f"{folder / store.WORDS} has no counts: remove {folder} to start again")
    return WordCounts(words, np.array(counts, dtype=np.int64))


def read_progress(folder: Path) -> VectorsProgress:
    try:
        return VectorsProgress(**read_json(folder / checkpoint.NUMBERS))
    except TypeError as error:
        raise wrong_checkpoint(folder, f" ({error})") from None


def wrong_checkpoint(folder: Path, why: str = "") -> FileError:
    return FileError(f"{folder} is not a checkpoint of this run{why}: remove it, or train in another folder")


def load_weights(folder: Path, m: Word2Vec) -> None:
    tensors = read_tensors(folder / checkpoint.TENSORS)
    for name, mine in (("input", m.input), ("output", m.output)):
        if name not in tensors or tuple(tensors[name].shape) != mine.shape:
            raise wrong_checkpoint(folder)
        mine[:] = tensors[name].numpy()


# --- training


def learn(r: VectorsRun, report: Report) -> None:
    """Train until all epochs are done, or until interrupted."""
    kernel.library()  # compile before the clock starts
    p, row = r.progress, open_ids(r.folder / IDS)
    if len(row) != p.length:
        raise damage_error(r.folder / IDS)
    start, saved = time.monotonic() - p.seconds, time.monotonic()
    with catch_signals() as signals, TrainingLog(r.folder, p.seconds) as log, Bar(r, report) as bar:
        while not r.ended:
            line, words = train_part(r, row)
            p.seconds = time.monotonic() - start
            log.add(line)
            bar.tick(words)
            if p.place == 0:
                bar.epoch()
            if p.place == 0 or signals or time.monotonic() - saved > SAVE_SECONDS:
                save_checkpoint(r)
                saved = time.monotonic()
            if signals and not r.ended:
                r.why, r.signal = f"stopped by {signals[0].name}; run the same command again to continue", signals[0]
                return


def train_part(r: VectorsRun, row: np.ndarray) -> tuple[dict[str, Any], int]:
    """Train on the next part of the text; return its line of the log and its number of words."""
    p, m = r.progress, r.model
    ids = next_part(row, p.place, PART)
    if not is_valid(ids, len(r.vocabulary.words)):
        raise damage_error(r.folder / IDS)
    total, count = kernel.learn(m, ids, p.epoch, p.place)
    if not math.isfinite(total):
        raise QkvError(f"the loss is {total}: start a new run with a lower vectors.learning_rate")
    if p.place == 0:
        p.losses.append([0.0, 0])
    p.losses[-1] = [p.losses[-1][0] + total, p.losses[-1][1] + count]
    p.step += 1
    line = {"step": p.step, "epoch": p.epoch, "learning_rate": m.rate(p.epoch, p.place)}
    p.place += len(ids)
    if p.place >= len(row):
        p.epoch, p.place = p.epoch + 1, 0
        if p.losses[-1][1] == 0:
            advice = "raise vectors.sample, or set it to 0 for no subsampling"
            raise QkvError(f"subsampling left no two neighbouring words: {advice}")
    return line | ({"loss": total / count} if count else {}), int((ids >= 0).sum())


def save_checkpoint(r: VectorsRun) -> None:
    """Write a checkpoint, then remove older ones. The log and, after an epoch, best/ are written first: best/ is never older than
    the checkpoint."""
    to_disk(r.folder / "log.jsonl")
    if r.progress.place == 0:
        r.vectors.save(r.folder / "best")
    with new_folder(r.folder / f"checkpoint-{r.progress.step:07d}") as new:
        tensors = {name: torch.from_numpy(getattr(r.model, name)) for name in ("input", "output")}
        write_tensors(new / checkpoint.TENSORS, tensors)
        write_json(new / checkpoint.NUMBERS, asdict(r.progress))
        seal(new, (checkpoint.TENSORS, checkpoint.NUMBERS))
    checkpoint.remove_old(r.folder, r.recipe.vectors.keep)


def finish(r: VectorsRun) -> None:
    """Write curves, scores and the card; remove the ids."""
    lines = read_log(r.folder)
    points = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    write_text(r.folder / "curves.svg", curves({"loss": {"training": points}}, "Training", f"parts of {PART:,} words"))
    place = r.folder / "results.json"
    r.results = read_json(place) if place.exists() else results(r)
    for folder in (r.folder, r.folder / "best"):
        write_text(folder / "README.md", card(r, r.folder.resolve().name))
    write_json(place, r.results)
    (r.folder / IDS).unlink(missing_ok=True)
