"""C18: pre-training helps, a Transformer more than an LSTM; GPT's auxiliary loss helps large tasks, not small ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qkv.data.grammar import pairs
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, judge
from qkv.lab.statistics import difference, estimate, exceeds
from qkv.lab.training import make_recipe, save_network, train_network
from qkv.look.charts import lines

SIZES: dict[str, Any] = {"family": "decoder", "d_model": 64, "n_layers": 2, "tie": "output"}
NETWORKS: dict[str, dict[str, Any]] = {
    "Transformer": {
        **SIZES,
        "n_heads": 4,
        "d_ff": 256,
        "feedforward": "gelu",
        "norm_order": "pre",
        "position": "rotary",
    },
    "LSTM": {**SIZES, "d_model": 80, "recurrent": "lstm"},
}
"""About 100,000 parameters in the layers of each."""
SMALL, LARGE = 800, 4000
"""Labelled sentences of the small and the large task."""
TASKS = ("small", "large")
WAYS = {"scratch": "from scratch", "pre-trained": "pre-trained", "auxiliary": "pre-trained, auxiliary loss"}
CLASSES: dict[str, Any] = {"head": "classes-words", "pooling": "mean", "pooler": False}
Data = dict[str, Any]


def judgements(split: str, seed: int) -> Iterator[str]:
    """Yield lines "sentence TAB good" or "sentence TAB bad"; a bad one has two adjacent words exchanged (in the manner of CoLA)."""
    draw = random.Random(seed)
    for pair in pairs(split, seed):  # type: ignore[arg-type]
        words = [token.text for token in pair.english]
        places = [i for i in range(len(words) - 2) if words[i] != words[i + 1]]
        if not places:
            continue
        bad = draw.random() < 0.5
        if bad:
            i = draw.choice(places)
            words[i], words[i + 1] = words[i + 1], words[i]
        yield f"{' '.join(words)}\t{'bad' if bad else 'good'}"


def write_data(folder: Path, texts: int) -> None:
    """Write unlabelled sentences, and labelled ones for both tasks and for the held-out set."""
    sentences = (" ".join(token.text for token in pair.english) for pair in pairs("train", 1))
    (folder / "texts").write_text("\n".join(islice(sentences, texts)), "utf-8")
    for name, split, count in (("small", "train", SMALL), ("large", "train", LARGE), ("valid", "valid", 1000)):
        (folder / f"{name}.tsv").write_text("\n".join(islice(judgements(split, 2), count)) + "\n", "utf-8")


def pretrain(folder: Path, network: dict[str, Any], steps: int, seed: int) -> Path:
    corpus = {"files": [str(folder / "texts")], "documents": "lines"}
    recipe = make_recipe(
        "language", {**network, "max_length": 64},
        {"train": [{**corpus, "share": [0, 0.95]}], "valid": {**corpus, "share": [0.95, 1]}, "tokenizer": "words", "vocab_size": 600},
        train={"steps": steps, "seed": seed, "schedule": "linear", "optimizer": "muon", "learning_rate": 6e-3},
    )  # fmt: skip
    save_network(train_network(recipe), folder / "start")
    return folder / "start"


def tuned_accuracy(
    folder: Path, network: dict[str, Any], start: Path | None, task: str, auxiliary: float, epochs: int, seed: int
) -> float:
    """Held-out accuracy after fine-tuning on one task, or after training it from fresh weights."""
    tune: Data = {"auxiliary": auxiliary} | ({} if start is None else {"start": str(start)})
    words: Data = {} if start else {"tokenizer": "words", "vocab_size": 600}
    size = SMALL if task == "small" else LARGE
    table = lambda name: {"table": str(folder / f"{name}.tsv"), "columns": [0, 1]}  # noqa: E731
    recipe = make_recipe(
        "classification", {**(CLASSES if start else {**network, **CLASSES, "max_length": 64}), "dropout": 0.1},
        {"train": [table(task)], "valid": table("valid"), "batch_tokens": 512, **words},
        train={"steps": epochs * size * 12 // 512, "seed": seed, "schedule": "linear", "learning_rate": 1e-3}, tune=tune,
    )  # fmt: skip
    return float(train_network(recipe).last["accuracy"])


def scores(name: str, texts: int, steps: int, epochs: int, seed: int) -> dict[str, float]:
    """Accuracy of one network on both tasks: from scratch, pre-trained, and pre-trained with the auxiliary loss."""
    network = NETWORKS[name]
    with TemporaryDirectory() as place:
        folder = Path(place)
        write_data(folder, texts)
        start = pretrain(folder, network, steps, seed)
        ways: dict[str, tuple[Path | None, float]] = {
            "scratch": (None, 0.0),
            "pre-trained": (start, 0.0),
            "auxiliary": (start, 0.5),
        }
        return {
            f"{way}, {task}": tuned_accuracy(folder, network, begin, task, auxiliary, epochs, seed)
            for way, (begin, auxiliary) in ways.items()
            for task in TASKS
        }


def seed_gains(
    better: list[dict[str, float]], way: str, worse: list[dict[str, float]], other: str
) -> dict[str, list[float]]:
    """Accuracy of one way of training minus that of another, seed by seed, for each task."""
    return {
        task: [a[f"{way}, {task}"] - b[f"{other}, {task}"] for a, b in zip(better, worse, strict=True)]
        for task in TASKS
    }


def run(lab: Experiment) -> ClaimResult:
    sizes = (30_000, 1500, 6) if lab.full else (15_000, 700, 6)
    found = lab.grid(scores, {name: (name, *sizes) for name in NETWORKS})
    own = found["Transformer"]
    auxiliary = seed_gains(own, "auxiliary", own, "pre-trained")
    gains = (
        seed_gains(own, "pre-trained", own, "scratch"),
        seed_gains(own, "auxiliary", found["LSTM"], "auxiliary"),
        auxiliary,
    )
    helps, beats, extra = ({task: estimate(gain[task]) for task in TASKS} for gain in gains)
    more = difference(auxiliary["large"], auxiliary["small"])
    rows = [[name, text, *(estimate([one[f"{way}, {task}"] for one in own]).text(1) for task in TASKS)]
            for name, own in found.items() for way, text in WAYS.items()]  # fmt: skip
    return ClaimResult(
        judge(*(exceeds(gain) for gain in (*helps.values(), *beats.values(), extra["large"], more))),
        f"Pre-training changes the accuracy by {helps['small'].text(1)} points with {SMALL:,} labelled sentences and by "
        f"{helps['large'].text(1)} with {LARGE:,}. The pre-trained Transformer minus the pre-trained LSTM, both with the auxiliary loss: "
        f"{beats['small'].text(1)} and {beats['large'].text(1)} points. "
        f"The auxiliary loss changes the accuracy by {extra['small'].text(1)} points on the small task and by "
        f"{extra['large'].text(1)} on the large one; the difference of the two is {more.text(1)}.",
        Table(["network", "training", f"accuracy, {SMALL:,} examples", f"{LARGE:,} examples"], rows),
        lines({f"{name}, {text}": [(float(size), estimate([one[f"{way}, {task}"] for one in own]).mean)
                                  for size, task in zip((SMALL, LARGE), TASKS, strict=True)]
               for name, own in found.items() for way, text in WAYS.items()},
              "Swapped words: accuracy by number of labelled sentences", "labelled sentences", "accuracy, %", log_x=True),
        lab.basis,
    )  # fmt: skip


CLAIM = Claim(
    "C18",
    "Pre-training helps: fine-tuning beats training from scratch, a Transformer beats an LSTM; the auxiliary loss helps large tasks, more "
    "than small ones.",
    "004",
    "Language models of the embedded grammar (15,000 sentences, 700 updates; full version: 30,000 and 1,500), fine-tuned to "
    f"detect whether two adjacent words of a sentence were swapped, with {SMALL:,} and with {LARGE:,} labelled sentences: held-out "
    "accuracy, paired by seed. Transformer and LSTM have about as many parameters and are trained with the same learning rates.",
    "Six differences, each shown or refuted if its 95 % interval over the seeds does not contain 0: no gain from pre-training, or an LSTM "
    "as good as the Transformer (each on the small and on the large task); an auxiliary loss without gain on the large task, or whose gain "
    "there is not larger than on the small one. Only some shown: holds in part.",
    run,
    3.0,
)
