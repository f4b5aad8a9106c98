"""What int8 costs in quality: each model in float32 and in int8, on the same texts.

    python benchmarks/int8_quality.py --data DATA                          # 3 minutes

- example: BLEU on 1,000 held-out sentences of the grammar, beam 4; and how many translations are the same
- MiniLM (DATA/all_minilm_l6_v2): Spearman's rank correlation on the STS-B test set (DATA/stsb)
- stories260K (DATA/stories260K): perplexity of 32 stories that it generates in float32, sampled at temperature 1
- SmolLM2-135M: perplexity of the first 256 tokens of 40 IMDB test reviews (DATA/imdb), with the q8_0 blocks of a GGUF file

Models and data that are not there are listed as not measured.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import lzma
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pages
import weights
from harness import heading
from scipy.stats import spearmanr

import qkv
from qkv.api import Model
from qkv.data.grammar import pairs
from qkv.evaluate.scores import bleu

TITLE = "Quality in int8"
DATA = Path(os.environ.get("QKV_DATA", "data"))
STORIES, STORY = 32, 200
REVIEWS, REVIEW = 40, 256
"""Texts, and tokens of each."""


@dataclass(frozen=True)
class Quality:
    """One score in float32 and in int8; `change` is what is bounded, by `limit`, where there is a bound."""

    name: str
    float32: float
    int8: float
    change: float
    unit: str
    limit: float | None

    def row(self) -> str:
        verdict = "" if self.limit is None else "met" if abs(self.change) <= self.limit else "NOT met"
        bound = "" if self.limit is None else f"{self.limit:g} {self.unit}".strip()
        return f"| {self.name} | {self.float32:.4f} | {self.int8:.4f} | {f'{self.change:+.4f} {self.unit}'.strip()} | {bound} | {verdict} |"


def absolute(name: str, float32: float, int8: float, limit: float | None) -> Quality:
    return Quality(name, float32, int8, int8 - float32, "", limit)


def relative(name: str, float32: float, int8: float, limit: float | None) -> Quality:
    return Quality(name, float32, int8, 100 * (int8 / float32 - 1), "%", limit)


# --- the models


def example(data: Path) -> Iterator[Quality]:
    held_out = list(islice(pairs("test"), 1000))
    sources, targets = [pair.source for pair in held_out], [pair.target for pair in held_out]
    exact, rounded = (qkv.load("example", "cpu", precision).translate(sources) for precision in ("float32", "int8"))
    yield absolute("example, BLEU of 1,000 sentences", bleu(exact, targets), bleu(rounded, targets), 0.3)
    same = sum(a == b for a, b in zip(exact, rounded, strict=True))
    yield absolute("example, translations equal to those in float32", len(exact), same, None)


def minilm(data: Path) -> Iterator[Quality]:
    with gzip.open(data / "stsb" / "sts-test.csv.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(row) >= 7]
    scores = [float(row[4]) for row in rows]
    ranks = []
    for precision in ("float32", "int8"):
        model = qkv.load(data / "all_minilm_l6_v2", "cpu", precision)
        left, right = (model.embed([row[column] for row in rows]) for column in (5, 6))
        ranks.append(float(spearmanr((left * right).sum(-1).numpy(), scores).statistic))
    yield absolute(f"MiniLM, STS-B Spearman, {len(rows):,} pairs", *ranks, 0.003)


def stories(data: Path) -> Iterator[Quality]:
    path = data / "stories260K" / "stories260K.bin"
    exact, rounded = (qkv.load(path, "cpu", precision) for precision in ("float32", "int8"))
    texts = ["".join(exact.generate("Once upon a time", STORY, temperature=1.0, seed=seed)) for seed in range(STORIES)]
    found = perplexity(exact, texts), perplexity(rounded, texts)
    yield relative(f"stories260K, perplexity of {STORIES} of its stories", *found, 1.0)


def smollm2(data: Path) -> Iterator[Quality]:
    path = weights.ensure("smollm2") / "q8_0.gguf"
    with lzma.open(data / "imdb" / "test.jsonl.xz", "rt", encoding="utf-8") as file:
        reviews = [json.loads(line)["text"] for line in islice(file, REVIEWS)]
    model = qkv.load(path, "cpu", "float32")
    words = model.words()
    texts = [words.decode(words.encode(text)[:REVIEW]) for text in reviews]
    found = perplexity(model, texts), perplexity(qkv.load(path, "cpu"), texts)
    yield relative(f"SmolLM2-135M (q8_0), perplexity of {REVIEWS} reviews", *found, 1.0)


def perplexity(model: Model, texts: list[str]) -> float:
    """exp of the mean loss of all tokens."""
    found = model.score(texts)
    return math.exp(-sum(one.log_prob for one in found) / sum(len(one.tokens) for one in found))


MODELS: dict[str, Callable[[Path], Iterator[Quality]]] = {
    "example": example, "minilm": minilm, "stories260K": stories, "smollm2": smollm2,
}  # fmt: skip


def report(data: Path, names: list[str]) -> Iterator[str]:
    yield "| | float32 | int8 | change | allowed | |\n|---|---:|---:|---:|---|---|"
    for name in names:
        start = time.perf_counter()
        try:
            yield from (one.row() for one in MODELS[name](data))
        except FileNotFoundError as missing:
            yield f"| {name} | not measured: {Path(missing.filename).name} is missing | | | | |"
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of models and data; default: QKV_DATA")
    parser.add_argument("--only", choices=list(MODELS), action="append")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of this Markdown file")  # fmt: skip
    given = parser.parse_args()
    lines = [heading(TITLE, "int8_quality.py --data DATA")]
    for line in report(given.data, given.only or list(MODELS)):
        print(line, flush=True)
        lines.append(line)
    if given.write:
        pages.write(given.write, "int8_quality", "\n".join(lines))


if __name__ == "__main__":
    main()
