"""Probes: what a linear classifier reads from the vectors of words in context (claim C19: apple the fruit, Apple the company).

A linear map, fitted by ridge regression in closed form, tests whether labels are linearly separable. Its accuracy is that of
leave-one-out cross-validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.look.embedding_space import cosines
from qkv.look.pictures import BarChart, Heatmap, Picture
from qkv.look.result import LookResult


@dataclass(frozen=True)
class Probe(LookResult):
    """How well a linear map separates the labels."""

    EXPLANATION: ClassVar[str] = (
        "Accuracy of a linear classifier that predicts the labels from the vectors, compared with chance."
    )

    labels: list[str]
    accuracy: float
    """Leave-one-out accuracy."""
    chance: float
    """The accuracy of always predicting the most frequent label."""
    answers: list[str]
    """The prediction for each example, by the map fitted without it."""

    def picture(self) -> Picture:
        title = f"linear probe: {', '.join(self.labels)}"
        return BarChart(title, ["accuracy", "chance"], torch.tensor([self.accuracy, self.chance]))


@dataclass(frozen=True)
class Contexts(LookResult):
    """One word in several texts: the similarity of its vectors."""

    EXPLANATION: ClassVar[str] = (
        "Cosine similarity of one word's vectors in different texts: the lower it is, the more the model separates the meanings. "
        "The embedding without context is the same in all texts."
    )

    word: str
    texts: list[str]
    cosines: Tensor
    """(texts, texts): cosines of its vectors in context."""
    static: Tensor
    """(texts,): cosines with the word's static vector, without context and position."""

    def picture(self) -> Picture:
        numbers = torch.cat([self.cosines, self.static[:, None]], 1)  # (texts, texts + 1)
        rows = [f"{number}: {text}" for number, text in enumerate(self.texts, 1)]
        columns = [*(str(number) for number in range(1, len(rows) + 1)), "without context"]
        words = [[f"{value:.2f}" for value in row] for row in numbers.tolist()]
        title = f"'{self.word}' in context: cosine similarity of its vectors"
        return Heatmap(title, {"": numbers}, rows, columns, True, words)


def probe(vectors: Tensor, labels: Sequence[str], strength: float = 1.0) -> Probe:
    """Fit a ridge regression from vectors (N, C) to one column per label; `strength` is the penalty on the weights, relative to
    the vectors' mean square.

    With all examples, scores = K (K + s)^-1 Y for K = X X^T; with one left out, they are
    y_i - a_i / g_ii where a = G Y and G = (K + s)^-1, so no example is ever in its own fit and nothing is fitted twice.
    """
    names = sorted(set(labels))
    if len(names) < 2 or len(vectors) != len(labels) or min(labels.count(name) for name in names) < 2:
        raise QkvError("a probe needs at least two labels, two examples of each, and one vector for each example")
    x = vectors.double()
    y = torch.tensor([[float(label == name) for name in names] for label in labels], dtype=torch.double)  # (N, labels)
    x = torch.cat([x / x.square().mean().sqrt(), torch.ones(len(x), 1, dtype=torch.double)], 1)  # a bias beside them
    inverse = torch.linalg.inv(x @ x.T + strength * x.size(1) / len(x) * torch.eye(len(x), dtype=torch.double))  # G
    left_out = y - (inverse @ y) / inverse.diagonal()[:, None]
    answers = [names[i] for i in left_out.argmax(1).tolist()]
    right = sum(a == b for a, b in zip(answers, labels, strict=True))
    return Probe(names, right / len(labels), max(labels.count(name) for name in names) / len(labels), answers)


def contexts(word: str, texts: Sequence[str], vectors: Tensor, static: Tensor) -> Contexts:
    """Compare the vectors (N, C) of a word in each text, and its static vector (C,) or (N, C)."""
    table = cosines(torch.cat([vectors, static.expand_as(vectors)]))  # (2N, 2N)
    n = len(vectors)
    return Contexts(word, list(texts), table[:n, :n], table[:n, n:].diagonal())
