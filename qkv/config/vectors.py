"""Configuration of a word2vec run: the recipe has [vectors] instead of [model], [train], ..."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from qkv.config.run import CorpusConfig
from qkv.config.strict import Strict, override, read_toml, validate


def tuples(values: Any) -> Any:
    """Convert the lists of TOML to tuples."""
    if not isinstance(values, dict):
        return values
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


class VectorsConfig(Strict):
    """Training of word vectors (Mikolov et al. 2013)."""

    model: Literal["skip-gram", "cbow"] = "skip-gram"
    """A word is predicted from each neighbour separately (skip-gram) or from the mean of all neighbours (cbow)."""
    loss: Literal["negative", "hierarchical", "softmax"] = "negative"
    """Negative sampling, hierarchical softmax (Huffman tree), or full softmax, which is slow."""
    width: int = Field(default=100, gt=0, le=4096)
    """Dimension of the vectors."""
    window: int = Field(default=5, gt=0, le=100)
    """Maximum number of neighbours on each side; the number is sampled from 1 to `window` for each word."""
    negative: int = Field(default=5, gt=0, le=100)
    """Number of negative samples per positive pair, for loss = "negative"."""
    power: float = Field(default=0.75, ge=0, le=2)
    """Negative words are sampled in proportion to their count to this power."""
    sample: float = Field(default=1e-3, ge=0, lt=1)
    """Subsampling threshold: words with a larger relative frequency are randomly skipped, more frequent ones more often; 0 = off."""
    min_count: int = Field(default=5, gt=0, le=10**12)
    """Minimum count; rarer words are removed from the text."""
    max_words: int = Field(default=1_000_000, gt=1, le=10_000_000)
    """Maximum vocabulary size; the most frequent words are kept."""
    epochs: int = Field(default=5, gt=0, le=1_000_000)
    """Number of passes over the text."""
    learning_rate: float = Field(default=0.025, gt=0)
    """Initial learning rate. cbow, whose gradient is divided among the neighbours, works best with about three times as much."""
    last_rate: float = Field(default=0.0001, ge=0)
    """Final learning rate; the decay is linear in the number of words."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Number of training threads, which update the vectors without locks; 0 = one per core. With 1, runs are reproducible bit for bit."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Random seed."""
    keep: int = Field(default=1, gt=0, le=1_000_000)
    """Number of checkpoints to keep. With 2 or more, a run whose newest checkpoint is damaged resumes from the previous one."""
    similarity: tuple[str, ...] = ()
    """Files of word pairs with human similarity ratings (WordSim-353, SimLex-999), evaluated once, at the end."""
    analogies: str | None = None
    """A file of analogies (questions-words.txt), evaluated once, at the end."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        return tuples(values)


class TextConfig(Strict):
    """Training text. Each line is a sentence: windows do not cross lines."""

    root: str = ""
    """Folder for relative file names, and for data sets without `path`."""
    train: tuple[CorpusConfig, ...]
    """Training corpora, read in order."""
    words: Literal["letters", "spaces"] = "letters"
    """Definition of a word: a sequence of letters, digits and _, with inner apostrophes (don't); or the text between spaces."""
    lower: bool = True
    """Lowercase the text."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("train"), dict):
            values = {**values, "train": [values["train"]]}
        return tuples(values)

    @model_validator(mode="after")
    def _nothing_unread(self) -> TextConfig:
        if not self.train:
            raise ValueError("nothing to learn from: data.train is empty; name at least one corpus")
        if any("weight" in corpus.model_fields_set for corpus in self.train):
            raise ValueError("weight does not apply to word vectors: each corpus is read once per epoch; leave it out")
        return self


class VectorsRecipe(Strict):
    """Contents of a recipe file (TOML) with task = "vectors"."""

    task: Literal["vectors"]
    """Word vectors."""
    data: TextConfig
    """Training text."""
    vectors: VectorsConfig = VectorsConfig()
    """Training of the vectors."""


def learns_vectors(path: Path, settings: list[str] | None = None) -> bool:
    """Return whether a recipe trains word vectors."""
    return override(read_toml(path), settings or []).get("task") == "vectors"


def load_vectors_recipe(path: Path, settings: list[str] | None = None) -> VectorsRecipe:
    """Load and validate a recipe for word vectors with `--set` overrides."""
    values = override(read_toml(path), settings or [])
    rooms: dict[str, type[Strict]] = {"data": TextConfig, "vectors": VectorsConfig}
    parts = {name: validate(kind, values[name], name) for name, kind in rooms.items() if name in values}
    recipe: VectorsRecipe = validate(VectorsRecipe, {**values, **parts})
    return recipe
