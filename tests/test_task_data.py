"""The records of every task: files, tables, named data sets, the standard library and the grammar; exact, resumable, split."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import CorpusConfig, DataConfig
from qkv.data import documents, glue, textsets
from qkv.data.corpora import Share, corpus, shared, training
from qkv.data.documents import Documents
from qkv.data.grammar import place_of
from qkv.data.places import Held
from qkv.data.sources import Corpus, Memory, Piece, Record, Table
from qkv.data.stdlib import StandardLibrary
from qkv.data.stdlib import split_of as module_split
from qkv.data.tagged import Tagged
from qkv.data.views import DOCUMENTS, SENTENCES, GrammarView
from qkv.errors import ConfigError, FileError, QkvError

SPLITS = ("train", "valid", "test")


def made(task: str, split: str = "train", root: Path | str = "", **fields: Any) -> Corpus:
    """The corpus of a configuration with these fields."""
    c = CorpusConfig(**fields)
    return corpus(c, DataConfig(train=(c,), valid=c, root=str(root)), split, task)


def records(source: Corpus) -> list[Record]:
    return [record for _, record in source.read()]


def goes_on(source: Corpus) -> None:
    """Read from any record on = having read up to there."""
    everything = list(source.read())
    assert len({number for number, _ in everything}) == len(everything)
    for number, _ in everything[:: max(1, len(everything) // 7)]:
        assert list(source.read(number)) == [(n, r) for n, r in everything if n > number]


# --- documents of text files


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.sampled_from("ab \n\r\tü😀"), max_size=60), min_size=1, max_size=4),
    piece=st.integers(1, 20),
    shares=st.lists(st.floats(0, 1), max_size=3),
)
def test_files_are_kept_to_the_character_and_shares_are_parts_of_them(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], piece: int, shares: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    texts = ["." + text for text in texts]  # none is empty
    paths = []
    for i, text in enumerate(texts):
        paths.append(folder / f"{i}.txt")
        paths[-1].write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", piece)
        found = records(Documents(paths))
        assert "".join(text for (text,) in found) == "".join(texts)
        assert sum(not isinstance(record, Piece) for record in found) == len(texts)  # each ends once
        assert all(len(text) < 2 * piece for (text,) in found)
        goes_on(Documents(paths))
        cuts = [0.0, *sorted(set(shares) - {0.0, 1.0}), 1.0]
        size = len("".join(texts))
        for low, high in pairwise(cuts):
            wanted = "".join(texts)[int(low * size) : int(high * size)]
            part = shared(Documents(paths), (low, high))
            if wanted.strip():
                read = "".join(text for (text,) in part.read_all()) if hasattr(part, "read_all") else ""
                read = "".join(text for (text,) in records(part))
                assert wanted in read + " " or read.strip() == wanted.strip() or read == wanted
