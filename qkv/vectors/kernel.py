"""word2vec in C++ (engine/cpp/word2vec.cpp); without compiled kernels reference.py computes the same, slowly."""

from __future__ import annotations

import ctypes

import numpy as np

from qkv.device import cores
from qkv.engine.native import Word2VecStruct, library
from qkv.vectors import reference
from qkv.vectors.corpus import sentence_bounds
from qkv.vectors.model import Word2Vec


def workers(requested: int) -> int:
    """Return the number of threads: as requested, 0 = one per available core; 1 without a compiler."""
    if library() is None:
        return 1
    return requested or cores()


def learn(m: Word2Vec, ids: np.ndarray, epoch: int, place: int) -> tuple[float, int]:
    """Train like reference.learn, on all threads. They update shared vectors without locks (Hogwild: Niu et al. 2011)."""
    found = library()
    if found is None:
        return reference.learn(m, ids, epoch, place)
    c, ids = m.config, np.ascontiguousarray(ids)
    firsts, ends = sentence_bounds(ids)
    rate, slope = m.rate(epoch, place), (c.last_rate - c.learning_rate) / (c.epochs * m.length)
    coins, others = m.noise or (None, None)
    starts, nodes, labels = m.tree or (None, None, None)
    work = Word2VecStruct(at(ids), at(firsts), at(ends), len(ends), place, at(m.input), at(m.output), len(m.output), c.width, m.stride,
                at(m.keep), at(coins), at(others), len(m.input), c.negative, c.window, at(starts), at(nodes), at(labels),
                c.model == "cbow", m.seed(epoch), rate, slope, workers(c.workers), 0.0, 0)  # fmt: skip
    found.word2vec(ctypes.byref(work))
    return work.loss, work.count


def at(x: np.ndarray | None) -> int | None:
    return None if x is None else x.ctypes.data
