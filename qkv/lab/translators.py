"""Translators from LSTM to Transformer, trained alike: one data set, vocabulary, optimiser and number of updates (C2, C16, C22)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from qkv.config import Recipe
from qkv.data.grammar import Pair, pairs
from qkv.lab.training import TrainedNetwork, make_recipe, train_network
from qkv.look.alignment_error import align_pair, alignment_errors
from qkv.models.flops import training_flops
from qkv.tasks.base import Task

RECURRENT: dict[str, Any] = {"n_layers": 1, "position": "none"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "LSTM seq2seq": {**RECURRENT, "recurrent": "lstm", "reverse_source": True},
    "RNNenc": {**RECURRENT, "recurrent": "gru", "fixed_context": True},
    "RNNsearch": {**RECURRENT, "recurrent": "gru", "bidirectional": True, "decoder_attention": "additive"},
    "Luong": {
        **RECURRENT,
        "recurrent": "gru",
        "bidirectional": True,
        "decoder_attention": "bilinear",
        "input_feeding": True,
    },
    "Transformer": {"n_layers": 2, "n_heads": 4, "norm_order": "pre"},
}
FIXED, ATTENTIVE = ("LSTM seq2seq", "RNNenc"), ("RNNsearch", "Luong", "Transformer")
JOINED = (1, 2, 3, 4)
"""Sentences of a text: training has all of these."""
CAPTIONS_JOINED = (1, 2, 1, 3, 1, 4)
"""The same for captions. Half of the texts are single ones; with equal shares nine captions of ten would be in longer texts."""
SHORT = 7
"""Maximum tokens of a sentence of the grammar: short ones are learned in half a minute, and several of them form a long text."""
EVALUATIONS = 6
ALIGNED = 100
CAPTIONS = 500


# --- data: texts of one to four sentences


def join(texts: Sequence[str], count: int) -> list[str]:
    """Join neighbours to one text each: all texts, in fewer and longer ones."""
    return [" ".join(texts[at : at + count]) for at in range(0, len(texts), count)]


def write_texts(path: Path, records: Sequence[tuple[str, str]], counts: Sequence[int]) -> None:
    """Write a table of source and target texts, which have `counts` sentences in turn."""
    at, rows = 0, []
    for number in range(len(records)):
        count = counts[number % len(counts)]
        some = records[at : at + count]
        if len(some) < count:
            break
        rows.append("\t".join(" ".join(side) for side in zip(*some, strict=True)))
        at += count
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_grammar(folder: Path, sentences: int, held_out: int) -> None:
    """Write train.tsv and valid.tsv with texts of all lengths, and test-N.tsv with N sentences in each text."""
    for split, count in (("train", sentences), ("valid", held_out)):
        write_texts(
            folder / f"{split}.tsv", [(pair.source, pair.target) for pair in short_pairs(split, 0, count)], JOINED
        )
    test = [(pair.source, pair.target) for pair in short_pairs("test", 0, held_out)]
    for count in JOINED:
        write_texts(folder / f"test-{count}.tsv", test, (count,))


def short_pairs(split: str, seed: int, count: int) -> list[Pair]:
    return list(islice((pair for pair in pairs(split, seed) if len(pair.english) <= SHORT), count))


def write_captions(folder: Path, data: Path) -> None:
    """The same of Multi30k, German to English, with `CAPTIONS` of its held-out captions."""
    from qkv.data.datasets import dataset

    for split in ("train", "valid", "test"):
        records = [(one[0], one[1]) for _, one in dataset("multi30k", "de", "en", split, data).read()]
        records = records if split == "train" else records[:CAPTIONS]
        write_texts(folder / f"{split}.tsv", records, CAPTIONS_JOINED)
        for count in JOINED if split == "test" else ():
            write_texts(folder / f"test-{count}.tsv", records, (count,))


# --- training and measurement


QUICK: dict[str, dict[str, Any]] = {
    "data": {"tokenizer": "words", "vocab_size": 1200, "batch_tokens": 512},
    "model": {"dropout": 0.0},
    "train": {"optimizer": "muon", "learning_rate": 1e-2, "schedule": "cosine", "label_smoothing": 0.0},
}
FULL: dict[str, dict[str, Any]] = {
    "data": {"vocab_size": 4000, "batch_tokens": 1024, "source": "de", "target": "en"},
    "model": {"dropout": 0.2},
    "train": {"optimizer": "adamw", "schedule": "linear", "label_smoothing": 0.1},
}
"""AdamW, because recurrent networks other than Luong's learn little with Muon within so few updates."""
RATE, RATES = 5e-3, {"Luong": 2e-3, "Transformer": 2e-3}
"""Learning rates of the full version. Luong's network, whose scores are not scaled, learns little with more than 2e-3; the Transformer
has 21.6 BLEU with 2e-3 after 1,500 updates and 13.8 with 5e-3; the others learn more with 5e-3 (seed 1; docs/log.md)."""


def translator_recipe(name: str, folder: Path, width: int, steps: int, seed: int, full: bool) -> Recipe:
    version = FULL if full else QUICK
    table = lambda file: {"table": f"{file}.tsv", "columns": [0, 1]}  # noqa: E731
    data = {
        "root": str(folder),
        "train": [table("train")],
        "valid": table("valid"),
        "max_length": 160,
        **version["data"],
    }
    model = {"family": "encoder-decoder", "d_model": width, "d_ff": 2 * width, "embed_scale": True, "tie": "all", "max_length": 512,
             **version["model"], **SYSTEMS[name]}  # fmt: skip
    if "recurrent" in model:
        del model["d_ff"]
    train = {
        "steps": steps,
        "seed": seed,
        "warmup": steps // 20,
        "evaluate_every": steps // EVALUATIONS,
        **version["train"],
        **({"learning_rate": RATES.get(name, RATE)} if full else {}),
    }
    return make_recipe("translation", model, data, train=train, decode={"beam": 1})


def measure_translator(name: str, width: int, steps: int, data: str, seed: int) -> dict[str, Any]:
    """Train a system on texts of 1 to 4 sentences: BLEU (greedy) and loss of each length, the curve on the valid set, operations,
    minutes of training, and the alignment error rate of its best attention head. `data` is the folder of Multi30k; "" = the grammar."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_captions(folder, Path(data)) if data else write_grammar(folder, 10_000, 240)
        start = time.perf_counter()
        trained = train_network(translator_recipe(name, folder, width, steps, seed, bool(data)))
        minutes = (time.perf_counter() - start) / 60
        task, network = trained.task, trained.network
        by_count = {}
        for count in JOINED:
            c = task.data.valid.model_copy(update={"table": f"test-{count}.tsv"})
            by_count[str(count)] = task.with_held_out(f"test-{count}", c).evaluate(network)
        return {"test": by_count, "curve": trained.scores, "operations": operations_of(task), "updates": steps,
                "parameters": sum(p.numel() for p in network.parameters()), "minutes": minutes,
                "alignment": measure_alignment(trained) if name in ATTENTIVE and not data else None}  # fmt: skip


def operations_of(task: Task) -> float:
    """Return the operations of an update, padding included: the mean over the batches of an epoch."""
    batches = task.batches.cut(task.batches.read_pool()[0], "an epoch")
    longest = lambda rows, side: 1 + max(len(row[side]) for row in rows)  # noqa: E731  the start or the end token
    shapes = [(len(rows), longest(rows, 1), longest(rows, 0)) for rows in batches]
    return training_flops(task.config, shapes) / len(shapes)


def measure_alignment(trained: TrainedNetwork) -> dict[str, float]:
    """Alignment error rates against the grammar's own alignments: of the best head, and of the mean of the upper layers."""
    words, c = trained.task.words, trained.task.config
    assert words.source is not None and words.target is not None
    start, end = c.first_id or 0, c.eos_ids[0]
    sentences = [align_pair(pair, words.source, words.target, start, end) for pair in short_pairs("test", 7, ALIGNED)]
    found = alignment_errors(trained.network, sentences)
    return {"best": found.best[2], "mean": found.mean}
