"""Python's own standard library as a corpus: real text that every user has, each module a document."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from qkv.data.dataset_files import check_split
from qkv.data.sources import CountingCorpus, Record, sample_runs
from qkv.errors import FileError

LEFT_OUT = set("test tests idle_test site-packages dist-packages __pycache__ __phello__ pydoc_data turtledemo".split())
"""Folders of tests, tables and other people's packages."""
MAX_MODULE, MAX_TOTAL = 300_000, 50_000_000
"""Bytes; a larger module is a table, not a text."""


@dataclass
class StandardLibrary(CountingCorpus):
    """Records (text,): the modules in the order of their names. 5 % are valid and 5 % test, by a hash of the path, so that
    a module is in the same split wherever Python is installed; another version of Python has somewhat other text."""

    split: str
    folder: Path = field(default_factory=lambda: Path(sysconfig.get_paths()["stdlib"]))
    found: list[str] = field(default_factory=list)
    """Modules of the split; found at the first reading."""

    def __post_init__(self) -> None:
        check_split("the standard library", self.split)

    def about(self) -> int:
        return len(self.modules())

    def modules(self) -> list[str]:
        total = 0
        for name, size in sorted(python_files(self.folder)) if not self.found else ():
            total += size
            if total <= MAX_TOTAL and split_of(name) == self.split:
                self.found.append(name)
        if not self.found:
            raise FileError(f"{self.folder} has no modules: this Python comes without its library as text files")
        return self.found

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        for number, name in sample_runs(islice(enumerate(self.modules(), 1), start, None), stride):
            try:
                text = (self.folder / name).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
            except (OSError, UnicodeDecodeError):
                self.skipped["not UTF-8"] += 1
                continue
            if text.strip():
                yield number, (text,)
            else:
                self.skipped["an empty document"] += 1


def python_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Paths within the folder and sizes of the modules that are texts."""
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        for path in (Path(place, name) for name in names if name.endswith(".py")):
            if path.is_file() and 0 < (size := path.stat().st_size) <= MAX_MODULE:
                yield path.relative_to(folder).as_posix(), size


def split_of(name: str) -> str:
    """5 % valid, 5 % test, by a hash of the module's path."""
    place = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") % 20
    return {0: "valid", 1: "test"}.get(place, "train")
