"""Python's own standard library as a corpus: real text that every user has, each module a document."""

from __future__ import annotations

import hashlib
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qkv.data.sources import Record, strided
from qkv.errors import ConfigError, FileError

LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "pydoc_data",
    "config",
    "turtledemo",
}
"""Folders of tests, tables and other people's packages."""
MAX_MODULE, MAX_TOTAL = 300_000, 50_000_000
"""Bytes; a larger module is a table, not a text."""


@dataclass
class StandardLibrary:
    """Records (text,): the modules in the order of their names. 5 % are valid and 5 % test, by a hash of the path, so that
    a module is in the same split wherever Python is installed; another version of Python has somewhat other text."""

    split: str
    folder: Path = field(default_factory=lambda: Path(sysconfig.get_paths()["stdlib"]))
    skipped: Counter[str] = field(default_factory=Counter)
    found: list[tuple[str, int]] = field(default_factory=list)
    """Modules of the split and their sizes; found at the first reading."""

    def __post_init__(self) -> None:
        if self.split not in ("train", "valid", "test"):
            raise ConfigError(f"the standard library has no split {self.split!r}, but train, valid and test")

    def about(self) -> int:
        return len(self.modules())

    def modules(self) -> list[tuple[str, int]]:
        if self.found:
            return self.found
        total = 0
        for path in sorted(self.folder.rglob("*.py"), key=lambda p: p.relative_to(self.folder).parts):
            inner, size = path.relative_to(self.folder), path.stat().st_size
            if LEFT_OUT.isdisjoint(inner.parts) and 0 < size <= MAX_MODULE and (total := total + size) <= MAX_TOTAL:
                self.found.append((inner.as_posix(), size))
        self.found = [(name, size) for name, size in self.found if split_of(name) == self.split]
        if not self.found:
            raise FileError(
                f"{self.folder} has no modules to read: this Python comes without its library as text files"
            )
        return self.found

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        self.skipped.clear()
        for number, (name, _) in strided(iter(list(enumerate(self.modules(), 1))[start:]), stride):
            try:
                text = (self.folder / name).read_bytes().decode()
            except (OSError, UnicodeDecodeError):
                self.skipped["not UTF-8"] += 1
                continue
            if text.strip():
                yield number, (text.replace("\r\n", "\n"),)
            else:
                self.skipped["an empty document"] += 1


def split_of(name: str) -> str:
    """5 % valid, 5 % test, by a hash of the module's path."""
    place = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") % 20
    return {0: "valid", 1: "test"}.get(place, "train")
