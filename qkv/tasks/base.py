"""Task: all that differs between learning to translate, to tag or to see. The loop, the search and the folders are the same.

A task is begun in four steps: `possible` refuses at once what can never work, `prepare` finds words and labels in the
training text, `fitted` gives the model their sizes, and `__init__` opens the corpora.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from qkv.batch import Batch, Loss
from qkv.config import DataConfig, ModelConfig, Recipe
from qkv.data.batching import Batches
from qkv.data.sources import Record, Source
from qkv.errors import QkvError
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
    metric: str
    """Which of `evaluate`'s numbers decides what weights are best; of "loss" the smallest, of all others the largest."""
    how: str = ""
    """How the held-out set is looked at during training, where that needs saying: "greedy"."""
    unit: ClassVar[str] = "tokens"
    """What is predicted, and counted for the speed of training."""
    batches: Batches[Any]
    valid: Sequence[Any]
    """The held-out examples."""

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        """ConfigError for what can never work."""

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """Learn a vocabulary, or take a given one; find the labels."""
        return Words()

    @classmethod
    def fitted(cls, recipe: Recipe, words: Words) -> ModelConfig:
        """The model's configuration with the sizes and special ids of its words; those of a given model are its own."""
        if words.source is None or recipe.tune.start:
            return recipe.model
        target = None if words.target in (None, words.source) else words.target
        sizes = {"vocab_size": words.source.size, "target_vocab_size": target and target.size}
        return recipe.model.changed(**sizes, **special_ids(words.source))  # type: ignore[no-any-return]

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words, rank: int = 0, world: int = 1):
        assert recipe.data is not None
        self.recipe, self.data, self.config, self.words = recipe, recipe.data, config, words
        self.rank, self.world = rank, world
        self.read = 0
        """Records so far, in all passes."""
        self.dropped: Counter[str] = Counter()
        """Records that cannot be learned from, by reason."""
        self.left_out: Counter[str] = Counter()
        """Of the held-out set: what it cannot be asked."""

    # --- learning

    def batched(self, source: Source, length: Callable[[Any], int]) -> Batches[Any]:
        """The examples of a training corpus in batches of about `data.batch_tokens`, this worker's share of them."""
        data: DataConfig = self.data
        seed = self.recipe.train.seed
        return Batches(source, self.encode, length, data.batch_tokens, data.pool, seed, self.rank, self.world)

    def encode(self, records: Sequence[Record]) -> list[Any]:
        """An example of each record, or None for one that is dropped, which is counted."""
        self.read += len(records)
        found = self.examples(records)
        self.dropped.update(one for one in found if isinstance(one, str))
        return [None if isinstance(one, str) else one for one in found]

    def examples(self, records: Sequence[Record]) -> Sequence[Any]:
        """An example of each record, or in words why there is none."""
        raise NotImplementedError

    def collate(self, examples: list[Any]) -> Batch:
        """One batch of examples."""
        raise NotImplementedError

    def objective(self, output: Output, batch: Batch) -> Loss:
        raise NotImplementedError

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

    def test(self, network: nn.Module, folder: Path, say: Say) -> dict[str, Any] | None:
        """The test set, looked at once: {"examples": n, "how": in words, "scores": [{"name", "value", "signature"}]};
        answers go to files in `folder`. None where the recipe has no test set."""
        return None

    # --- telling

    def title(self) -> str:
        """What the model does, in a few words."""
        return f"{self.noun[:1].upper()}{self.noun[1:]}"

    def use(self, folder: str) -> tuple[str, str]:
        """A command line and a line of Python that use the model."""
        return f"qkv params {folder}", 'qkv.load("FOLDER")'


def held_out(source: Source, name: str) -> list[Record]:
    """All records of a held-out set; an empty one cannot decide anything."""
    records = [record for _, record in source.read() if not isinstance(record[0], str) or record[0].strip()]
    if not records:
        raise QkvError(f"the {name} set has no example: give data.{name} some that are not in the training set")
    return records


def task_of(recipe: Recipe) -> type[Task]:
    """The class that a recipe's task names."""
    from importlib import import_module

    module, _, kind = TASKS[recipe.task].partition(":")
    found: type[Task] = getattr(import_module(f"qkv.tasks.{module}"), kind)
    return found


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
}
"""Where each task is; opened when it is asked for, so that none needs the libraries of another."""
