"""Heads: what turns the last vectors (B, T, C) into answers. `keys` (B, T) tells real tokens from padding, None = all real."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.dropout import dropout_layer
from qkv.parts.feedforward import ACTIVATIONS


class Vocabulary(nn.Module):
    """One score per word: x W^T + b. Tied, W is the embedding matrix itself (Press and Wolf 2017)."""

    copies = False
    """Whether it copies words of a source (pointer.py): it is then bound to the source of a batch before it is used."""

    def __init__(self, vocab_size: int, width: int, d_model: int, tied: nn.Parameter | None = None, bias: bool = False,
                 scale: float = 1.0):  # fmt: skip
        super().__init__()
        # words narrower than the stream (ALBERT) are reached through a projection
        self.project = nn.Linear(d_model, width, bias=False) if width != d_model else None
        self.weight = nn.Parameter(torch.randn(vocab_size, width) * width**-0.5) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.scale = scale

    def features(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., width): all that comes before the word matrix; the loss reads it without forming logits."""
        x = x if self.project is None else self.project(x)
        return x if self.scale == 1.0 else x * self.scale

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return F.linear(self.features(x), self.weight, self.bias)  # (..., V)

    def log_probs(self, x: Tensor) -> Tensor:
        """The natural logarithm of each word's probability."""
        return self(x).float().log_softmax(-1)  # (..., V)


class MaskedWord(nn.Module):
    """BERT's masked-word head: words(norm(gelu(dense(x))))."""

    copies = False

    def __init__(self, words: Vocabulary, d_model: int, width: int, activation: str, norm: nn.Module):
        super().__init__()
        self.dense = nn.Linear(d_model, width)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.words = words

    @property
    def weight(self) -> Tensor:
        return self.words.weight

    @property
    def bias(self) -> Tensor | None:
        return self.words.bias

    def inner(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))  # (B, T, width)

    def features(self, x: Tensor) -> Tensor:
        return self.words.features(self.inner(x))

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.words(self.inner(x))  # (B, T, V)


def first(x: Tensor, keys: Tensor | None) -> Tensor:
    """The vector of the first real token, wherever the padding stands: (B, T, C) -> (B, C)."""
    return x[:, 0] if keys is None else x[torch.arange(x.size(0), device=x.device), keys.int().argmax(1)]


def last(x: Tensor, keys: Tensor | None) -> Tensor:
    """The vector of the last real token: (B, T, C) -> (B, C)."""
    return first(x.flip(1), None if keys is None else keys.flip(1))


def mean(x: Tensor, keys: Tensor | None) -> Tensor:
    """The mean over the real tokens: (B, T, C) -> (B, C)."""
    if keys is None:
        return x.mean(1)
    return x.masked_fill(~keys[..., None], 0).sum(1) / keys.sum(1, keepdim=True)


POOLINGS = {"first": first, "mean": mean, "last": last}


class Pick(nn.Module):
    """One vector for the sequence, as it is: (B, T, C) -> (B, C)."""

    def __init__(self, pooling: str = "first"):
        super().__init__()
        self.pool = POOLINGS[pooling]

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.pool(x, keys)


class Pooler(nn.Module):
    """tanh(dense(the vector that stands for the sequence)): (B, T, C) -> (B, C)."""

    def __init__(self, d_model: int, pooling: str = "first"):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.pool = POOLINGS[pooling]

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return torch.tanh(self.dense(self.pool(x, keys)))


class Classes(nn.Module):
    """One score per class for the whole sequence: (B, T, C) -> (B, n)."""

    def __init__(self, d_model: int, n_classes: int, pooler: nn.Module, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        self.pooler = pooler
        self.dropout = dropout_layer(dropout)
        self.output = nn.Linear(d_model, n_classes, bias)

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.output(self.dropout(self.pooler(x, keys)))


class ClassesWords(Classes):
    """The same, with the next word beside it, which an auxiliary loss asks for (GPT, Radford et al. 2018, eq. 5)."""

    def __init__(self, d_model: int, n_classes: int, pooler: nn.Module, words: Vocabulary, dropout: float = 0.0):
        super().__init__(d_model, n_classes, pooler, dropout, bias=False)
        self.words = words


class MaskedNext(nn.Module):
    """BERT's two questions in pre-training: the word under the mask (B, T, V), which is what the head answers, and
    whether the second sentence follows the first: `next` (B, 2), class 0 = it does."""

    def __init__(self, words: MaskedWord, next_sentence: Classes):
        super().__init__()
        self.words = words
        self.next = next_sentence

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.words(x)  # (B, T, V)


class Tags(nn.Module):
    """One score per tag for each token: (B, T, C) -> (B, T, n)."""

    def __init__(self, d_model: int, n_tags: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout_layer(dropout)
        self.output = nn.Linear(d_model, n_tags)

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.output(self.dropout(x))


class Span(nn.Module):
    """Where does the answer begin, where does it end? Two scores per token: (B, T, C) -> (B, T, 2)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.output = nn.Linear(d_model, 2)

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.output(x)


class Replaced(nn.Module):
    """ELECTRA's question to each token: is it the original word? (B, T, C) -> (B, T)."""

    def __init__(self, d_model: int, activation: str):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.activation = ACTIVATIONS[activation]
        self.output = nn.Linear(d_model, 1)

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.output(self.activation(self.dense(x))).squeeze(-1)


class Nothing(nn.Module):
    """The vectors themselves are the answer."""

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return x
