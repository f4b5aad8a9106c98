"""Word2Vec: the parameters of a model, two vectors per word, and its sampling tables. reference.py has the training step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qkv.config.vectors import VectorsConfig
from qkv.vectors.huffman import Tree, huffman
from qkv.vectors.random import WORD, AliasTable, splitmix64_int
from qkv.vectors.vocabulary import WordCounts

LINE = 16
"""Float32 numbers of a cache line: each vector is aligned to one."""


@dataclass
class Word2Vec:
    """`input[w]` is the vector of w as context (the lecture's v), `output[w]` as predicted word (u). In hierarchical softmax the
    output vectors belong to the inner nodes of the tree."""

    config: VectorsConfig
    input: np.ndarray
    """(V, C) float32, rows aligned to LINE; these are the final word vectors."""
    output: np.ndarray
    """(V, C), or (V - 1, C) in a tree."""
    keep: np.ndarray
    """(V,) uint32: probability of being kept in subsampling."""
    noise: AliasTable | None
    """The distribution of negative samples, for loss = "negative"."""
    tree: Tree | None
    """The paths to the words, for loss = "hierarchical"."""
    length: int
    """Number of ids of the whole text, including END."""

    @classmethod
    def create(cls, c: VectorsConfig, vocabulary: WordCounts, length: int) -> Word2Vec:
        """Initialise as word2vec.c does: input vectors uniform in [-1/2C, 1/2C), output vectors 0."""
        size = len(vocabulary.words)
        tree = huffman(vocabulary.counts) if c.loss == "hierarchical" else None
        noise = vocabulary.noise(c.power) if c.loss == "negative" else None
        found = cls(c, rows(size, c.width), rows(size - (tree is not None), c.width), vocabulary.keep(c.sample), noise, tree,
                    length)  # fmt: skip
        found.input[:] = (np.random.default_rng(c.seed).random(found.input.shape, dtype=np.float32) - 0.5) / c.width
        return found

    @property
    def stride(self) -> int:
        """Numbers from one vector to the next; the padding is and stays 0."""
        return self.input.strides[0] // self.input.itemsize

    def seed(self, epoch: int) -> int:
        """Return the seed of an epoch."""
        return splitmix64_int(splitmix64_int(self.config.seed) + epoch) % WORD

    def rate(self, epoch: int, place: int) -> float:
        """Return the learning rate of the sentence at `place`: linear decay over all epochs."""
        c = self.config
        done = (epoch * self.length + place) / (c.epochs * self.length)
        return c.learning_rate + (c.last_rate - c.learning_rate) * done


def rows(count: int, width: int) -> np.ndarray:
    """Return zeros (count, width), each row aligned to a cache line."""
    padded = (width + LINE - 1) // LINE * LINE
    return torch.zeros(count, padded).numpy()[:, :width]  # torch aligns its memory to cache lines
