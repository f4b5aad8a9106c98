"""The readers of recipes, data and pictures that fuzz_readers.py feeds; fuzz_cases.py has the others."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qkv.config import CorpusConfig, DataConfig, load_recipe
from qkv.config.vectors import learns_vectors, load_vectors_recipe
from qkv.data.corpora import corpus
from qkv.data.images import Idx, pixels
from qkv.lab.treebank import read_trees
from qkv.tasks.base import task_class, task_of, unused

Case = tuple[Callable[[Path], object], Callable[[Path], object]]
RECIPE = """task = "translation"
preset = "transformer-base"
[model]
d_model = 32
n_layers = 1
d_ff = 64
[data]
train = [{ grammar = 60 }, { files = ["a.en", "a.de"], weight = 2.0, share = [0.0, 0.9] }]
valid = { table = "a.tsv", columns = ["en", 1] }
vocab_size = 150
batch_tokens = 200
[train]
steps = 6
evaluate_every = "10%"
learning_rate = 1e-3
[tune]
layer_decay = 0.9
"""


def recipe(folder: Path) -> None:
    (folder / "recipe.toml").write_text(RECIPE)


def vectors_recipe(folder: Path) -> None:
    (folder / "recipe.toml").write_text(
        'task = "vectors"\n[vectors]\nwidth = 8\nmin_count = 1\n[data]\ntrain = [{ text = "a b" }]\n'
    )


def open_recipe(folder: Path) -> None:
    path = folder / "recipe.toml"
    if learns_vectors(path):
        load_vectors_recipe(path)
        return
    found = load_recipe(path)
    if found.data is not None and found.data.train:
        unused(found)
        task_of(found).possible(found)


def data(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def records(task: str, name: str, **fields: Any) -> Callable[[Path], object]:
    """Read a corpus to its end."""

    def read(folder: Path) -> None:
        c = CorpusConfig(**({name: (str(next(folder.iterdir())),)} if name == "files" else {name: str(next(folder.iterdir()))}),
                         **fields)  # fmt: skip
        for _ in corpus(c, DataConfig(train=(c,), valid=c), "train", task_class(task).schema).read():
            pass

    return read


def picture(kind: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        from PIL import Image

        table = np.arange(12 * 10 * 3, dtype=np.uint8).reshape(12, 10, 3)
        Image.fromarray(table).save(folder / f"picture.{kind}")

    return make


def see(folder: Path) -> None:
    pixels(next(folder.iterdir()), 8, 3)


def idx(folder: Path) -> None:
    (folder / "images").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 4, 4) + bytes(32))
    (folder / "labels").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 2) + bytes([1, 7]))


def idx_records(folder: Path) -> None:
    for _ in Idx(folder / "images", folder / "labels").read():
        pass


def trees(folder: Path) -> None:
    for _ in read_trees(next(folder.iterdir())):
        pass


CSV = 'text,label\n"a man, a dog",yes\nthe "dog" runs,no\n'
CONLLU = "# text = a man\n1\ta\ta\tDET\t_\t_\t2\tdet\t_\t_\n2\tman\tman\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
SQUAD = json.dumps({"data": [{"paragraphs": [{"context": "a man rides", "qas": [
    {"id": "1", "question": "who?", "answers": [{"text": "a man", "answer_start": 0}]}]}]}]})  # fmt: skip

CONVERSATIONS = "".join(json.dumps(row) + "\n" for row in (
    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}]},
    {"messages": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
))  # fmt: skip

DATA: dict[str, list[Case]] = {
    "recipe": [(recipe, open_recipe), (vectors_recipe, open_recipe)],
    "table": [
        (data("a.csv", CSV), records("classification", "table", columns=("text", "label"))),
        (data("a.tsv", "en\tde\na man\tein Mann\nb\tb\n"), records("translation", "table", columns=(0, 1))),
        (data("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n'),
         records("classification", "table", columns=("text", "label"))),
        (data("a.tsv", "text\tlabel\na man\tyes\n"), records("classification", "table")),
    ],
    "text": [
        (data("a.conllu", CONLLU * 3), records("tagging", "files")),
        (data("a.tsv", "a DET\nman NOUN\n\nb X\n\n"), records("tagging", "files")),
        (data("a.json", SQUAD), records("answering", "files")),
        (data("a.txt", "a man\n\nb\n" * 4), records("language", "files", documents="blank", share=(0.0, 0.5))),
        (idx, idx_records),
    ],
    "conversation": [(data("a.jsonl", CONVERSATIONS), records("conversation", "table"))],
    "tree": [(data("a.conllu", CONLLU * 3), trees)],
    "picture": [(picture(k), see) for k in ("png", "jpg", "gif", "bmp", "webp", "ppm", "tif")],
}  # fmt: skip
"""By the reader's name."""
