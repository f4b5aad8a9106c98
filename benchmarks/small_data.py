"""Small data from scratch: `python benchmarks/small_data.py --data FOLDER [--seeds 3] [--only NAME] [--write docs/results.md]`.

Three tasks of 5,000 short training texts each, made from data sets in FOLDER:

    sst2        is a phrase of a film review positive? 5,000 random phrases of glue_sst2; its dev and test sets
    genre       where is a sentence from: answers, e-mail, newsgroup, review, weblog? 5,000 random sentences of ud_english_ewt;
                its dev and test sets, which are other documents
    questions   which question word was removed from the beginning of a question? questions of manythings, each once

On each, the recipe classify-small with several seeds beside its baseline, TF-IDF + logistic regression; with one seed, the recipe
without vectors for pairs of words, and with sinusoidal positions over unscaled word vectors. The validation set chooses weights
and regularisation; the test set is scored once.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import random
import re
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from pages import machine, write

Rows = list[tuple[str, str]]
WORDS = {"who", "what", "where", "when", "why", "how", "which"}
SIZE = 5000
VARIANTS = {
    "classify-small": (),
    "without bigrams": ("model.bigram_buckets=0",),
    "sinusoidal positions, word vectors not scaled": ('model.position="sinusoidal"', "model.embed_scale=false"),
}


def text_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().split("\n")


def sst2(data: Path) -> dict[str, Rows]:
    def part(name: str) -> Rows:
        lines = text_of(data / "glue_sst2" / f"{name}.tsv.gz")[1:]
        split = [line.split("\t") for line in lines if line.strip()]
        return [(text.strip(), ("negative", "positive")[int(label)]) for label, text in split]

    return {"train": random.Random(1).sample(part("train"), SIZE), "valid": part("dev"), "test": part("test")}


def genre(data: Path) -> dict[str, Rows]:
    def part(name: str) -> Rows:
        found, kind = [], ""
        for line in text_of(data / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu.gz"):
            if match := re.match(r"# newdoc id = ([a-z]+)", line):
                kind = match[1]
            if line.startswith("# text = ") and len(line.split()) >= 6:  # three words or more
                found.append((line.removeprefix("# text = ").strip().replace("\t", " "), kind))
        return found

    return {"train": random.Random(1).sample(part("train"), SIZE), "valid": part("dev"), "test": part("test")}


def questions(data: Path) -> dict[str, Rows]:
    (path,) = (data / "manythings").glob("deu-eng*.zip")
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("deu.txt").decode().splitlines()
    found: dict[str, str] = {}
    for words in (line.split("\t")[0].split() for line in lines):
        if len(words) >= 4 and words[-1].endswith("?") and words[0].lower() in WORDS:
            found[" ".join(words[1:])] = words[0].lower()
    rows = sorted(found.items())
    random.Random(1).shuffle(rows)
    return {"train": rows[:SIZE], "valid": rows[SIZE : SIZE + 500], "test": rows[SIZE + 500 :]}


TASKS = {"sst2": sst2, "genre": genre, "questions": questions}


def train(root: Path, out: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    """`qkv train classify-small`; a run that has ended is only read."""
    changes = [f"data.root={root}", *settings]
    command = [sys.executable, "-m", "qkv", "train", "classify-small", "--threads", "1", "--out", str(out)]
    subprocess.run(command + [part for change in changes for part in ("--set", change)], check=True)
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    return results


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def rows_of(task: str, a: argparse.Namespace) -> list[str]:
    """Lines of the table for one task."""
    root = a.runs / "data" / task
    root.mkdir(parents=True, exist_ok=True)
    for name, rows in TASKS[task](a.data).items():
        (root / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    lines, runs = [], {}
    for number, (variant, settings) in enumerate(VARIANTS.items()):
        runs[variant] = [train(root, a.runs / f"{task}-{number}-{seed}", (*settings, f"train.seed={seed}"))
                         for seed in range(1, (a.seeds if number == 0 else 1) + 1)]  # fmt: skip
    simple = runs["classify-small"][0]["baseline"]
    lines.append(
        f"| {task} | {simple['name']} | {simple['valid']['accuracy']:.1f} | {simple['test']['accuracy']:.1f} |"
    )
    for variant, found in runs.items():
        valid, test = [r["valid"]["value"] for r in found], [r["test"]["scores"][0]["value"] for r in found]
        lines.append(f"| | {variant}, {len(found)} seed{'s' * (len(found) > 1)} | {spread(valid)} | {spread(test)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/small-data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--write", type=Path)
    a = parser.parse_args()
    head = ["| task | model | validation accuracy | test accuracy |", "|---|---|---:|---:|"]
    table = [*head, *(line for task in TASKS if a.only in (None, task) for line in rows_of(task, a))]
    day = datetime.datetime.now(datetime.UTC).date()
    text = f"{day}, `python benchmarks/small_data.py --data FOLDER`, on {machine()}.\n\n" + "\n".join(table)
    print(text)
    if a.write:
        write(a.write, "Small data, from scratch", text)


if __name__ == "__main__":
    main()
