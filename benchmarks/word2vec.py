"""word2vec beside gensim on the reviews of IMDB: `python benchmarks/word2vec.py --data FOLDER [--judge FOLDER] [--write docs/results.md]`.

FOLDER has train.jsonl and test.jsonl (also .xz) of IMDB; that of --judge wordsim353.tsv, simlex999.txt and questions-words.txt
(also .gz). Both systems get the same words in the same sentences, skip-gram with negative sampling, width 100, window 5,
5 negative samples, subsampling at 1e-3, words that occur 5 times or more, 2 workers. One thing differs, by design: gensim draws
negative samples for each pair of neighbours, qkv once for all neighbours of a place (Ji et al. 2016), and so reads fewer rows.

Speed: words of the text per second of one pass (before subsampling and rare words), interleaved, medians of 3 (--repeats).
"qkv" has made the words into numbers before the first pass, as `qkv train` does; "qkv +encode" does it again in every pass,
which gensim must do too. Quality (--epochs passes, 5): both are scored by qkv.vectors.evaluate, for several seeds (--seeds), so
that the noise is seen; and the loss with one worker and with two.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Work, compare, table, verdict, worker
from pages import machine, write

from qkv.config.vectors import TextConfig, VectorsConfig
from qkv.vectors import kernel
from qkv.vectors.corpus import open_ids, sentences, sources, write_ids
from qkv.vectors.evaluate import evaluate
from qkv.vectors.model import Word2Vec
from qkv.vectors.space import OneHot, Vectors
from qkv.vectors.vocabulary import WordCounts, count_words

SYSTEMS = ["qkv", "qkv +encode", "gensim"]
WORKERS = 2
ASKED = 1.0
DIFFERENCE = """Equal settings (skip-gram, width 100, window 5, 5 negative samples, subsampling at 1e-3, minimum count 5, rate 0.025
to 0.0001) but for one thing: gensim draws negative samples for each pair of neighbours, qkv once for all neighbours of a place
(Ji et al. 2016), and so reads fewer rows.
"""


@cache
def text(data: str) -> tuple[list[list[str]], WordCounts]:
    """All sentences, in memory: gensim is fastest so. And the words that both know."""
    corpora = tuple({"dataset": "imdb", "split": split} for split in ("train+valid", "test"))
    config = TextConfig(root=data, train=corpora)  # type: ignore[arg-type]
    one: dict[str, str] = {}  # a word that occurs again is the same string, or the memory would not do
    read = [[one.setdefault(word, word) for word in words] for words in sentences(sources(config), config) if words]
    return read, count_words(read, VectorsConfig().min_count, 10**6)


def ids_of(data: str) -> np.ndarray:
    """The row of ids, by way of the disk as `qkv train` has it."""
    with tempfile.TemporaryDirectory() as folder:
        write_ids(Path(folder) / "ids", *text(data))
        return np.array(open_ids(Path(folder) / "ids"))


def gensim_model(data: str, epochs: int, seed: int, workers: int) -> Any:
    from gensim.models import Word2Vec as Theirs

    c = VectorsConfig()
    model = Theirs(
        vector_size=c.width, window=c.window, negative=c.negative, hs=0, sg=1, sample=c.sample, min_count=c.min_count,
        alpha=c.learning_rate, min_alpha=c.last_rate, workers=workers, seed=seed, epochs=epochs,
    )  # fmt: skip
    model.build_vocab(text(data)[0])
    return model


# --- speed


def build(system: str, case: dict[str, Any]) -> Work:
    """One unit is one pass over the text."""
    data = case["data"]
    read, vocabulary = text(data)
    units = float(sum(map(len, read)))
    if system == "gensim":
        model = gensim_model(data, 1, 1, WORKERS)
        return Work(unpinned(lambda: model.train(read, total_examples=model.corpus_count, epochs=1)), units, warmup=1)
    ids = ids_of(data)
    m = Word2Vec.create(VectorsConfig(workers=WORKERS, epochs=10), vocabulary, len(ids))
    learn = lambda: kernel.learn(m, ids_of(data) if "encode" in system else ids, 0, 0)  # noqa: E731
    return Work(unpinned(learn), units, warmup=1)


def unpinned(unit: Callable[[], object]) -> Callable[[], object]:
    """gensim starts new threads in every pass; they would inherit the one processor that the harness gave the old ones."""
    everywhere = os.sched_getaffinity(0)

    def work() -> None:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), everywhere)
        unit()

    return work


def speed(data: str, repeats: int) -> Iterator[str]:
    rows = compare(__file__, SYSTEMS, {"data": data}, WORKERS, repeats)
    yield table("Skip-gram with negative sampling, one pass over IMDB, 2 workers", "words/s", rows)
    yield verdict(rows, ["gensim"], ASKED)
    yield verdict([row for row in rows if row.system != "qkv"], ["gensim"], ASKED)


# --- quality

numbered = cache(ids_of)


def ours(data: str, epochs: int, seed: int, workers: int) -> tuple[Vectors, float, float]:
    """Vectors, minutes, and the loss of the last pass."""
    ids, vocabulary = numbered(data), text(data)[1]
    m = Word2Vec.create(VectorsConfig(workers=workers, epochs=epochs, seed=seed), vocabulary, len(ids))
    start = time.monotonic()
    total, count = [kernel.learn(m, ids, epoch, 0) for epoch in range(epochs)][-1]
    minutes = (time.monotonic() - start) / 60
    return Vectors(vocabulary.words, torch.from_numpy(np.ascontiguousarray(m.input))), minutes, total / count


def theirs(data: str, epochs: int, seed: int) -> tuple[Vectors, float]:
    model = gensim_model(data, epochs, seed, WORKERS)
    start = time.monotonic()
    model.train(text(data)[0], total_examples=model.corpus_count, epochs=epochs)
    minutes = (time.monotonic() - start) / 60
    return Vectors(model.wv.index_to_key, torch.from_numpy(model.wv.vectors.copy())), minutes


def scores(space: Any, folder: Path) -> dict[str, float]:
    """Of each file in per cent; the sections of the analogies left out."""
    questions = next(folder.glob("questions-words.txt*"))
    return {one.name: one.value for one in evaluate(space, [folder / "wordsim353.tsv", folder / "simlex999.txt"], questions)
            if one.unit == "pairs" or one.sections}  # fmt: skip


def spread(values: list[float], digits: int) -> str:
    """Mean, and with several values their standard deviation."""
    apart = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{apart}"


def row(name: str, workers: int, found: list[dict[str, float]], minutes: list[float], losses: list[float]) -> str:
    """One system, over its seeds."""
    cells = [spread([one[key] for one in found], 2) for key in found[0]]
    loss = spread(losses, 4) if losses else ""
    took = f"{statistics.mean(minutes):.2f}" if minutes else ""
    return f"| {name} | {workers or ''} | {' | '.join(cells)} | {loss} | {took} |"


def quality(data: str, folder: Path, epochs: int, seeds: int) -> Iterator[str]:
    read, vocabulary = text(data)
    yield (
        f"**Quality**: {sum(map(len, read)):,} words, {len(vocabulary.words):,} different ones, {epochs} passes, seeds 1 to "
        f"{seeds}: mean ± standard deviation; Spearman's correlation and accuracy in per cent\n"
    )
    yield "| system | workers | WordSim-353 | SimLex-999 | analogies | loss per pair, last pass | minutes |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for workers in (1, WORKERS):
        runs = [ours(data, epochs, seed, workers) for seed in range(1, seeds + 1)]
        yield row(
            "qkv", workers, [scores(v, folder) for v, _, _ in runs], [m for _, m, _ in runs], [x for _, _, x in runs]
        )
    peers = [theirs(data, epochs, seed) for seed in range(1, seeds + 1)]
    yield row("gensim", WORKERS, [scores(v, folder) for v, _ in peers], [m for _, m in peers], [])
    yield row("one-hot", 0, [scores(OneHot(vocabulary.words), folder)], [], [])
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    command = (
        f"python benchmarks/word2vec.py --data FOLDER --judge FOLDER --epochs {options.epochs} --seeds {options.seeds}"
    )
    parts = [
        f"## Word vectors\n\n{datetime.date.today()}, `{command}`, IMDB, on {machine(('numpy', 'gensim'))}.\n{DIFFERENCE}"
    ]
    fast = speed(options.data, options.repeats) if options.repeats else ()
    good = quality(options.data, options.judge, options.epochs, options.seeds) if options.judge else ()
    for line in chain(fast, good):
        print(line, flush=True)
        parts.append(line)
    if options.write:
        write(options.write, "word2vec", "\n".join(parts))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(build)
    else:
        main()
