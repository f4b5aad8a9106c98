"""Vectors: word vectors with nearest neighbours, similarity and analogies; OneHot, the baseline without any similarity."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.vectors import store

SUGGESTED = 50_000
"""The most frequent words, among which an unknown word's likely spellings are searched."""
BATCH = 256
"""Analogies that are answered in one matrix product."""


class Neighbour(NamedTuple):
    """A word and its cosine similarity."""

    word: str
    similarity: float


class NotANetwork(QkvError, AttributeError):
    """Raised when word vectors are used like a network."""


class WordIndex:
    """Words and their ids, most frequent first."""

    def __init__(self, words: Sequence[str]):
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.find(word) is not None

    def find(self, word: str) -> int | None:
        """Return the id of a word, or of its lowercase form; None where neither is known."""
        found = self.index.get(word)
        return self.index.get(word.lower()) if found is None else found

    def number(self, word: str) -> int:
        """Return the id of a word, or raise an error that suggests similar spellings."""
        found = self.find(word)
        if found is None:
            raise QkvError(self.absent(word))
        return found

    def absent(self, word: str) -> str:
        """Return the message for an unknown word, with similar spellings."""
        near = get_close_matches(word.lower(), self.words[:SUGGESTED], n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "no word has a similar spelling"
        return f"{word!r} is not in the vocabulary of {len(self):,} words: {hint}"


class Vectors(WordIndex):
    """Word vectors: word i has `vectors[i]`, (V, C). Counts and output vectors are known after training with qkv."""

    def __init__(
        self, words: Sequence[str], vectors: Tensor, counts: Sequence[int] | None = None, output: Tensor | None = None
    ):
        super().__init__(words)
        if (known := len(self.index)) != len(vectors):
            raise QkvError(f"{known:,} distinct words for {len(vectors):,} vectors: give one word for each vector")
        self.vectors, self.counts, self.output = vectors, counts, output

    def __getattr__(self, name: str) -> object:
        raise NotANetwork(f"word vectors have no {name!r}: use nearest, analogy, similarity, vector, save or export")

    @cached_property
    def directions(self) -> Tensor:
        """The vectors normalised to length 1, (V, C): their products are cosines."""
        return self.vectors / self.vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)

    # --- single words

    def vector(self, word: str) -> Tensor:
        """Return the vector of a word, (C,)."""
        return self.vectors[self.number(word)]

    def similarity(self, a: str, b: str) -> float:
        """Return the cosine similarity of two words, -1 to 1."""
        return float(self.similarities(torch.tensor([[self.number(a), self.number(b)]])))

    def nearest(self, word: str, n: int = 10) -> list[Neighbour]:
        """Return the n nearest words by cosine similarity, without the word itself."""
        number = self.number(word)
        return self.nearest_to(self.directions[number], [number], n)

    def analogy(self, a: str, b: str, c: str, n: int = 10) -> list[Neighbour]:
        """Return the words nearest to b - a + c (a is to b as c is to ...), without these three (3CosAdd: Mikolov et al. 2013)."""
        numbers = [self.number(word) for word in (a, b, c)]
        return self.nearest_to(self.offsets(torch.tensor([numbers]))[0], numbers, n)

    def offsets(self, questions: Tensor) -> Tensor:
        """Return b - a + c for words (N, 3): (N, C)."""
        a, b, c = self.directions[questions].unbind(1)
        return b - a + c

    def nearest_to(self, direction: Tensor, without: Sequence[int], n: int) -> list[Neighbour]:
        """Return the n words nearest to a direction (C,), except some."""
        if n < 1:
            raise QkvError(f"n must be at least 1, given {n}")
        scores = self.directions @ (direction / direction.norm().clamp(min=1e-12))  # (V,)
        scores[list(without)] = -torch.inf
        best = scores.topk(min(n, len(self) - len(set(without))))
        return [Neighbour(self.words[i], s) for i, s in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    # --- batches

    def similarities(self, pairs: Tensor) -> Tensor:
        """Return the similarity of each pair of words: (N, 2) -> (N,)."""
        a, b = self.directions[pairs].unbind(1)
        return (a * b).sum(-1)

    def answers(self, questions: Tensor) -> Tensor:
        """Return for words a, b, c (N, 3) the word that is to c as b is to a: (N,)."""
        found = []
        for some in questions.split(BATCH):
            scores = self.offsets(some) @ self.directions.T  # (N, V)
            found.append(scores.scatter(1, some, -torch.inf).argmax(1))
        return torch.cat(found) if found else questions.new_zeros(0)

    # --- files

    def to_table(self) -> store.VectorTable:
        """Return what is stored in files."""
        return store.VectorTable(self.words, self.vectors, self.counts, self.output)

    def save(self, path: str | Path) -> None:
        """Write our folder: vectors.safetensors and vocabulary.json."""
        store.save(Path(path), self.to_table())

    def export(self, path: str | Path, to: str = "word2vec-text") -> float:
        """Write a word2vec file ("word2vec-text" or "word2vec-binary") or our folder ("qkv"), read it back, and return the largest
        difference."""
        return store.export(Path(path), to, self.to_table())


class OneHot(WordIndex):
    """The baseline: vector i is 1 at component i and 0 elsewhere, so that two different words have similarity 0."""

    def similarities(self, pairs: Tensor) -> Tensor:
        """Return 1 for two equal words, 0 for others: (N, 2) -> (N,)."""
        a, b = pairs.unbind(1)
        return (a == b).float()

    def answers(self, questions: Tensor) -> Tensor:
        """Return -1: b - a + c has product 0 with all words except b and c, so there is no nearest one."""
        return questions.new_full((len(questions),), -1)


Space = Vectors | OneHot
"""Words that can be compared and evaluated."""


def load_vectors(path: str | Path) -> Vectors:
    """Open word vectors: the folder of a run, our folder, or a word2vec file."""
    return Vectors(*store.read(Path(path)))
