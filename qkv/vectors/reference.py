"""The reference implementation of word2vec in numpy, used where there is no compiler. word2vec.cpp computes the same.

The lecture maximises log P(w_{t+j} | w_t) over all positions t and all t + j in a window around t. Every pair of neighbours is
in that sum in both directions, so it can be ordered by the predicted word: here w_t is predicted from each of its neighbours
(skip-gram), or from their mean (CBOW), as in word2vec.c. With x the vector of the context:

    softmax        P(w | x) = exp(u_w . x) / sum_v exp(u_v . x)
    negative       log sigma(u_w . x) + sum_k log sigma(-u_k . x),   k drawn by count^0.75
    hierarchical   sum_n log sigma(+-u_n . x),                       n the nodes on the path to w

The last two are logistic regressions on some rows u with labels 1 or 0: `logistic`. All neighbours of a position share these
rows, so that they are read and updated once per position and not once per neighbour (the batches of Ji et al. 2016).
"""

from __future__ import annotations

import numpy as np

from qkv.vectors.corpus import sentence_bounds
from qkv.vectors.model import Word2Vec
from qkv.vectors.random import RandomStream, high_bits, to_range

Vector = np.ndarray
"""(C,)."""


def logistic(x: Vector, u: np.ndarray, labels: Vector) -> tuple[float, Vector, np.ndarray]:
    """Return -sum_k log sigma(+-u_k . x), + where the label is 1, and its gradients by x (C,) and by u (K, C).

    d/ds of -log sigma(s) is sigma(s) - 1, of -log sigma(-s) it is sigma(s): together sigma(s) - label.
    """
    s = u @ x  # (K,)
    loss = np.logaddexp(0, np.where(labels == 1, -s, s)).sum()
    error = 1 / (1 + np.exp(-s)) - labels
    return float(loss), error @ u, np.outer(error, x)


def softmax(x: Vector, u: np.ndarray, word: int) -> tuple[float, Vector, np.ndarray]:
    """Return -log P(word | x) and its gradients by x (C,) and by u (V, C): d/ds_v is P(v | x) - [v = word]."""
    s = u @ x  # (V,)
    p = np.exp(s - s.max())
    loss = np.log(p.sum()) + s.max() - s[word]
    error = p / p.sum()
    error[word] -= 1
    return float(loss), error @ u, np.outer(error, x)


def learn(m: Word2Vec, ids: np.ndarray, epoch: int, place: int) -> tuple[float, int]:
    """Train on the sentences of `ids`, which start at position `place` of the text; return the sum of the losses, each before its
    update, and the number of predictions."""
    total, count = 0.0, 0
    for first, end in zip(*sentence_bounds(ids), strict=True):
        draws = RandomStream(m.seed(epoch), place + int(first))
        rate = np.float32(m.rate(epoch, place + int(first)))
        words = ids[first:end]
        words = words[high_bits(draws.take(len(words))) <= m.keep[words]]  # subsampling
        if len(words) < 2:
            continue
        spans = 1 + to_range(draws.take(len(words)), m.config.window)
        for t, (word, span) in enumerate(zip(words, spans, strict=True)):
            rows, labels = targets(m, int(word), draws)
            around = np.concatenate([words[max(t - span, 0) : t], words[t + 1 : t + 1 + span]])
            groups = around[:, None] if m.config.model == "skip-gram" else around[None]  # of words with one prediction
            total += predict(m, groups, int(word), rows, labels, rate)
            count += len(groups)
    return total, count


def targets(m: Word2Vec, word: int, draws: RandomStream) -> tuple[np.ndarray, Vector]:
    """Return the output rows and labels of the logistic regressions for a word; empty for softmax, which uses all rows."""
    if m.tree is not None:
        return m.tree.path(word)
    if m.noise is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    drawn = m.noise.draw(draws.take(m.config.negative))
    rows = np.concatenate([[word], drawn[drawn != word]])  # a positive is not a negative too
    return rows, (np.arange(len(rows)) == 0).astype(np.float32)


def predict(m: Word2Vec, groups: np.ndarray, word: int, rows: np.ndarray, labels: Vector, rate: np.float32) -> float:
    """Update the vectors for one position, whose word is predicted from each group of neighbours (G, n); return the loss.

    Input vectors are updated after each group, output rows after all groups (softmax: after each).
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
        np.subtract.at(m.input, group, rate / np.float32(len(group)) * dx)  # x is a mean
        total += loss
    np.subtract.at(m.output, rows, rate * change)  # a row may occur twice
    return total
