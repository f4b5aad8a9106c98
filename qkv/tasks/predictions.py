"""Predictions of a model on a test set, example by example, read from the files that its task's `test` writes.

From it follow the metrics of the whole set, and whether two models differ on it by more than luck.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qkv.convert.files import read_text
from qkv.errors import FileError
from qkv.evaluate import metrics as m
from qkv.evaluate.scores import read_sentences
from qkv.evaluate.significance import Measure
from qkv.tasks import losses

HYPOTHESIS, REFERENCE, SOURCE = "test.hyp.txt", "test.ref.txt", "test.src.txt"
TAGGED, ANSWERS = "test.tagged.conll", "test.answers.jsonl"
EXAMPLES, LONGEST = 4, 1000
"""Example inputs, and characters of one of them."""
MOST = 2_000_000_000
"""Bytes of a file of answers."""


@dataclass(frozen=True)
class Predictions:
    """The answers of one model to the examples of a test set."""

    examples: Sequence[Any]
    """The test set: inputs, as far as they are stored, and correct answers. Equal for models that can be compared."""
    measures: dict[str, Measure] = field(default_factory=dict)
    """Metrics by the names that `test` gives them, in per cent where it does."""
    texts: Sequence[str] = ()
    """What was written, for metrics of whole texts (BLEU); `references` are the correct ones."""
    references: Sequence[str] = ()


def read_predictions(task: str, folder: Path) -> Predictions:
    """Those that a run, or an evaluation on other files, left in a folder."""
    reader, names = READERS.get(task, (of_losses, (losses.FILE,)))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FileError(
            f"{folder} has no {missing[0]}, the answers to a test set: give one with --data FILE, or let the run end"
        )
    return reader(folder)


def example_inputs(folder: Path) -> tuple[str, ...]:
    """Return the first short texts of a run's test set, as far as its task stores them."""
    texts: list[str] = []
    if (folder / SOURCE).is_file():
        texts = beginning(folder / SOURCE).split("\n")
    elif (folder / TAGGED).is_file():
        blocks = beginning(folder / TAGGED).split("\n\n")
        texts = [" ".join(line.split("\t")[0] for line in block.split("\n")) for block in blocks]
    elif (folder / ANSWERS).is_file():
        texts = first_messages(beginning(folder / ANSWERS).split("\n"))
    short = (text for text in dict.fromkeys(map(str.strip, texts[:-1])) if 0 < len(text) <= LONGEST)
    return tuple(islice(short, EXAMPLES))


def first_messages(lines: Sequence[str]) -> list[str]:
    """Return the first messages of conversations; questions about a text are no texts of their own."""
    rows = [json.loads(line).get("messages", []) for line in lines[:-1]]
    return [*(row[0]["content"] for row in rows if len(row) == 1), ""]


def beginning(path: Path) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(100_000)


def rows_of(path: Path, columns: int, header: bool = False) -> list[list[str]]:
    """The cells of a tab-separated file that a task has written."""
    rows = [line.split("\t") for line in read_text(path, MOST).split("\n")[int(header) : -1]]
    if not rows or any(len(row) != columns for row in rows):
        raise FileError(
            f"{path} is not the file of answers that a run writes, with {columns} columns: evaluate it again"
        )
    return rows


# --- one answer per example


def of_classes(folder: Path) -> Predictions:
    """index, prediction, probability, label."""
    rows = rows_of(folder / "test.predictions.tsv", 4, header=True)
    return of_labels([row[1] for row in rows], [row[3] for row in rows])


def of_pictures(folder: Path) -> Predictions:
    """label, prediction, probability."""
    rows = rows_of(folder / "test.answers.tsv", 3)
    return of_labels([row[1] for row in rows], [row[0] for row in rows])


def of_labels(said: list[str], right: list[str]) -> Predictions:
    """Accuracy by example; F1 and Matthews' correlation by the whole set."""
    check_labels(right)
    hits = np.array([p == r for p, r in zip(said, right, strict=True)], float)
    positive, answers = m.positive_class(right), np.array(said, object)
    whole = {name: Measure(answers, of_set(name, right, positive)) for name in ("macro_f1", "f1", "matthews")}
    return Predictions(right, {"accuracy": Measure(hits, mean, binary=True), **whole})


def of_set(name: str, right: list[str], positive: str) -> Callable[[Any], float]:
    return lambda answers: 100 * m.METRICS[name](answers.tolist(), right, positive)


def check_labels(right: Sequence[str]) -> None:
    if not any(right):
        raise FileError("the test set has no labels: give one that has, with --data FILE")


def mean(units: Any) -> float:
    return 100 * float(units.mean())


def of_numbers(folder: Path) -> Predictions:
    """index, prediction, label. What is exchanged between systems are ranks and standard scores, for their scales may differ."""
    rows = rows_of(folder / "test.predictions.tsv", 3, header=True)
    check_labels([row[2] for row in rows])
    said, right = (np.array([float(row[i]) for row in rows]) for i in (1, 2))
    standard = (said - said.mean()) / (said.std() or 1.0)
    order, wanted = m.ranks(right.tolist()), right.tolist()
    measures = {"spearman": Measure(np.array(m.ranks(said.tolist())), lambda u: 100 * m.pearson(u.tolist(), order)),
                "pearson": Measure(standard, lambda u: 100 * m.pearson(u.tolist(), wanted))}  # fmt: skip
    return Predictions(wanted, measures)


def of_answers(folder: Path) -> Predictions:
    """A line of JSON for each question."""
    path = folder / ANSWERS
    try:
        found = [json.loads(line) for line in read_text(path, MOST).split("\n")[:-1]]
        pairs = [(one["found"], one["answers"]) for one in found]
        examples = [(one["question"], one["answers"]) for one in found]
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is not a file of answers ({type(error).__name__}): evaluate the run again") from None
    f1, exact = (np.array([metric(*pair) for pair in pairs]) for metric in (m.answer_f1, m.exact_match))
    return Predictions(examples, {"f1": Measure(f1, mean), "exact": Measure(exact, mean, binary=True)})


def of_conversations(folder: Path) -> Predictions:
    """A line of JSON for each answer of the assistant."""
    path = folder / ANSWERS
    try:
        found = [json.loads(line) for line in read_text(path, MOST).split("\n")[:-1]]
        examples = [(one["messages"], one["reference"]) for one in found]
        same = np.array([one.get("exact", one["answer"] == one["reference"]) for one in found], float)
        nats = np.array([(one["nats"], one["tokens"]) for one in found], float)  # (N, 2)
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is not a file of answers ({type(error).__name__}): evaluate the run again") from None
    loss = Measure(nats, lambda units: float(units[:, 0].sum() / units[:, 1].sum()))
    return Predictions(examples, {"exact": Measure(same, mean, binary=True), "loss": loss})


# --- sentences with a tag per word


def of_tags(folder: Path) -> Predictions:
    """word, its tag, the model's tag; a blank line between sentences. Words of a sentence are not independent of each other,
    so whole sentences are exchanged."""
    blocks = read_text(folder / TAGGED, MOST).rstrip("\n").split("\n\n")
    sentences = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    if any(len(row) != 3 for rows in sentences for row in rows):
        raise FileError(f"{folder / TAGGED} is not a file of tags that a run writes: evaluate it again")
    words, gold, said = ([[row[i] for row in rows] for rows in sentences] for i in range(3))
    counts = np.array([spans_of(s, g) for s, g in zip(said, gold, strict=True)])  # (N, 3)
    hits = np.array([(sum(map(str.__eq__, s, g)), len(g)) for s, g in zip(said, gold, strict=True)])  # (N, 2)
    accuracy = Measure(hits, lambda units: 100 * float(units[:, 0].sum() / units[:, 1].sum()))
    f1 = Measure(counts, lambda units: 100 * m.f1_from_counts(*units.sum(0).tolist()))
    return Predictions([*zip(words, gold, strict=True)], {"accuracy": accuracy, "f1": f1})


def spans_of(said: list[str], gold: list[str]) -> tuple[int, int, int]:
    """Entities that are right, found and wanted."""
    ours, theirs = m.entity_spans(said), m.entity_spans(gold)
    return len(ours & theirs), len(ours), len(theirs)


# --- texts


def of_translations(folder: Path) -> Predictions:
    texts, references = (read_sentences(folder / name) for name in (HYPOTHESIS, REFERENCE))
    return Predictions(references, {}, texts, references)


def of_captions(folder: Path) -> Predictions:
    found = of_translations(folder)
    same = np.array([a == b for a, b in zip(found.texts, found.references, strict=True)], float)
    return Predictions(found.examples, {"exact": Measure(same, mean, binary=True)}, found.texts, found.references)


def of_summaries(folder: Path) -> Predictions:
    """ROUGE is the mean over summaries."""
    from qkv.evaluate.rouge import KINDS, rouge_per_summary

    found = of_translations(folder)
    table = rouge_per_summary(found.texts, found.references)
    measures = {KINDS[kind]: Measure(np.array(values), mean) for kind, values in table.items()}
    return Predictions([*zip(read_sentences(folder / SOURCE), found.references, strict=True)], measures)


# --- losses


def of_losses(folder: Path) -> Predictions:
    """Blocks of a text, or windows of it. Loss and perplexity are per token: of models with other tokens they say nothing."""
    found = losses.Losses.open(folder)
    pairs = np.array([found.nats, found.tokens]).T  # (N, 2)
    measures = {"loss": Measure(pairs, lambda units: float(units[:, 0].sum() / max(units[:, 1].sum(), 1)))}
    examples: list[Any] = [found.text, len(found.nats)]
    if found.bytes:
        rate = 1 / (math.log(2) * found.bytes)
        measures = {"bits_per_byte": Measure(pairs[:, 0], lambda units: rate * float(units.sum())), **measures}
    if found.right:
        right = np.array([found.right, found.tokens]).T
        measures["accuracy"] = Measure(right, lambda units: 100 * float(units[:, 0].sum() / max(units[:, 1].sum(), 1)))
    return Predictions(examples, measures)


READERS: dict[str, tuple[Callable[[Path], Predictions], tuple[str, ...]]] = {
    "classification": (of_classes, ("test.predictions.tsv",)),
    "regression": (of_numbers, ("test.predictions.tsv",)),
    "images": (of_pictures, ("test.answers.tsv",)),
    "answering": (of_answers, (ANSWERS,)),
    "conversation": (of_conversations, (ANSWERS,)),
    "tagging": (of_tags, (TAGGED,)),
    "translation": (of_translations, (HYPOTHESIS, REFERENCE)),
    "captions": (of_captions, (HYPOTHESIS, REFERENCE)),
    "summary": (of_summaries, (HYPOTHESIS, REFERENCE, SOURCE)),
}
"""How each task's answers are read, and from which files; of all others from a file of losses."""
