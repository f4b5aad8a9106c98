"""The Huffman tree of hierarchical softmax: a word is a leaf, its probability a product along the path from the root.

    P(w | x) = prod over inner nodes n on the path to w:  sigma(u_n . x) where it goes left, sigma(-u_n . x) where right

V words have V - 1 inner nodes, each with a vector. Frequent words have short paths: a word of the text takes about
log2 V products instead of V (Morin and Bengio 2005; Mikolov et al. 2013).
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np


class Tree(NamedTuple):
    """The paths to all words, concatenated: word w has starts[w] to starts[w + 1]."""

    starts: np.ndarray
    """(V + 1,) int64."""
    nodes: np.ndarray
    """int32: inner nodes, 0 to V - 2."""
    labels: np.ndarray
    """float32: 1 = left, 0 = right."""

    def path(self, word: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and labels from the root to a word."""
        part = slice(self.starts[word], self.starts[word + 1])
        return self.nodes[part], self.labels[part]


def huffman(counts: np.ndarray) -> Tree:
    """Build the tree by merging the two rarest nodes repeatedly (Huffman 1952); ties are broken by age."""
    size = len(counts)
    heap = [(int(count), leaf) for leaf, count in enumerate(counts)]
    heapq.heapify(heap)
    children: list[tuple[int, int]] = []  # of node size + i
    while len(heap) > 1:
        rarest, next_one = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (rarest[0] + next_one[0], size + len(children)))
        children.append((next_one[1], rarest[1]))
    paths: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())] * (2 * size - 1)
    for inner in range(size - 2, -1, -1):  # the root was made last
        nodes, labels = paths[size + inner]
        for child, label in zip(children[inner], (1.0, 0.0), strict=True):
            paths[child] = (*nodes, inner), (*labels, label)
        paths[size + inner] = ((), ())  # no longer needed
    lengths = [len(nodes) for nodes, _ in paths[:size]]
    flat = [np.array([x for path in paths[:size] for x in path[part]], dtype=kind)
            for part, kind in ((0, np.int32), (1, np.float32))]  # fmt: skip
    return Tree(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), flat[0], flat[1])
