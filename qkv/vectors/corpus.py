"""Text as numbers. The text is read twice, to count its words and to write it down as one row of ids on the disk; passes then
read the row. At no time is more than a document of it in memory."""

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
from qkv.data.corpora import corpus
from qkv.data.sources import Source
from qkv.errors import FileError, QkvError
from qkv.vectors.vocabulary import Vocabulary

END = -1
"""Behind each sentence in a row of ids."""
LONGEST = 10_000
"""Words of a sentence; a longer one is cut."""
BUFFER = 1_000_000
SPLIT = {"letters": re.compile(r"\w+(?:['’]\w+)*"), "spaces": re.compile(r"\S+")}


def sources(data: TextConfig) -> list[Source]:
    """The corpora of a recipe: files, tables, data sets and the embedded texts, as for language models."""
    read = DataConfig(train=data.train, valid=data.train[0], root=data.root)
    return [corpus(one, read, "train", "vectors") for one in data.train]


def sentences(texts: Iterable[Source], data: TextConfig) -> Iterator[list[str]]:
    """The words of each line of each document."""
    split = SPLIT[data.words].findall
    for source in texts:
        for _, record in source.read():
            text = record[0].lower() if data.lower else record[0]
            for line in text.splitlines():
                words = split(line)
                for at in range(0, len(words), LONGEST):
                    yield words[at : at + LONGEST]


def write_ids(path: Path, texts: Iterable[list[str]], vocabulary: Vocabulary) -> None:
    """The row of ids of all sentences, int32, each with END behind it. Words that the vocabulary lacks are left out, and so are
    sentences of one word; the file gets its name when it is whole."""
    index, row, some = vocabulary.index, array("i"), False
    beside = path.with_name(f".{path.name}.partial")
    with open(beside, "wb") as file:
        for words in texts:
            ids = [index[word] for word in words if word in index]
            if len(ids) > 1:
                row.extend(ids)
                row.append(END)
                some = True
            if len(row) > BUFFER:
                row.tofile(file)
                row = array("i")
        row.tofile(file)
    if not some:
        raise QkvError(
            "no sentence (a line) has two words of the vocabulary: give longer lines, or a lower vectors.min_count"
        )
    to_disk(beside)
    os.replace(beside, path)


def open_ids(path: Path) -> np.ndarray:
    """The row, read from the disk where it is looked at."""
    try:
        return np.memmap(path, dtype=np.int32, mode="r")
    except ValueError:  # no bytes, or no whole number of ids
        raise damaged(path) from None


def damaged(path: Path) -> FileError:
    return FileError(
        f"{path} is damaged, or of another text: remove it, and it is made again from the text that the run began with"
    )


def sound(ids: np.ndarray, words: int) -> bool:
    """Whether these are whole sentences of a vocabulary of so many words: the kernel believes every number."""
    return len(ids) > 0 and bool(ids[-1] == END and ids.min() >= END and ids.max() < words)


def part(row: np.ndarray, start: int, count: int) -> np.ndarray:
    """About `count` ids from `start` on, up to the end of a sentence."""
    ends = row[start + count - 1 : start + count + LONGEST]
    more = int(np.argmax(ends == END)) if len(ends) else 0
    return row[start : start + count + more]


def bounds(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last + 1 of each sentence in a row of ids, int64."""
    ends = np.flatnonzero(row == END).astype(np.int64)
    return np.concatenate([[0], ends[:-1] + 1]).astype(np.int64), ends
