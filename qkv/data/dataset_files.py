"""Helpers of the named data sets: find a file in a folder or archive, hold out a part, map records."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.data.lines import COMPRESSED
from qkv.data.sources import DerivedCorpus, Record
from qkv.errors import ConfigError, FileError


def find(places: Sequence[Path], names: Sequence[str]) -> Path:
    """The first of these files, compressed or not, that one of the folders or archives has."""
    found = look_for(places, names)
    if found is None:
        raise FileError(f"{places[-1]} has no {' or '.join(names)} (nor one compressed); is it the right folder?")
    return found


def look_for(places: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The same, or None. A place may be the file itself."""
    for place in places:
        if place.is_file() and not zipfile.is_zipfile(place):
            return place
        held = zipfile.ZipFile(place).namelist() if zipfile.is_zipfile(place) else []
        for name in (name + ending for name in names for ending in ("", *COMPRESSED)):
            inner = next((path for path in held if path == name or path.endswith("/" + name)), None)
            if inner is not None or (place / name).is_file():
                return place / (inner or name)
    return None


def check_split(name: str, split: str, known: Sequence[str] = ("train", "valid", "test")) -> str:
    """The split, or an error where the data set `name` has no such one."""
    if split not in known:
        raise ConfigError(f"{name} has no split {split!r}, but {', '.join(known[:-1])} and {known[-1]}")
    return split


@dataclass
class Held(DerivedCorpus):
    """A data set that comes without a valid split: `percent` of its training records are, by a hash of the first text."""

    split: str
    percent: int

    def about(self) -> int:
        share = self.percent if self.split == "valid" else 100 - self.percent
        return self.source.about() * share // 100

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        for number, record in self.source.read(start, stride):
            if (digest(record[0]) % 100 < self.percent) == (self.split == "valid"):
                yield number, record


def digest(text: str) -> int:
    """64 bits for a text, whatever its case and spaces, the same on every machine."""
    words = " ".join(text.casefold().split())
    return int.from_bytes(hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=8).digest(), "little")


@dataclass
class Mapped(DerivedCorpus):
    """Records made of the records of another corpus; None leaves one out, and is counted under `reason`."""

    make: Callable[[Record], Record | None]
    reason: str = "an empty text"

    def read(self, start: int = 0, stride: int = 1) -> Iterator[tuple[int, Record]]:
        for number, record in self.source.read(start, stride):
            made = self.make(record)
            if made is not None:
                yield number, made
            else:
                self.skipped[self.reason] += 1
