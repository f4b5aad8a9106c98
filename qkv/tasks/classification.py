"""Classification and regression: a text, or a pair of texts, gets a class or a number.

A pair is read as one sequence, [CLS] first [SEP] second [SEP] (Devlin et al. 2019), so that every layer compares the two.
One vector stands for the whole (`model.pooling`), and a linear layer on it gives a score per class, or the number itself.
An encoder-decoder reads the text twice, with the encoder and with the decoder, whose last vector is classified (Lewis et al. 2020).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Loss
from qkv.config import CorpusConfig, ModelConfig, Recipe
from qkv.config.usage import Usage
from qkv.convert.files import write_text
from qkv.data.batching import Unusable
from qkv.data.corpora import corpus, training
from qkv.data.grammar_tasks import sentence_kinds, sentence_lengths
from qkv.data.schema import LABELLED, SCORED, Schema
from qkv.data.sources import Record
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.baseline import baseline
from qkv.evaluate.class_report import class_report
from qkv.evaluate.metrics import glue_task, score_labels, submission
from qkv.evaluate.scores import Score
from qkv.models.output import Output
from qkv.objectives import classes_words, classification, objective
from qkv.tasks.base import Say, Task, Words, digest
from qkv.tasks.classifier import HEADS, Classifier, Text, TextEncoder, TextRow, collate
from qkv.tasks.vocabulary import given_tokenizer, learn_tokenizer

MOST_LABELS = 10_000
PREDICTIONS = "test.predictions.tsv"
"""The test set: number, what the model says, how sure it is, and the right answer where it is known."""


class ClassificationTask(Task):
    """Texts or pairs with a class, cross-entropy of the class, accuracy (of a GLUE task, its own metric) held out."""

    name, noun, hub_tag = "classification", "a classifier", "text-classification"
    schema = Schema("classification", LABELLED, "give one table with text and label columns (.tsv, .csv, .jsonl)",
                    from_grammar=sentence_kinds)  # fmt: skip
    unit = "texts"
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    """Unless the data set has its own."""

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        c = recipe.model
        if recipe.data is None or c.image_size is not None:
            raise ConfigError(
                f"{cls.name} needs [data] and a model that reads text; this is of "
                f"family {c.family!r}" + ("" if c.image_size is None else ' and reads images (task = "images")')
            )
        if c.family != "encoder" and c.pooling == "first":
            raise ConfigError(
                'a decoder\'s first vector depends on the first token only: set model.pooling = "last" or "mean"'
            )
        cls.fits(recipe)
        if recipe.tune.auxiliary and c.head != "classes-words":
            raise ConfigError(
                f'tune.auxiliary = {recipe.tune.auxiliary:g} needs head = "classes-words", this is {c.head!r}'
            )

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """The vocabulary, and the labels of the training set in their order."""
        data = recipe.data
        assert data is not None
        corpora = [corpus(c, data, "train", cls.schema) for c in data.train]
        labels = cls.labels_of(record[-1] for one in corpora for _, record in one.read())
        tokenizer = given_tokenizer(recipe) or learn_tokenizer(corpora, lambda record: record[:-1], data, say)
        return Words(tokenizer, tokenizer, labels)

    @classmethod
    def labels_of(cls, found: Iterable[str]) -> tuple[str, ...]:
        """Each label once; numbers by their size, all others by their letters."""
        labels: set[str] = set()
        for label in found:
            labels.add(label)
            if len(labels) > MOST_LABELS:
                raise QkvError(
                    f"more than {MOST_LABELS:,} different labels, such as {label!r}: is it the right column? "
                    '(numbers: task = "regression")'
                )
        if len(labels) < 2:
            raise QkvError(
                f"all training examples have the same label ({''.join(labels)!r}): there is nothing to learn"
            )
        return tuple(sorted(labels, key=number if all(number(label) is not None for label in labels) else str))  # type: ignore

    @classmethod
    def fitted(cls, recipe: Recipe, words: Words) -> ModelConfig:
        c = super().fitted(recipe, words)
        head = c.head if c.head in HEADS else "classes"
        return c.changed(head=head, n_classes=len(words.labels) or 1, labels=words.labels)  # type: ignore[no-any-return]

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.source is not None
        self.tokenizer = words.source
        self.like(recipe)
        self.most = self.data.max_length
        self.reader = TextEncoder(config, self.tokenizer, self.most)
        self.batches = self.batched(training(self.data, self.schema), lambda row: len(row.ids))
        name = "test" if self.data.valid is self.data.test else "valid"  # one set for both: a model is scored again
        self.valid, self.left_out = self.held(self.data.valid, name)
        self.rows = self.read_rows(self.valid)
        # what is wrong with the test set is said now, not after hours of training
        self.tested, self.untested = self.held(self.data.test, "test") if self.data.test else ([], Counter())

    def like(self, recipe: Recipe) -> None:
        known = glue_task(recipe.data.valid.dataset) if recipe.data is not None else None
        self.metrics = type(self).metrics if known is None else known.metrics
        self.metric = self.metrics[0]

    def held(self, c: CorpusConfig, name: str) -> tuple[list[Record], Counter[str]]:
        """A held-out set and what of it could not be read. A label that nothing was learned about is an error; a test
        set may have none at all."""
        source = corpus(c, self.data, name, self.schema)
        records = [record for _, record in source.read()]  # blank ones too: a submission counts lines
        if not records:
            raise QkvError(f"the {name} set has no example: give data.{name} some that are not in the training set")
        if name == "valid" or any(record[-1] for record in records):
            for record in records:
                if self.target(record[-1]) is None:
                    raise QkvError(self.unknown(record[-1], name))
        return records, Counter(source.skipped)

    def read_rows(self, records: Sequence[Record]) -> list[TextRow]:
        """Each text with its target; where there is none, with 0."""
        rows = zip(records, self.reader([text_of(record) for record in records]), strict=True)
        return [row._replace(target=self.target(record[-1]) or 0.0) for record, row in rows]

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[TextRow | Unusable]:
        rows = self.reader([text_of(record) for record in records])
        return [self.example(record, row) for record, row in zip(records, rows, strict=True)]

    def example(self, record: Record, row: TextRow) -> TextRow | Unusable:
        target = self.target(record[-1])
        if not all(part.strip() for part in record[:-1]):
            return Unusable("an empty text")
        reason = f"the label {record[-1]!r}, which is none"
        return Unusable(reason) if target is None else row._replace(target=target)

    def target(self, label: str) -> float | None:
        """The number of a class; None for one that the training set does not have."""
        return self.config.labels.index(label) if label in self.config.labels else None

    def unknown(self, label: str, name: str) -> str:
        known = ", ".join(map(repr, self.config.labels[:20])) + (" ..." if len(self.config.labels) > 20 else "")
        return f"the {name} set has the label {label!r}, which the training set has not; known are {known}"

    def collate(self, examples: list[Any]) -> Batch:
        return collate(examples, self.config)

    def objective(self, output: Output, batch: Batch) -> Loss:
        if self.config.head == "classes-words":
            return classes_words(output, batch, self.recipe.tune.auxiliary, self.smoothing)
        if self.smoothing:
            return classification(output, batch, self.smoothing)
        return objective(self.config)(output, batch)

    # --- asking

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """The metrics, in per cent, and the mean loss."""
        logits = Classifier(self.config, network, self.tokenizer, self.most).logits(self.rows)
        found = self.scores(self.said(logits), [record[-1] for record in self.valid])
        return {score.name: score.value for score in found} | {"loss": self.loss(logits)}

    def scores(self, said: list[str], right: list[str]) -> list[Score]:
        return [score_labels(metric, said, right, self.config.labels) for metric in self.metrics]

    def loss(self, logits: Tensor) -> float:
        return F.cross_entropy(logits, torch.tensor([int(row.target) for row in self.rows])).item()

    def said(self, logits: Tensor) -> list[str]:
        """(N, n) -> the most likely classes."""
        return [self.config.labels[i] for i in logits.argmax(1).tolist()]

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """Every answer in a file, of a GLUE task also as its server reads it; scores where the right answers are known."""
        if self.data.test is None:
            return None
        rows, right = self.read_rows(self.tested), [record[-1] for record in self.tested]
        cut = sum(row.cut for row in rows)
        if cut:
            say(f"{cut:,} of {len(rows):,} texts of the test set are cut to {self.most} tokens")
        logits = Classifier(self.config, network, self.tokenizer, self.most).logits(rows)
        said = self.said(logits)
        write_text(folder / PREDICTIONS, self.table(logits, said, right))
        task = glue_task(self.data.test.dataset)
        if task is not None:
            write_text(folder / task.file, submission(logits[:, 0].tolist() if self.config.n_classes == 1 else said))
        scores = [score.to_json() for score in self.scores(said, right)] if any(right) else []
        how = f"texts of at most {self.most} tokens" if any(right) else "answers only: the test set has no labels"
        return {"examples": len(rows), "digest": digest(self.tested), "left_out": dict(self.untested), "cut": cut,
                "how": how, "scores": scores,
                **({"report": class_report(said, right, self.config.labels).to_json()}
                   if any(right) and self.config.labels else {})}  # fmt: skip

    def baseline(self) -> dict[str, Any] | None:
        """TF-IDF + logistic regression on the same texts, where these have classes and are not too many."""
        records = (record for c in self.data.train for _, record in corpus(c, self.data, "train", self.schema).read())
        return baseline(records, self.valid, self.tested, self.metrics, self.config.labels)

    def table(self, logits: Tensor, said: list[str], right: list[str]) -> str:
        sure = logits.softmax(-1).amax(-1).tolist()
        lines = zip(said, sure, right, strict=True)
        rows = (f"{i}\t{label}\t{p:.6f}\t{answer}\n" for i, (label, p, answer) in enumerate(lines))
        return "index\tprediction\tprobability\tlabel\n" + "".join(rows)

    # --- telling

    def usage(self) -> Usage:
        return super().usage().model_copy(update={"pairs": len(self.valid[0]) == 3})

    def use(self, folder: str) -> tuple[str, str]:
        pairs = len(self.valid[0]) == 3
        text, option = ("A text.\\tAnother.", " --pairs") if pairs else ("A text.", "")
        given = '("A text.", "Another.")' if pairs else '"A text."'
        return f"printf '{text}\\n' | qkv classify {folder}{option}", f"model.classify([{given}])"


class RegressionTask(ClassificationTask):
    """Texts or pairs with a number, squared error, and how well the order is kept on the held-out set."""

    name, noun = "regression", "a model that gives texts a number"
    schema = replace(ClassificationTask.schema, task="regression", columns=SCORED, from_grammar=sentence_lengths)
    metrics = ("spearman", "pearson")

    @classmethod
    def labels_of(cls, found: Iterable[str]) -> tuple[str, ...]:
        """None; but there must be numbers."""
        if not any(number(label) is not None for label in found):
            raise QkvError(
                'no training example has a number: is it the right column? (classes: task = "classification")'
            )
        return ()

    def target(self, label: str) -> float | None:
        return number(label)

    def unknown(self, label: str, name: str) -> str:
        return f"the {name} set has {label!r} where a number should be"

    def loss(self, logits: Tensor) -> float:
        return F.mse_loss(logits[:, 0], torch.tensor([row.target for row in self.rows])).item()

    def said(self, logits: Tensor) -> list[str]:
        return [f"{score:.4f}" for score in logits[:, 0].tolist()]

    def table(self, logits: Tensor, said: list[str], right: list[str]) -> str:
        rows = (f"{i}\t{score}\t{answer}\n" for i, (score, answer) in enumerate(zip(said, right, strict=True)))
        return "index\tprediction\tlabel\n" + "".join(rows)


def text_of(record: Record) -> Text:
    """All but the label."""
    return record[0] if len(record) == 2 else (record[0], record[1])


def number(label: str) -> float | None:
    """A label as a number, if it is one."""
    try:
        value = float(label)
    except ValueError:
        return None
    return value if abs(value) < 1e30 else None  # neither infinite nor no number at all
