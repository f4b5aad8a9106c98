"""Usage: what a trained model is for and how it is used. config.json of a model folder contains it, next to the network's fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from qkv.config.run import CorpusConfig, DataConfig
from qkv.config.strict import Strict
from qkv.config.task import CorruptConfig, TaskName

KINDS = ("dataset", "table", "images", "files", "grammar", "stdlib", "shapes", "text")
"""Fields of a corpus that define its kind."""


class DecodingDefaults(Strict):
    """Decoding settings stored with a model; None if not set."""

    beam: int | None = None
    """Beam size; 1 = greedy."""
    length_penalty: float | None = None
    """Scores are divided by length to this power."""
    length_formula: str | None = None
    """Base of the length penalty: "power" = length, "gnmt" = (5 + length) / 6."""
    max_length: int | None = None
    """Longest output in tokens, end token included."""
    min_length: int | None = None
    """Shortest output in tokens, end token included."""
    no_repeat_ngram: int | None = None
    """Forbid repeated n-grams of this size."""
    early: bool | None = None
    """Stop as soon as `beam` hypotheses have ended."""
    extra_length: int | None = None
    """Longest output: this many tokens more than the source."""
    forced_end: bool | None = None
    """End an output that reaches max_length with the end token, at no cost."""

    def resolve(self, **settings: Any) -> dict[str, Any]:
        """Resolve settings given as name=(value or None, fallback): the value, else the model's default, else the fallback."""
        resolved = {}
        for name, (value, fallback) in settings.items():
            default = getattr(self, name)
            resolved[name] = value if value is not None else fallback if default is None else default
        return resolved


class Usage(Strict):
    """What a trained model is for and how it is used. A field is None if the model's source does not define it."""

    task: TaskName | None = None
    """The task it was trained for."""
    source: str | None = Field(default=None, max_length=100)
    """Translation: language of the input."""
    target: str | None = Field(default=None, max_length=100)
    """Translation: language of the output."""
    pairs: bool | None = None
    """Classification, regression: whether the input is a pair of texts."""
    decoding: DecodingDefaults = DecodingDefaults()
    """Decoding defaults."""
    max_input: int | None = Field(default=None, gt=0)
    """Longest input in tokens during training; evaluation cuts or splits longer ones in the same way."""
    vocab_size: int | None = Field(default=None, gt=0)
    """Vocabulary size set in its recipe; the trained tokenizer may have fewer entries."""
    carry: bool = False
    """Language models: each window starts from the state at the end of the previous one."""
    corpus: CorpusConfig | None = None
    """What it was trained on: a data set, or the names of files and columns (paths are not stored)."""
    corrupt: CorruptConfig | None = None
    """Pre-training: how input text is corrupted."""
    examples: tuple[str, ...] = Field(default=(), max_length=100)
    """Example inputs, shown on the page."""
    note: str | None = Field(default=None, max_length=10_000)
    """A note for users of the model, shown on the page."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target language."""
        return (self.source, self.target) if self.source and self.target else None

    @property
    def dataset(self) -> str | None:
        """Name of the training data: a data set, a file, "grammar" or another kind of corpus."""
        if self.corpus is None:
            return None
        kind = next(name for name in KINDS if getattr(self.corpus, name))
        value = getattr(self.corpus, kind)
        if isinstance(value, str) and kind != "text":
            return Path(value).name
        return kind

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set. Those of `corrupt` are complete: a later default must not change an old model."""
        fields = self.model_dump(mode="json", exclude_defaults=True)
        return fields if self.corrupt is None else {**fields, "corrupt": self.corrupt.model_dump(mode="json")}


def corpus_of_run(data: DataConfig) -> CorpusConfig:
    """Return the corpus that a model folder names: the first training corpus, or the public data set of the validation set,
    which decides the metrics; with the columns and document boundaries of the run's corpora, and without paths."""
    corpora = [c for c in (data.test, data.valid, *data.train) if c is not None]
    corpus = data.valid if data.valid.dataset else data.train[0]
    tables = [c for c in corpora if c.columns and bool(c.table) == bool(corpus.table)]
    named = {"files": tuple(Path(name).name for name in corpus.files), "table": corpus.table and Path(corpus.table).name,
             "images": corpus.images and Path(corpus.images).name, "text": corpus.text and "not stored"}  # fmt: skip
    return CorpusConfig(
        dataset=corpus.dataset,
        grammar=corpus.grammar,
        casual=corpus.casual,
        stdlib=corpus.stdlib,
        shapes=corpus.shapes,
        columns=corpus.columns or (tables[0].columns if tables else ()),
        documents=next((c.documents for c in corpora if c.documents), None) if corpus.files else None,
        **named,  # type: ignore[arg-type]
    )
