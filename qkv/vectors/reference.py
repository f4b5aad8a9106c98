"""word2vec to read beside its equations, in numpy; and what learns where there is no compiler. word2vec.cpp does the same.

The lecture maximises, over all places t of the text and all places t + j in a window around it, log P(w_{t+j} | w_t). Every
pair of neighbours is in that sum both ways round, so it may be ordered by the word that is predicted: here w_t is predicted
by each of its neighbours (skip-gram), or by their mean (CBOW), as in word2vec.c. With x the vector that predicts:

    softmax        P(w | x) = exp(u_w . x) / sum_v exp(u_v . x)
    negative       log sigma(u_w . x) + sum_k log sigma(-u_k . x),   k drawn by count^0.75
    hierarchical   sum_n log sigma(+-u_n . x),                       n the nodes on the way to w

The last two are both some rows u with a label each, 1 or 0: `logistic`. These rows are the same for all neighbours of a
place, so that they are read and changed once per place and not once per neighbour (the batches of Ji et al. 2016): each
pair has its negative samples, and neighbours of one place share them.
"""

from __future__ import annotations

import numpy as np

from qkv.vectors.corpus import bounds
from qkv.vectors.model import Word2Vec
from qkv.vectors.random import Draws, below, high

Vector = np.ndarray
"""(C,)."""


def logistic(x: Vector, u: np.ndarray, labels: Vector) -> tuple[float, Vector, np.ndarray]:
    """- sum_k log sigma(+-u_k . x), + where the label is 1; and its gradients by x (C,) and by u (K, C).

    d/ds of -log sigma(s) is sigma(s) - 1, of -log sigma(-s) it is sigma(s): in one, sigma(s) - label.
    """
    s = u @ x  # (K,)
    loss = np.logaddexp(0, np.where(labels == 1, -s, s)).sum()
    error = 1 / (1 + np.exp(-s)) - labels
    return float(loss), error @ u, np.outer(error, x)


def softmax(x: Vector, u: np.ndarray, word: int) -> tuple[float, Vector, np.ndarray]:
    """-log P(word | x), and its gradients by x (C,) and by u (V, C): d/ds_v is P(v | x) - [v = word]."""
    s = u @ x  # (V,)
    p = np.exp(s - s.max())
    loss = np.log(p.sum()) + s.max() - s[word]
    error = p / p.sum()
    error[word] -= 1
    return float(loss), error @ u, np.outer(error, x)


def learn(m: Word2Vec, ids: np.ndarray, epoch: int, place: int) -> tuple[float, int]:
    """Go over the sentences of `ids`, which begin at `place` of the text: the sum of the losses, each before its step, and over
    how many predictions it is."""
    total, count = 0.0, 0
    for first, end in zip(*bounds(ids), strict=True):
        draws = Draws(m.seed(epoch), place + int(first))
        rate = np.float32(m.rate(epoch, place + int(first)))
        words = ids[first:end]
        words = words[high(draws.take(len(words))) <= m.keep[words]]  # subsampling
        if len(words) < 2:
            continue
        spans = 1 + below(draws.take(len(words)), m.config.window)
        for t, (word, span) in enumerate(zip(words, spans, strict=True)):
            rows, labels = targets(m, int(word), draws)
            around = np.concatenate([words[max(t - span, 0) : t], words[t + 1 : t + 1 + span]])
            groups = (
                around[:, None] if m.config.model == "skip-gram" else around[None]
            )  # of words that predict together
            total += predict(m, groups, int(word), rows, labels, rate)
            count += len(groups)
    return total, count


def targets(m: Word2Vec, word: int, draws: Draws) -> tuple[np.ndarray, Vector]:
    """The output rows that decide whether a word is predicted, and their labels; of softmax none, since all do."""
    if m.tree is not None:
        return m.tree.way(word)
    if m.noise is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    drawn = m.noise.draw(draws.take(m.config.negative))
    rows = np.concatenate([[word], drawn[drawn != word]])  # the right word is not wrong at the same time
    return rows, (np.arange(len(rows)) == 0).astype(np.float32)


def predict(m: Word2Vec, groups: np.ndarray, word: int, rows: np.ndarray, labels: Vector, rate: np.float32) -> float:
    """One place: each group of neighbours (G, n) predicts the word, and all learn from it; the loss.

    Input vectors change at once, the rows when all groups are done (of softmax, at once too).
    """
    u, change, total = m.output[rows], np.zeros((len(rows), m.config.width), dtype=np.float32), 0.0
    for group in groups:
        x = m.input[group].mean(0)
        if m.config.loss == "softmax":
            loss, dx, du = softmax(x, m.output, word)
            m.output -= rate * du
        else:
            loss, dx, du = logistic(x, u, labels)
            change += du
        np.subtract.at(m.input, group, rate / np.float32(len(group)) * dx)  # x is a mean: each has its share
        total += loss
    np.subtract.at(m.output, rows, rate * change)  # a row may be there twice
    return total
