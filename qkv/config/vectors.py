"""What a run of word2vec is. Word vectors are learned without a network, so its recipe has [vectors] in place of [model], [train] ..."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from qkv.config.run import CorpusConfig
from qkv.config.strict import Strict, override, read_toml, validate


def tuples(values: Any) -> Any:
    """TOML has lists where the records have tuples."""
    if not isinstance(values, dict):
        return values
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


class VectorsConfig(Strict):
    """How word vectors are learned (Mikolov et al. 2013)."""

    model: Literal["skip-gram", "cbow"] = "skip-gram"
    """Each neighbour predicts a word by itself (skip-gram), or the mean of all neighbours does (cbow)."""
    loss: Literal["negative", "hierarchical", "softmax"] = "negative"
    """Told apart from random words, found in a Huffman tree, or chosen among all words, which is slow."""
    width: int = Field(default=100, gt=0, le=4096)
    """Numbers of a vector."""
    window: int = Field(default=5, gt=0, le=100)
    """Neighbours on a side at the most; how many it is, 1 to `window`, is drawn for each word anew."""
    negative: int = Field(default=5, gt=0, le=100)
    """Random words beside each right one, for loss = "negative"."""
    power: float = Field(default=0.75, ge=0, le=2)
    """Random words are drawn by their count to this power."""
    sample: float = Field(default=1e-3, ge=0, lt=1)
    """Words with a larger share of the text are left out at times, the more the more frequent; 0 = never."""
    min_count: int = Field(default=5, gt=0, le=10**12)
    """Words that occur less often are deleted from the text."""
    max_words: int = Field(default=1_000_000, gt=1, le=10_000_000)
    """Words in the vocabulary at the most, the most frequent ones."""
    epochs: int = Field(default=5, gt=0, le=1_000_000)
    """Passes over the text."""
    learning_rate: float = Field(default=0.025, gt=0)
    """At the start; cbow, whose gradient is divided among the neighbours, learns best with about three times as much."""
    last_rate: float = Field(default=0.0001, ge=0)
    """At the end; it falls by the same amount with each word."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Threads that learn side by side without waiting for each other; 0 = one per core. With 1, every run gives the same bits."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Decides the first vectors and all that is drawn."""
    similarity: tuple[str, ...] = ()
    """Files of word pairs with people's judgements (WordSim-353, SimLex-999), looked at once, at the end."""
    analogies: str | None = None
    """A file of analogies (questions-words.txt), looked at once, at the end."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        return tuples(values)


class TextConfig(Strict):
    """The text that word vectors are learned from. A line of a document is a sentence: no window reaches beyond it."""

    root: str = ""
    """Folder that relative file names start from; also where a data set lies that has no path of its own."""
    train: tuple[CorpusConfig, ...]
    """Corpora, read one after the other."""
    words: Literal["letters", "spaces"] = "letters"
    """What a word is: letters, digits and _ in a row, apostrophes within (don't); or what stands between spaces."""
    lower: bool = True
    """Make all letters small."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("train"), dict):
            values = {**values, "train": [values["train"]]}
        return tuples(values)

    @model_validator(mode="after")
    def _nothing_unread(self) -> TextConfig:
        if not self.train:
            raise ValueError("there is nothing to learn from: name a corpus in data.train")
        if any("weight" in corpus.model_fields_set for corpus in self.train):
            raise ValueError("weight means nothing here: each corpus is read once in a pass")
        return self


class VectorsRecipe(Strict):
    """What a recipe file (TOML) with task = "vectors" holds."""

    task: Literal["vectors"]
    """Word vectors."""
    data: TextConfig
    """What is read."""
    vectors: VectorsConfig = VectorsConfig()
    """How it is learned."""


def learns_vectors(path: Path, settings: list[str] | None = None) -> bool:
    """Is it a recipe for word vectors?"""
    return override(read_toml(path), settings or []).get("task") == "vectors"


def load_vectors_recipe(path: Path, settings: list[str] | None = None) -> VectorsRecipe:
    """A recipe file for word vectors with `--set` overrides, checked."""
    values = override(read_toml(path), settings or [])
    rooms: dict[str, type[Strict]] = {"data": TextConfig, "vectors": VectorsConfig}
    parts = {name: validate(kind, values[name], name) for name, kind in rooms.items() if name in values}
    recipe: VectorsRecipe = validate(VectorsRecipe, {**values, **parts})
    return recipe
