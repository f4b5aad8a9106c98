"""Vectors: words as points. Which are near each other, and what relates two of them; beside them the one-hot vectors, in which
no word is nearer to another than any third."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from qkv.errors import QkvError

LOOKED_THROUGH = 50_000
"""Of so many words, the most frequent ones, spellings are compared with a word that is not there."""
TOGETHER = 256
"""Questions that are answered in one product."""


class Near(NamedTuple):
    """A word, and the cosine of its vector with what was asked for."""

    word: str
    similarity: float


class NotOfVectors(QkvError, AttributeError):
    """Word vectors are asked for what only a network can do."""


class Space(Protocol):
    """What can be judged: words that may be compared."""

    def find(self, word: str) -> int | None: ...

    def similarities(self, pairs: Tensor) -> Tensor:
        """(N, 2) words -> (N,)."""
        ...

    def answers(self, questions: Tensor) -> Tensor:
        """(N, 3) words a, b, c -> (N,) the word that is to c as b is to a."""
        ...


class Words:
    """Words by their number, the most frequent first."""

    def __init__(self, words: Sequence[str]):
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.find(word) is not None

    def find(self, word: str) -> int | None:
        """Its number; where it is not there, that of the word in small letters."""
        found = self.index.get(word)
        return self.index.get(word.lower()) if found is None else found

    def number(self, word: str) -> int:
        """Its number, or an error with words that are spelled like it."""
        found = self.find(word)
        if found is None:
            raise QkvError(self.absent(word))
        return found

    def absent(self, word: str) -> str:
        """That a word is not there, and which are spelled like it."""
        near = get_close_matches(word.lower(), self.words[:LOOKED_THROUGH], n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "none is spelled like it"
        return f"{word!r} is not among the {len(self):,} words: {hint}"


class Vectors(Words):
    """Word i has the vector `vectors[i]`, (V, C). What training knows beside it is kept where it is known: how often a word
    occurs, and the output vectors."""

    def __init__(
        self, words: Sequence[str], vectors: Tensor, counts: Sequence[int] | None = None, output: Tensor | None = None
    ):
        super().__init__(words)
        if len(self.index) != len(vectors):
            raise QkvError(
                f"{len(self.index):,} different words and {len(vectors):,} vectors: there must be one for each"
            )
        self.vectors, self.counts, self.output = vectors, counts, output

    def __getattr__(self, name: str) -> object:
        raise NotOfVectors(
            f"these are word vectors: they have nearest, analogy, similarity, vector, save and export, but not {name!r}"
        )

    @cached_property
    def directions(self) -> Tensor:
        """(V, C), all of length 1: their products are cosines."""
        return self.vectors / self.vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)

    # --- one word or a few

    def vector(self, word: str) -> Tensor:
        """(C,)."""
        return self.vectors[self.number(word)]

    def similarity(self, a: str, b: str) -> float:
        """The cosine of their vectors, -1 to 1."""
        return float(self.similarities(torch.tensor([[self.number(a), self.number(b)]])))

    def nearest(self, word: str, n: int = 10) -> list[Near]:
        """The words whose vectors point most in its direction, without itself."""
        number = self.number(word)
        return self.around(self.directions[number], [number], n)

    def analogy(self, a: str, b: str, c: str, n: int = 10) -> list[Near]:
        """a is to b as c is to ...: the words nearest to b - a + c, without these three (3CosAdd: Mikolov et al. 2013)."""
        numbers = [self.number(word) for word in (a, b, c)]
        return self.around(self.meant(torch.tensor([numbers]))[0], numbers, n)

    def meant(self, questions: Tensor) -> Tensor:
        """(N, 3) -> (N, C): b - a + c."""
        a, b, c = self.directions[questions].unbind(1)
        return b - a + c

    def around(self, direction: Tensor, without: Sequence[int], n: int) -> list[Near]:
        if n < 1:
            raise QkvError(f"at least one word is asked for, given n = {n}")
        scores = self.directions @ (direction / direction.norm().clamp(min=1e-12))  # (V,)
        scores[list(without)] = -torch.inf
        best = scores.topk(min(n, len(self) - len(set(without))))
        return [Near(self.words[i], s) for i, s in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    # --- many

    def similarities(self, pairs: Tensor) -> Tensor:
        a, b = self.directions[pairs].unbind(1)
        return (a * b).sum(-1)

    def answers(self, questions: Tensor) -> Tensor:
        found = []
        for some in questions.split(TOGETHER):
            scores = self.meant(some) @ self.directions.T  # (N, V)
            found.append(scores.scatter(1, some, -torch.inf).argmax(1))
        return torch.cat(found) if found else questions.new_zeros(0)

    # --- keeping

    def save(self, path: str | Path) -> None:
        """Write our folder: vectors.safetensors and vocabulary.json."""
        from qkv.vectors.store import save

        save(Path(path), self)

    def export(self, path: str | Path, to: str = "word2vec-text") -> float:
        """Write a file of word2vec, "word2vec-text" or "word2vec-binary", or our folder ("qkv"), read it back and compare; the
        largest difference found."""
        from qkv.vectors.store import export

        return export(Path(path), to, self)


class OneHot(Words):
    """The baseline: word i is 1 at place i and 0 elsewhere. Two different words have the product 0, whatever they mean."""

    def similarities(self, pairs: Tensor) -> Tensor:
        a, b = pairs.unbind(1)
        return (a == b).float()

    def answers(self, questions: Tensor) -> Tensor:
        """b - a + c has a product above 0 with b and c alone, and 0 with all other words: there is no nearest one (-1)."""
        return questions.new_full((len(questions),), -1)
