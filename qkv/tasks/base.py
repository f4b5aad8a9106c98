"""Task: everything that differs between translation, tagging, images and so on. Training loop, search and folders are the same.

A task is begun in four steps: `possible` refuses at once what can never work, `prepare` finds words and labels in the
training text, `fitted` gives the model their sizes, and `__init__` opens the corpora.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from qkv.batch import Batch, Loss
from qkv.config import CorpusConfig, DataConfig, ModelConfig, Recipe
from qkv.config.rules import outside
from qkv.config.usage import Usage, corpus_of_run
from qkv.data.batching import Batches, Unusable
from qkv.data.corpora import corpus
from qkv.data.schema import Schema
from qkv.data.sources import Record, Source
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.models.output import Output
from qkv.tasks.vocabulary import special_ids
from qkv.text.tokenizer import Tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Words:
    """What is found in the text before training; the run's folder keeps it."""

    source: Tokenizer | None = None
    target: Tokenizer | None = None
    """Of what is written; the same one where there is one vocabulary."""
    labels: tuple[str, ...] = ()
    """Names of the classes or tags."""


class Task:
    """One thing to learn. Subclasses say the rest."""

    name: ClassVar[str]
    """What recipes call it."""
    noun: ClassVar[str]
    """What a model is that has learned it: "a translator"."""
    hub_tag: ClassVar[str]
    """The kind of model on Hugging Face's hub."""
    schema: Schema
    """The columns of its records, and how they are read."""
    metric: str
    """Which of `evaluate`'s numbers decides what weights are best; of "loss" the smallest, of all others the largest."""
    how: str = ""
    """How the held-out set is looked at during training, where that needs saying: "greedy"."""
    writes: ClassVar[bool] = False
    """Whether it writes texts, which take a token to begin with and one to end with."""
    unit: ClassVar[str] = "tokens"
    """What is predicted, and counted for the speed of training."""
    batches: Batches[Any]
    carries: bool = False
    """Whether a batch goes on where the one before it ended, from the state that it left."""
    valid: Sequence[Any]
    """The held-out examples."""

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        """ConfigError for what can never work."""

    @classmethod
    def needs(cls, recipe: Recipe, family: str, head: str) -> None:
        """ConfigError unless the model is of this family with this head."""
        c = recipe.model
        if recipe.data is None or c.family != family or c.head != head:
            raise ConfigError(
                f"{cls.name} needs [data] and a model of family {family!r} with head = {head!r}; this is of family "
                f"{c.family!r} with head = {c.head!r}"
            )

    @staticmethod
    def fits(recipe: Recipe) -> None:
        """ConfigError unless the model can take texts as long as the data may have."""
        data, c = recipe.data, recipe.model
        if data is not None and data.max_length > c.max_length:
            raise ConfigError(
                f"data.max_length = {data.max_length} tokens do not fit model.max_length = {c.max_length}: lower the one or "
                "raise the other"
            )

    @classmethod
    def schema_of(cls, recipe: Recipe) -> Schema:
        """The schema of a recipe's records, where it does not follow from the task alone."""
        return cls.schema

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """Learn a vocabulary, or take a given one; find the labels."""
        return Words()

    @classmethod
    def fitted(cls, recipe: Recipe, words: Words) -> ModelConfig:
        """The model's configuration with the sizes and special ids of its words; those of a given model are its own."""
        c = recipe.model
        if words.source is not None and not recipe.tune.start:
            target = None if words.target in (None, words.source) else words.target
            sizes = {"vocab_size": words.source.size, "target_vocab_size": target and target.size}
            c = c.changed(**sizes, **special_ids(words.source))
        suits(c, words, recipe, cls.writes)
        return c

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        assert recipe.data is not None
        self.recipe, self.data, self.config, self.words = recipe, recipe.data, config, words
        self.schema = self.schema_of(recipe)
        self.read = 0
        """Records so far, in all passes."""
        self.dropped: Counter[str] = Counter()
        """Records that cannot be learned from, by reason."""
        self.left_out: Counter[str] = Counter()
        """Of the held-out set: what it cannot be asked."""

    # --- learning

    def batched(self, source: Source, length: Callable[[Any], int]) -> Batches[Any]:
        """The examples of a training corpus in batches of about `data.batch_tokens`."""
        data: DataConfig = self.data
        seed = self.recipe.train.seed
        return Batches(source, self.encode, length, data.batch_tokens, data.pool, seed)

    def encode(self, records: Sequence[Record]) -> list[Any]:
        """Make the examples of some records; what is unusable is left out and counted."""
        self.read += len(records)
        examples, dropped = usable(self.examples(records))
        self.dropped += dropped
        return examples

    def examples(self, records: Sequence[Record]) -> Sequence[Any]:
        """Make one or several examples of each record, or Unusable(reason)."""
        raise NotImplementedError

    def collate(self, examples: list[Any]) -> Batch:
        """One batch of examples."""
        raise NotImplementedError

    def objective(self, output: Output, batch: Batch) -> Loss:
        raise NotImplementedError

    @property
    def smoothing(self) -> float:
        """train.label_smoothing, where the task chooses words; where it chooses a class, only if the recipe sets it."""
        c = self.recipe.train
        given = self.name != "classification" or "label_smoothing" in c.model_fields_set
        return c.label_smoothing if given and self.name in ONLY["train.label_smoothing"] else 0.0

    def network(self) -> nn.Module:
        """What is trained, with fresh weights."""
        return build(self.config)

    def kept(self, network: nn.Module) -> nn.Module:
        """The part of what is trained that a folder keeps; it is the network of `config`."""
        return network

    # --- asking

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Numbers of the held-out set."""
        raise NotImplementedError

    @cached_property
    def extra(self) -> dict[str, Task]:
        """The task with each set of `data.extra_valid` as its held-out set; these decide nothing."""
        return {name: self.with_held_out(name, c) for name, c in self.data.extra_valid.items()}

    def with_held_out(self, name: str, c: CorpusConfig) -> Task:
        """Return the same task with another held-out set, for evaluation only: its training set is never read."""
        c = c.model_copy(update={"split": c.split or "valid"}) if c.dataset else c
        data = self.data.model_copy(update={"train": (c,), "valid": c, "test": None, "extra_valid": {}})
        try:
            return type(self)(self.recipe.model_copy(update={"data": data}), self.config, self.words)
        except QkvError as error:
            raise type(error)(f"data.extra_valid.{name}: {error}") from None

    def evaluate_all(self, network: nn.Module) -> dict[str, float]:
        """Evaluate on the held-out set and on each further one, whose scores are prefixed with its name: general_bleu."""
        found = self.evaluate(network)
        for name, one in self.extra.items():
            found |= {f"{name}_{metric}": value for metric, value in one.evaluate(network).items()}
        return found

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """The test set, looked at once: {"examples": n, "how": in words, "scores": [{"name", "value", "signature"}]};
        answers go to files in `folder`. None where the recipe has no test set."""
        return None

    def baseline(self) -> dict[str, Any] | None:
        """A simple method trained on the same split, to compare with: {"name", "details", "valid": {metric: value},
        "test": {metric: value}}. None where the task has none, or too much data for it."""
        return None

    def test_records(self, say: Say) -> tuple[list[Record], Counter[str]]:
        """All of the test set, and what of it cannot be read, which is said."""
        assert self.data.test is not None
        source = corpus(self.data.test, self.data, "test", self.schema)
        records = held_out(source, "test")
        for reason, count in source.skipped.items():
            say(f"left out of the test set: {count:,} {reason}")
        return records, source.skipped

    def like(self, recipe: Recipe) -> None:
        """Measure as a run of this recipe does, whatever set is asked: where its own held-out set decides the metrics."""

    # --- telling

    def usage(self) -> Usage:
        """What the model folder says about the use of the trained model, beside the network's configuration."""
        data = self.data
        given = self.words.source is None or data.vocabulary or self.recipe.tune.start
        return Usage(task=self.recipe.task, corpus=corpus_of_run(data), max_input=data.max_length, carry=data.carry,
                     vocab_size=None if given else data.vocab_size)  # fmt: skip

    def title(self) -> str:
        """What the model does, in a few words."""
        return f"{self.noun[:1].upper()}{self.noun[1:]}"

    def use(self, folder: str) -> tuple[str, str]:
        """A command line and a line of Python that use the model."""
        return f"qkv params {folder}", 'qkv.load("FOLDER")'


def usable(examples: Sequence[Any]) -> tuple[list[Any], Counter[str]]:
    """Separate examples from unusable ones, which are counted by reason."""
    dropped = Counter(one.reason for one in examples if isinstance(one, Unusable))
    return [one for one in examples if not isinstance(one, Unusable)], dropped


def held_out(source: Source, name: str) -> list[Record]:
    """All records of a held-out set; an empty one cannot decide anything."""
    records = [record for _, record in source.read() if not isinstance(record[0], str) or record[0].strip()]
    if not records:
        raise QkvError(f"the {name} set has no example: give data.{name} some that are not in the training set")
    return records


def digest(records: Sequence[Record]) -> str:
    """SHA-256 of a test set, equal for two runs with the same examples. Images are identified by their file names."""
    parts = ([part if isinstance(part, str) else getattr(part, "name", "") for part in record] for record in records)
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def suits(c: ModelConfig, words: Words, recipe: Recipe, writes: bool) -> None:
    """Has the network a row for every word, and the vocabulary what a writer needs?"""
    assert recipe.data is not None
    if recipe.data.vocabulary and words.source is not None and words.source.size > c.vocab_size:
        raise ConfigError(f"data.vocabulary has {words.source.size:,} entries, but the model of tune.start knows only "
                          f"{c.vocab_size:,}: leave data.vocabulary out, a model comes with its own")  # fmt: skip
    if wrong := outside(c):
        raise ConfigError(f"{', '.join(wrong)} is outside the vocabulary of {c.target_size:,} words: leave it out")
    if writes and (c.first_id is None or not c.eos_ids):
        raise ConfigError("this vocabulary has no token that begins or ends a text (<s>, </s>): take one that has, or "
                          "let one be learned")  # fmt: skip


def unused(recipe: Recipe) -> None:
    """ConfigError for a setting that the recipe's task would pass over without a word."""
    for name, tasks in ONLY.items():
        room, _, field = name.partition(".")
        table = getattr(recipe, room)
        given = field in table.model_fields_set and getattr(table, field) if field else room in recipe.model_fields_set
        if given and recipe.task not in tasks:
            raise ConfigError(
                f"{name} does not apply to task {recipe.task!r}, only to {', '.join(tasks)}: leave it out"
            )
    if recipe.train.epochs is not None and recipe.data is not None and len(recipe.data.train) > 1:
        raise ConfigError(
            f"train.epochs = {recipe.train.epochs:g}: a mixture of {len(recipe.data.train)} corpora is drawn from without end and "
            "has no passes; set train.steps or train.time_budget instead"
        )


def task_of(recipe: Recipe) -> type[Task]:
    """The class of a recipe's task."""
    return task_class(recipe.task)


def task_class(name: str) -> type[Task]:
    """The class of a task; its module is imported on demand, so that no task needs the libraries of another."""
    module, _, kind = TASKS[name].partition(":")
    found: type[Task] = getattr(import_module(f"qkv.tasks.{module}"), kind)
    return found


ONLY = {
    "train.label_smoothing": ("translation", "summary", "language", "masked", "span-corruption", "denoising", "captions",
                              "classification", "conversation"),
    "train.source_weight": ("translation", "summary"),
    "model.prefix_mask": ("translation", "summary"),
    "data.carry": ("language",),
    "model.copy_source": ("translation", "summary"),
    "tune.auxiliary": ("classification", "regression"),
    "corrupt": ("masked", "replaced", "span-corruption", "denoising"),
    "corrupt.generator_size": ("replaced",),
    "augment": ("images", "captions"),
    "decode": ("translation", "summary", "captions"),
    "decode.extra_length": ("translation",),
}  # fmt: skip
"""Tables and fields of a recipe that only some tasks read."""

TASKS = {
    "translation": "translation:TranslationTask",
    "summary": "summary:SummaryTask",
    "language": "language:LanguageTask",
    "masked": "pretraining:MaskedTask",
    "span-corruption": "pretraining:SpanTask",
    "denoising": "pretraining:DenoisingTask",
    "replaced": "electra:ReplacedTask",
    "classification": "classification:ClassificationTask",
    "regression": "classification:RegressionTask",
    "tagging": "tagging:TaggingTask",
    "answering": "answering:AnsweringTask",
    "images": "images:ImagesTask",
    "captions": "captions:CaptionsTask",
    "conversation": "conversation:ConversationTask",
}
"""Module and class of each task."""
