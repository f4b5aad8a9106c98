"""results.json and the model card (README.md) of a run of word2vec."""

from __future__ import annotations

import os
import platform
from typing import Any

import qkv
from qkv.text.wording import format_duration
from qkv.train.card import LICENCE, origin
from qkv.train.report import digits
from qkv.vectors import kernel
from qkv.vectors.evaluate import evaluation_files, score_vectors
from qkv.vectors.state import VectorsRun


def results(r: VectorsRun) -> dict[str, Any]:
    """Return the contents of results.json."""
    c, p, m = r.recipe.vectors, r.progress, r.model
    words = int(r.vocabulary.counts.sum())
    return {
        "task": "vectors",
        "training": {
            "ended": r.why, "epochs": p.epoch, "minutes": p.seconds / 60,
            "words_per_second": round(words * p.epoch / max(p.seconds, 1e-9)), "seed": c.seed,
            "workers": kernel.workers(c.workers), "kernel": "reference" if kernel.library() is None else "native",
            "cores": os.cpu_count(), "qkv": qkv.__version__, "python": platform.python_version(),
        },
        "data": {"words": words, "dropped": p.skipped},
        "model": {"parameters": m.input.size + m.output.size, "words": len(r.vocabulary.words), "width": c.width},
        "losses": [total / count for total, count in p.losses],
        "loss": p.loss,
        "test": score_vectors(r.vectors, *evaluation_files(c)),
    }  # fmt: skip


def card(r: VectorsRun, name: str) -> str:
    """Return README.md, with the metadata of the Hugging Face hub as front matter."""
    c, found = r.recipe.vectors, r.results
    t, m, test = found["training"], found["model"], found["test"]
    scores = test["scores"] if test else []
    rows = [f"| {s['name']} | {digits(s['value'])} | {digits(s['one_hot'])} | {s['details']} |" for s in scores]
    table = ["| file | score, per cent | one-hot vectors | items |", "|---|---:|---:|---|", *rows, ""] if rows else []
    how = {"negative": f"{c.negative} negative samples by count^{c.power:g}", "hierarchical": "hierarchical softmax",
           "softmax": "full softmax"}[c.loss]  # fmt: skip
    return "\n".join([
        f'---\nlicense: "{LICENCE.partition(":")[0]}"\nlibrary_name: "qkv"\ntags: ["word2vec", "word-vectors"]\n---',
        f"# {name}: word vectors\n",
        f"{m['words']:,} word vectors of width {m['width']}, trained with qkv {t['qkv']} (word2vec, {c.model}).\n",
        "## Scores\n", *table,
        f"Training loss in the last epoch: {found['loss']:.4f} per prediction.\n",
        "## Use\n",
        "```bash\nqkv nearest FOLDER WORD        # FOLDER: where this file is\nqkv analogy FOLDER A B C       # A is to B as C is to ?\n"
        "qkv export FOLDER vectors.txt --to word2vec-text\n```\n",
        "## Data\n",
        *(f"- {origin(corpus)}" for corpus in r.recipe.data.train),
        f"- {found['data']['words']:,} words, without those that occur fewer than {c.min_count} times\n",
        "## Training\n",
        f"- {c.model}, {how}, window up to {c.window}, subsampling threshold {c.sample:g}",
        f"- {t['epochs']} epochs, learning rate {c.learning_rate:g} to {c.last_rate:g}, seed {t['seed']}, workers: {t['workers']}; "
        f"{format_duration(60 * t['minutes'])}, {t['words_per_second']:,} words/s\n",
        f"## Licence\n\n{LICENCE}. State the licence of the training data here.\n",
    ])  # fmt: skip
