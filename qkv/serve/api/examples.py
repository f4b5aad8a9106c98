"""Examples: what a served model knows, by the run that it comes from: texts of its test set, the name of its training data."""

from __future__ import annotations

from pathlib import Path

from qkv.config.strict import read_toml
from qkv.tasks.predictions import SOURCE

TAGGED = "test.tagged.conll"
COUNT, LONGEST = 4, 1000
"""Examples, and characters of one of them."""
KINDS = ("dataset", "table", "images", "files", "grammar", "stdlib", "shapes", "text")
"""Fields of a corpus that say what it is."""
READ = 100_000
"""Characters of a file that are read."""


def samples(run: Path | None) -> list[str]:
    """The first texts of the run's test set, where its folder has them."""
    texts: list[str] = []
    if run is not None and (run / SOURCE).is_file():
        texts = beginning(run / SOURCE).split("\n")
    elif run is not None and (run / TAGGED).is_file():
        blocks = beginning(run / TAGGED).split("\n\n")
        texts = [" ".join(line.split("\t")[0] for line in block.split("\n")) for block in blocks]
    return [text for text in dict.fromkeys(map(str.strip, texts[:-1])) if 0 < len(text) <= LONGEST][:COUNT]


def beginning(path: Path) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(READ)


def data_of(run: Path | None) -> str | None:
    """What the run has learned from: "grammar", "stdlib", a data set or the name of a file; None where no recipe says so."""
    recipe = None if run is None else run / "recipe.toml"
    data = read_toml(recipe).get("data") if recipe is not None and recipe.is_file() else None
    train = data.get("train") if isinstance(data, dict) else None
    first = train[0] if isinstance(train, list) and train else train
    corpus = first if isinstance(first, dict) else {}
    kind = next((kind for kind in KINDS if kind in corpus), None)
    value = corpus.get(kind)
    return Path(value).name if isinstance(value, str) and kind != "text" else kind  # a text in the recipe is not quoted
