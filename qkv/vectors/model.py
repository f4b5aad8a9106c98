"""Word2Vec: two vectors per word, and all that decides how they are learned. What one step is, says reference.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qkv.config.vectors import VectorsConfig
from qkv.vectors.huffman import Tree, huffman
from qkv.vectors.random import WORD, Alias, stirred
from qkv.vectors.vocabulary import Vocabulary

LINE = 16
"""Numbers of a cache line: each vector begins with one, so that none is in two more than it needs."""


@dataclass
class Word2Vec:
    """`input[w]` is word w's vector where it predicts (the lecture's v), `output[w]` where it is predicted (u). In hierarchical
    softmax the output vectors belong to the inner nodes of the tree."""

    config: VectorsConfig
    input: np.ndarray
    """(V, C) float32, rows LINE-aligned; this is the word vector that is kept."""
    output: np.ndarray
    """(V, C), or (V - 1, C) in a tree."""
    keep: np.ndarray
    """(V,) uint32: chance to survive subsampling."""
    noise: Alias | None
    """What negative samples are drawn from, for loss = "negative"."""
    tree: Tree | None
    """The ways to the words, for loss = "hierarchical"."""
    length: int
    """Ids of the whole text, ENDs counted."""

    @classmethod
    def begin(cls, c: VectorsConfig, vocabulary: Vocabulary, length: int) -> Word2Vec:
        """Input vectors evenly from -1/2C to 1/2C, output vectors 0, as word2vec.c begins."""
        size = len(vocabulary.words)
        tree = huffman(vocabulary.counts) if c.loss == "hierarchical" else None
        noise = vocabulary.noise(c.power) if c.loss == "negative" else None
        found = cls(c, rows(size, c.width), rows(size - (tree is not None), c.width), vocabulary.keep(c.sample), noise, tree,
                    length)  # fmt: skip
        found.input[:] = (np.random.default_rng(c.seed).random(found.input.shape, dtype=np.float32) - 0.5) / c.width
        return found

    @property
    def stride(self) -> int:
        """Numbers from one vector to the next; those behind a vector's end are 0 and stay 0."""
        return self.input.strides[0] // self.input.itemsize

    def seed(self, epoch: int) -> int:
        """What the draws of a pass begin with."""
        return stirred(stirred(self.config.seed) + epoch) % WORD

    def rate(self, epoch: int, place: int) -> float:
        """Learning rate of the sentence that begins at `place`: down a straight line over all passes."""
        c = self.config
        done = (epoch * self.length + place) / (c.epochs * self.length)
        return c.learning_rate + (c.last_rate - c.learning_rate) * done


def rows(count: int, width: int) -> np.ndarray:
    """(count, width) zeros, each row in cache lines of its own."""
    padded = (width + LINE - 1) // LINE * LINE
    return torch.zeros(count, padded).numpy()[:, :width]  # torch's memory begins with a cache line
