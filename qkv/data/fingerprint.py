"""Fingerprints: checksums of what a corpus reads, so that a run detects changed training data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from qkv.data.mixture import Mixture
from qkv.data.sources import DerivedCorpus, InMemorySource, Listing, Source
from qkv.errors import FileError

BLOCK, MOST = 2**20, 256
"""Of files of more than 256 MB in all, about as many blocks of 1 MB are read, evenly spread: a quarter of a second."""
MOST_FILES = 10_000
"""Of a folder with more files than that (images, reviews), about as many are read; of the others the sizes count."""


def fingerprint(source: Source) -> dict[str, str]:
    """File name -> checksum of its size and content; a folder of many files, and records in memory, have one for all of them.

    Texts that are made here (the grammar, shapes), the standard library, and images that a table names have none.
    """
    found: dict[str, str] = {}
    corpora = list(leaves(source))
    blocks = max(1, MOST // max(1, sum(1 for leaf in corpora for _ in paths(leaf))))
    for number, leaf in enumerate(corpora):
        if isinstance(leaf, Listing):
            found[f"data.train[{number}]"] = listing_checksum(leaf)
        elif isinstance(leaf, InMemorySource):
            found[f"data.train[{number}]"] = hashlib.sha256(repr(leaf.records).encode("utf-8", "replace")).hexdigest()
        for path in paths(leaf):
            found[str(path)] = checksum(path, blocks)
    return found


def listing_checksum(listing: Listing) -> str:
    """SHA-256 of the names, labels and sizes of all files, and of the content of some of them; the folder may have moved."""
    found, every = hashlib.sha256(), -(-len(listing.records) // MOST_FILES)
    for number, (name, *labels) in enumerate(listing.records):
        path = Path(name)
        size = path.stat().st_size if path.is_file() else -1
        found.update(f"{path.name}\t{labels}\t{size}\n".encode("utf-8", "replace"))
        if size >= 0 and number % every == 0:
            found.update(checksum(path, 1).encode())
    return found.hexdigest()


def leaves(source: Source) -> Iterator[Source]:
    """The corpora that a corpus is made of, without what selects or changes their records."""
    if isinstance(source, Mixture):
        for one in source.sources:
            yield from leaves(one)
    elif isinstance(source, DerivedCorpus):
        yield from leaves(source.source)
    else:
        yield source


def paths(leaf: Source) -> Iterator[Path]:
    """The files among a corpus' fields; of one within an archive, the archive."""
    for value in vars(leaf).values():
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and not path.is_dir():
                yield next((place for place in (path, *path.parents) if place.is_file()), path)


def checksum(path: Path, blocks: int) -> str:
    """SHA-256 of a file's size and content, of one with more than so many blocks in part."""
    try:
        found, size = hashlib.sha256(), path.stat().st_size
        found.update(f"{size}\n".encode())
        with open(path, "rb") as file:
            for number in range(min(blocks, -(-size // BLOCK))):
                file.seek(number * max(BLOCK, size // blocks))
                found.update(file.read(BLOCK))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; correct the path") from None
    return found.hexdigest()
