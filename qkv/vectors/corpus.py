"""The training text as ids. It is read twice, to count its words and to write its ids to one file; training then reads that file.
Never more than one document is in memory."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from qkv.config import DataConfig
from qkv.config.vectors import TextConfig
from qkv.convert.files import to_disk
from qkv.data.corpora import corpus, plain_texts
from qkv.data.sources import Source
from qkv.errors import FileError, QkvError
from qkv.vectors.vocabulary import WordCounts

END = -1
"""Follows each sentence in the ids."""
LONGEST = 10_000
"""Maximum words of a sentence; longer ones are split."""
SPLIT = {"letters": re.compile(r"\w+(?:['’]\w+)*"), "spaces": re.compile(r"\S+")}


def sources(data: TextConfig) -> list[Source]:
    """Return the corpora of a recipe: files, tables, data sets and the embedded texts, as for language models."""
    read = DataConfig(train=data.train, valid=data.train[0], root=data.root)
    return [corpus(one, read, "train", plain_texts("vectors")) for one in data.train]


def sentences(texts: Iterable[Source], data: TextConfig) -> Iterator[list[str]]:
    """Yield the words of each line of each document."""
    split = SPLIT[data.words].findall
    for source in texts:
        for _, record in source.read():
            text = record[0].lower() if data.lower else record[0]
            for line in text.splitlines():
                words = split(line)
                for at in range(0, len(words), LONGEST):
                    yield words[at : at + LONGEST]


def write_ids(path: Path, texts: Iterable[list[str]], vocabulary: WordCounts) -> None:
    """Write the ids of all sentences, int32, each followed by END. Unknown words and sentences of one word are left out; the file
    is renamed when it is complete."""
    index = vocabulary.index
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb") as file:
        for words in texts:
            ids = [index[word] for word in words if word in index]
            if len(ids) > 1:
                array("i", [*ids, END]).tofile(file)
    if partial.stat().st_size == 0:
        raise QkvError("no line has two words of the vocabulary: give longer lines, or lower vectors.min_count")
    to_disk(partial)
    os.replace(partial, path)


def open_ids(path: Path) -> np.ndarray:
    """Map the ids into memory."""
    try:
        return np.memmap(path, dtype=np.int32, mode="r")
    except ValueError:  # no bytes, or no whole number of ids
        raise damage_error(path) from None


def damage_error(path: Path) -> FileError:
    advice = "remove it, and the next run recreates it from the training text"
    return FileError(f"{path} is damaged or belongs to another text: {advice}")


def is_valid(ids: np.ndarray, words: int) -> bool:
    """Return whether these are complete sentences with ids below `words`: the kernel does not check them."""
    return len(ids) > 0 and bool(ids[-1] == END and ids.min() >= END and ids.max() < words)


def next_part(row: np.ndarray, start: int, count: int) -> np.ndarray:
    """Return about `count` ids from `start`, up to the end of a sentence."""
    ends = row[start + count - 1 : start + count + LONGEST]
    more = int(np.argmax(ends == END)) if len(ends) else 0
    return row[start : start + count + more]


def sentence_bounds(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end of each sentence in ids, int64."""
    ends = np.flatnonzero(row == END).astype(np.int64)
    return np.concatenate([[0], ends[:-1] + 1]).astype(np.int64), ends
