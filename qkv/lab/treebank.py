"""Read dependency trees from CoNLL-U files: what the claims about senses and heads compare a network with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qkv.data.documents import open_text
from qkv.errors import FileError


class TreeWord(NamedTuple):
    """One word of a sentence: lower case, part of speech, index of its head in the sentence (-1 = root), relation to it."""

    text: str
    tag: str
    head: int
    relation: str


def read_trees(path: Path) -> Iterator[list[TreeWord]]:
    """Yield the sentences of a treebank (.conllu, also compressed); multiword tokens and empty nodes are left out."""
    sentence: list[TreeWord] = []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                fields = line.split("\t")
                if fields[0].isdecimal():
                    sentence.append(parse_word(fields, f"{path}, line {number}"))
            elif sentence:
                yield sentence
                sentence = []
    if sentence:
        yield sentence


def parse_word(fields: list[str], place: str) -> TreeWord:
    """Read the columns of a word; FileError with its `place` where they are not those of CoNLL-U."""
    if len(fields) != 10 or not fields[6].isdecimal() or len(fields[6]) > 9:
        raise FileError(f"{place}: a word of a CoNLL-U file has 10 columns, and column 7 is the number of its head")
    return TreeWord(fields[1].lower(), fields[3], int(fields[6]) - 1, fields[7].split(":")[0])
