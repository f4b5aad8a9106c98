"""A run of word2vec: a recipe and a folder that holds everything, so that the same command again goes on where it stopped.

recipe.toml            what was asked for
vocabulary.json        the words and their counts
corpus.ids             the text as a row of numbers; removed when the run has ended
log.jsonl              one line per part of the text
checkpoint-0000116/    both vectors of each word, and how far it is: after each pass, and where it was stopped
best/                  the word vectors: what `qkv nearest RUN` and `qkv analogy RUN` open
tensorboard/ curves.svg README.md results.json    as in other runs, when it has ended
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
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
from qkv.train.lock import locked
from qkv.train.loop import stopping
from qkv.train.report import Report
from qkv.train.run import claim, read_log, write_line
from qkv.train.tensorboard import Events
from qkv.vectors import kernel, store
from qkv.vectors.card import card, results
from qkv.vectors.corpus import damaged, open_ids, part, sentences, sound, sources, write_ids
from qkv.vectors.evaluate import look_through
from qkv.vectors.model import Word2Vec
from qkv.vectors.report import Bar
from qkv.vectors.space import Vectors
from qkv.vectors.vocabulary import Vocabulary, counted

PART = 100_000
"""Ids that are learned between two looks at the clock."""
SAVE_SECONDS = 600.0
"""A pass may take hours: a checkpoint at least this often."""
IDS = "corpus.ids"


@dataclass
class Progress:
    """How far it is."""

    length: int
    """Ids of the text."""
    step: int = 0
    """Parts that were learned."""
    epoch: int = 0
    place: int = 0
    """The next part is from here, in this pass."""
    seconds: float = 0.0
    losses: list[list[float]] = field(default_factory=list)
    """Of each pass: the sum of all losses, and of how many predictions."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Records of the text that could not be read, by reason."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the vocabulary and of the row of ids."""

    @property
    def loss(self) -> float:
        """Mean per prediction in the pass that was last worked on."""
        total, count = self.losses[-1] if self.losses else (0.0, 0)
        return total / max(count, 1)


@dataclass
class VectorsRun:
    """A run's folder and what is in it."""

    folder: Path
    recipe: VectorsRecipe
    vocabulary: Vocabulary
    model: Word2Vec
    progress: Progress
    why: str = ""
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.progress.epoch >= self.recipe.vectors.epochs

    @property
    def vectors(self) -> Vectors:
        """What has been learned so far."""
        both = (torch.from_numpy(np.ascontiguousarray(x)) for x in (self.model.input, self.model.output))
        return Vectors(self.vocabulary.words, next(both), self.vocabulary.counts.tolist(), next(both))


def run(recipe: VectorsRecipe, text: str, folder: Path, report: Report) -> VectorsRun:
    """Learn what the recipe (its `text` is kept) describes in `folder`, from the start or from where it stopped."""
    with locked(folder):
        r = open_run(recipe, text, folder, report)
        if not r.ended:
            learn(r, report)
        else:
            r.why = "all passes are done"
        report.say(f"training ended: {r.why}")
        if r.ended:
            conclude(r)
    return r


# --- beginning, or going on


def open_run(recipe: VectorsRecipe, text: str, folder: Path, report: Report) -> VectorsRun:
    """Make the folder or read it again."""
    checkpoint.set_aside_damaged(folder, report.say)
    claim(folder, recipe, text, load_vectors_recipe, report.say)
    last, texts = checkpoint.newest(folder), sources(recipe.data)
    if last is None:
        look_through(recipe.vectors)
        (folder / IDS).unlink(missing_ok=True)
        report.say("counting the words of the text")
        vocabulary = counted(sentences(texts, recipe.data), recipe.vectors.min_count, recipe.vectors.max_words)
        store.write_vocabulary(folder, vocabulary.words, vocabulary.counts.tolist())
    else:
        vocabulary = known_words(folder)
    progress = read_progress(last) if last is not None else None
    if (progress is None or progress.epoch < recipe.vectors.epochs) and not (folder / IDS).exists():
        write_ids(folder / IDS, sentences(texts, recipe.data), vocabulary)
    if progress is None:
        skipped = sum((source.skipped for source in texts), Counter[str]())
        files = {name: sha256(folder / name) for name in (store.WORDS, IDS)}
        progress = Progress(len(open_ids(folder / IDS)), skipped=dict(skipped.most_common()), files=files)
    else:
        check_files(folder, progress.files)
    r = VectorsRun(folder, recipe, vocabulary, Word2Vec.begin(recipe.vectors, vocabulary, progress.length), progress)
    if last is not None:
        load(last, r.model)
    checkpoint.cut_log(folder / "log.jsonl", progress.step)
    return r


def check_files(folder: Path, began: dict[str, str]) -> None:
    """FileError where vocabulary or text are not those that the run began with; checkpoints of older versions do not know."""
    for name, checksum in began.items():
        if (folder / name).is_file() and sha256(folder / name) != checksum:
            raise (
                damaged(folder / name)
                if name == IDS
                else FileError(
                    f"{folder / name} is not the file that this run began with: put that back, or start a new run with --out NEW"
                )
            )


def known_words(folder: Path) -> Vocabulary:
    """Those that were counted when the run began."""
    words, counts = store.read_vocabulary(folder)
    if counts is None:
        raise FileError(f"{folder / store.WORDS} has no counts: remove {folder} to start anew")
    return Vocabulary(words, np.array(counts, dtype=np.int64))


def read_progress(folder: Path) -> Progress:
    try:
        return Progress(**read_json(folder / checkpoint.NUMBERS))
    except TypeError as error:
        raise FileError(
            f"{folder} is not a checkpoint of this run ({error}): remove it, or train in another folder"
        ) from None


def load(folder: Path, m: Word2Vec) -> None:
    tensors = read_tensors(folder / checkpoint.TENSORS)
    for name, mine in (("input", m.input), ("output", m.output)):
        if name not in tensors or tuple(tensors[name].shape) != mine.shape:
            raise FileError(f"{folder} is not a checkpoint of this run: remove it, or train in another folder")
        mine[:] = tensors[name].numpy()


# --- learning


def learn(r: VectorsRun, report: Report) -> None:
    """Part after part until all passes are done or somebody stops it."""
    kernel.library()  # compiled before the clock starts
    p, row = r.progress, open_ids(r.folder / IDS)
    if len(row) != p.length:
        raise damaged(r.folder / IDS)
    past, start, saved = read_log(r.folder), time.monotonic() - p.seconds, time.monotonic()
    with stopping() as noted, open(r.folder / "log.jsonl", "a") as log, Bar(r, report) as bar, \
            Events(r.folder / "tensorboard", past, p.seconds) as events:  # fmt: skip
        while not r.ended:
            line, words = one_part(r, row)
            p.seconds = time.monotonic() - start
            write_line(log, line)
            events.add(line)
            bar.tick(words)
            if p.place == 0:
                bar.epoch()
            if p.place == 0 or noted or time.monotonic() - saved > SAVE_SECONDS:
                keep(r)
                saved = time.monotonic()
            if noted and not r.ended:
                r.why = f"stopped by {noted[0]}; run the same command again to go on"
                return
    r.why = "all passes are done"


def one_part(r: VectorsRun, row: np.ndarray) -> tuple[dict[str, Any], int]:
    """Learn the next part of the text: what the log says of it, and how many words it has."""
    p, m = r.progress, r.model
    ids = part(row, p.place, PART)
    if not sound(ids, len(r.vocabulary.words)):
        raise damaged(r.folder / IDS)
    total, count = kernel.learn(m, ids, p.epoch, p.place)
    if not math.isfinite(total):
        raise QkvError(f"the loss is {total}: train in another folder with a lower vectors.learning_rate")
    if p.place == 0:
        p.losses.append([0.0, 0])
    p.losses[-1] = [p.losses[-1][0] + total, p.losses[-1][1] + count]
    p.step += 1
    line = {"step": p.step, "epoch": p.epoch, "learning_rate": m.rate(p.epoch, p.place)}
    p.place += len(ids)
    if p.place >= len(row):
        p.epoch, p.place = p.epoch + 1, 0
        if p.losses[-1][1] == 0:
            raise QkvError("subsampling left no two words beside each other: set vectors.sample higher, or 0 for none")
    return line | ({"loss": total / count} if count else {}), int((ids >= 0).sum())


def keep(r: VectorsRun) -> None:
    """A checkpoint, the only one when it is whole. The log is on the disk before it, and after a pass best/: who is killed in
    between does the pass again, and best/ is never older than the checkpoint."""
    to_disk(r.folder / "log.jsonl")
    if r.progress.place == 0:
        store.save(r.folder / "best", r.vectors)
    with new_folder(r.folder / f"checkpoint-{r.progress.step:07d}") as new:
        write_tensors(
            new / checkpoint.TENSORS, {name: torch.from_numpy(getattr(r.model, name)) for name in ("input", "output")}
        )
        write_json(new / checkpoint.NUMBERS, asdict(r.progress))
        seal(new, (checkpoint.TENSORS, checkpoint.NUMBERS))
    for old in checkpoint.all_of(r.folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def conclude(r: VectorsRun) -> None:
    """Curves, scores and the card; the row of ids is no longer needed."""
    lines = read_log(r.folder)
    points = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    write_text(r.folder / "curves.svg", curves({"loss": {"training": points}}, "Training", f"parts of {PART:,} words"))
    place = r.folder / "results.json"
    r.results = read_json(place) if place.exists() else results(r)
    for folder in (r.folder, r.folder / "best"):
        write_text(folder / "README.md", card(r, r.folder.resolve().name))
    write_json(place, r.results)
    (r.folder / IDS).unlink(missing_ok=True)
