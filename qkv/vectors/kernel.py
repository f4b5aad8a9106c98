"""word2vec.cpp, compiled at first use; without a compiler reference.py computes the same, slowly."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import numpy as np

from qkv.engine import native
from qkv.engine.native import POINTER, WHOLE
from qkv.vectors import reference
from qkv.vectors.corpus import sentence_bounds
from qkv.vectors.model import Word2Vec

SOURCES = [Path(__file__).with_name("word2vec.cpp"), Path(native.__file__).with_name("vectors.h")]


class Work(ctypes.Structure):
    """The arguments of word2vec.cpp. They hold addresses: the caller keeps the arrays alive."""

    _fields_ = [("ids", POINTER), ("firsts", POINTER), ("ends", POINTER), ("sentences", WHOLE), ("place", WHOLE),
                ("input", POINTER), ("output", POINTER), ("rows", WHOLE), ("width", WHOLE), ("stride", WHOLE),
                ("keep", POINTER), ("coins", POINTER), ("others", POINTER), ("words", WHOLE), ("negative", WHOLE),
                ("window", WHOLE), ("starts", POINTER), ("nodes", POINTER), ("labels", POINTER), ("mean", ctypes.c_bool),
                ("seed", ctypes.c_uint64), ("rate", ctypes.c_double), ("slope", ctypes.c_double), ("workers", WHOLE),
                ("loss", ctypes.c_double), ("count", WHOLE)]  # fmt: skip


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library; None without a compiler."""
    found = native.load_library(SOURCES)
    if found is not None:
        found.word2vec.argtypes, found.word2vec.restype = [POINTER], None
    return found


def workers(requested: int) -> int:
    """Return the number of threads: as requested, 0 = one per available core; 1 without a compiler."""
    if library() is None:
        return 1
    return requested or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


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
    work = Work(at(ids), at(firsts), at(ends), len(ends), place, at(m.input), at(m.output), len(m.output), c.width, m.stride,
                at(m.keep), at(coins), at(others), len(m.input), c.negative, c.window, at(starts), at(nodes), at(labels),
                c.model == "cbow", m.seed(epoch), rate, slope, workers(c.workers), 0.0, 0)  # fmt: skip
    found.word2vec(ctypes.byref(work))
    return work.loss, work.count


def at(x: np.ndarray | None) -> int | None:
    return None if x is None else x.ctypes.data
