"""Examples D1-D3: attention as a soft lookup, one-hot vectors, and the training pairs of word2vec."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.lab.example_steps import ExampleTable, Step, numbers
from qkv.parts.masks import Mask
from qkv.parts.scores import Dot
from qkv.parts.softmax import Softmax
from qkv.vectors.reference import logistic
from qkv.vectors.space import OneHot

ORDERS = [f"order_{number}" for number in range(100, 111)]
"""The table of lecture 004: keys with the values a1 ... k1."""


def look_up(queries: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return the weights (T, 11) and the outputs (T, 11) of a lookup in the table of orders.

    Keys and values are one-hot: component i of an output is the share of value i.
    """
    table = torch.eye(len(ORDERS))[None, None]  # (1, 1, 11, 11)
    mask, mixer = Mask(queries.size(-2), length=len(ORDERS)), Softmax(Dot(sharpness))
    return mixer.weights(queries, table, mask)[0, 0], mixer(queries, table, table, mask)[0, 0]


def d1() -> list[Step]:
    """Attention as a soft lookup (000, 001, 004): one key, a blend, two queries"""
    keys = torch.eye(len(ORDERS))
    query = keys[[4]][None, None]  # order_104: (1, 1, 1, 11)
    rows = []
    for sharpness in (1.0, 5.0, 20.0):
        weights, _ = look_up(query, sharpness)
        rows.append([f"scores x {sharpness:g}", f"{weights[0, 4]:.6f}", f"{weights[0, 6]:.6f}"])
    blend, _ = look_up(((keys[4] + keys[6]) / 2)[None, None, None], 40.0)
    both, out = look_up(keys[[4, 6]][None, None], 20.0)
    alone = torch.cat([look_up(keys[[i]][None, None], 20.0)[1] for i in (4, 6)])
    return [
        f"keys {ORDERS[0]} ... {ORDERS[-1]} with the values a1 ... k1; a query is compared with every key",
        "exact key, order_104: the larger its score, the more the soft lookup is a dictionary",
        ExampleTable(["", "weight of order_104", "of order_106"], rows),
        "a query halfway between order_104 and order_106 returns half of each value:",
        f"  weights {blend[0, 4]:.3f} and {blend[0, 6]:.3f}, all others together {1 - blend[0, 4] - blend[0, 6]:.3f}",
        "both queries at once are two rows of one product:",
        f"  row 1: {both[0, 4]:.6f} of e1; row 2: {both[1, 6]:.6f} of g1; "
        f"difference to one after the other {float((out - alone).abs().max()):.0e}",
    ]


def d2() -> list[Step]:
    """One-hot vectors (003): a product reads a row; hotel and motel"""
    hot = F.one_hot(torch.tensor([7, 10]), 15).float()  # (2, 15)
    matrix = torch.arange(45.0).view(15, 3)  # 15 words, width 3
    same, other = OneHot([str(i) for i in range(15)]).similarities(torch.tensor([[7, 7], [7, 10]])).tolist()
    dense = torch.tensor([[0.286, 0.792, -0.177, -0.107, 0.109, -0.542, 0.349, 0.271],
                          [0.413, 0.582, -0.007, 0.247, 0.216, -0.718, 0.147, 0.051]])  # fmt: skip
    return [
        f"hotel is 1 at place 7 of 15, motel at place 10; hotel x matrix (15 x 3) = {', '.join(numbers(hot[0] @ matrix, 0))}",
        f"row 7 of the matrix is {', '.join(numbers(matrix[7], 0))}; an embedding layer reads it without a product: "
        f"{', '.join(numbers(F.embedding(torch.tensor(7), matrix), 0))}",
        f"cosine of hotel with itself {same:g}, with motel {other:g}; distance sqrt(2) = {float((hot[0] - hot[1]).norm()):.4f}, "
        "as between any two words",
        "two dense vectors of the slides (banking and its neighbour): dot product "
        f"{float(dense[0] @ dense[1]):.3f}, cosine {float(F.cosine_similarity(dense[0], dense[1], dim=0)):.3f}",
        "trained vectors, and their analogies as an experiment:",
        "qkv train word2vec",
        "qkv lab run C21",
    ]


SENTENCE = "Marco saw a furry little wampimuk hiding in the tree".split()


def skip_gram_pairs(words: list[str], window: int) -> list[tuple[str, list[str]]]:
    """Return each centre word with the words at most `window` places away."""
    return [(word, words[max(t - window, 0) : t] + words[t + 1 : t + 1 + window]) for t, word in enumerate(words)]


def d3() -> list[Step]:
    """Training pairs of word2vec (003): the wampimuk, window by window"""
    pairs = skip_gram_pairs(SENTENCE, 2)
    negatives = ["Australia", "cyber", "the", "1985"]
    x, u = np.zeros(4, np.float32), np.zeros((5, 4), np.float32)
    loss, *_ = logistic(x, u, np.array([1, 0, 0, 0, 0], np.float32))
    counts = {"the": 60, "in": 20, "tree": 2, "wampimuk": 1}
    share, total = sum(counts.values()), sum(count**0.75 for count in counts.values())
    return [
        ExampleTable(["centre", "outside words (window 2)"], [[word, ", ".join(around)] for word, around in pairs], True),
        f"{sum(len(around) for _, around in pairs)} pairs; for wampimuk: {', '.join(pairs[5][1])}",
        f"negative samples of the slide for wampimuk: {', '.join(negatives)}; loss of one pair with these four before training: "
        f"{loss:.4f} = 5 log 2 = {5 * math.log(2):.4f}",
        "negatives are drawn by count^0.75, which favours rare words:",
        ExampleTable(["word", "count", "share", "share of draws"],
                     [[w, str(n), f"{n / share:.3f}", f"{n**0.75 / total:.3f}"] for w, n in counts.items()]),
        "windows are dynamic in word2vec: of 1 to `window` words, drawn at every position (vectors/reference.py)",
    ]  # fmt: skip
