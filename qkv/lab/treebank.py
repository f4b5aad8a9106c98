"""Read dependency trees from CoNLL-U files: what the claims about senses and heads compare a network with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qkv.data.documents import open_text


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
        for line in file:
            if line.strip():
                fields = line.split("\t")
                if fields[0].isdigit():
                    sentence.append(TreeWord(fields[1].lower(), fields[3], int(fields[6]) - 1, fields[7].split(":")[0]))
            elif sentence:
                yield sentence
                sentence = []
    if sentence:
        yield sentence
