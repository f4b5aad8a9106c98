"""How well the heads of a trained English-German model align words, against the grammar's own alignments (claim C22).

    python benchmarks/alignment.py runs/demo [--sentences 300] [--write docs/results.md]

Prints the alignment error rate of every head, of the best one, and of the mean that `qkv translate --alignments` reads, on
sentences of the grammar's test split, which no training saw. A model of the demo needs about half a minute.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pages import machine, write

import qkv
from qkv.data.grammar import pairs
from qkv.look.alignment_error import AlignmentErrors


def section(found: AlignmentErrors) -> Iterator[str]:
    layer, head, rate = found.best
    command = shlex.join(["python", "benchmarks/alignment.py", *sys.argv[1:]])
    yield "## Alignment error rates of the demo's heads\n"
    yield f"{datetime.date.today()}, `{command}`, on {machine()}: {found.sentences} sentences of the grammar's test split.\n"
    yield "| layer | " + " | ".join(f"head {n}" for n in range(found.rates.size(1))) + " |"
    yield "|---|" + "---:|" * found.rates.size(1)
    for n, row in zip(found.layers, found.rates.tolist(), strict=True):
        yield f"| {n} | " + " | ".join(f"{one:.3f}" for one in row) + " |"
    yield f"\nBest head: layer {layer}, head {head}, **{rate:.3f}** (asked: under 0.15). Mean of the upper layers: {found.mean:.3f}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model trained on the grammar: runs/demo")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7, help="of the sentences")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    held_out = list(islice(pairs("test", given.seed), given.sentences))
    page = "\n".join(section(qkv.load(given.folder).looker().alignment_errors(held_out)))
    print(page)
    if given.write:
        write(given.write, "alignment", page)


if __name__ == "__main__":
    main()
