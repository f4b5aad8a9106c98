"""How well the heads of a trained English-German model align words, against the grammar's own alignments (claim C22).

    python benchmarks/alignment.py runs/demo [--sentences 300]

Prints the alignment error rate of the best head and of the mean that `qkv translate --alignments` reads, on sentences of the
grammar's test split, which no training saw. A model of the demo needs about half a minute.
"""

from __future__ import annotations

import argparse
from itertools import count, islice

import torch

import qkv
from qkv.data.grammar import Grammar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model trained on the grammar: runs/demo")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7, help="of the sentences")
    given = parser.parse_args()
    grammar = Grammar(given.seed)
    drafts = (draft for number in count() if (draft := grammar.draft(number)).split == "test")
    pairs = [draft.pair() for draft in islice(drafts, given.sentences)]
    found = qkv.load(given.folder).looker().alignment_errors(pairs)
    torch.set_printoptions(precision=3)
    layer, head, rate = found.best
    print(f"alignment error rate of {found.sentences} sentences, every layer and head:\n{found.rates}")
    print(f"best head: layer {layer}, head {head}: {rate:.3f}; mean of the upper layers: {found.mean:.3f}")


if __name__ == "__main__":
    main()
