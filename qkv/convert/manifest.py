"""COMPLETE: the marker that is written last into a folder, with the SHA-256 of every other file.

Its lines are those of the command sha256sum, so `sha256sum -c COMPLETE` checks a folder too:

    # saved whole by qkv 0.1.0
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  config.json

A file without a line is not checked: README.md, which people edit, and all files of a folder that an older version
wrote. Whoever edits another file deletes its line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import qkv
from qkv.convert.files import read_text, write_text
from qkv.errors import FileError

MARKER = "COMPLETE"
MAX_BYTES = 1_000_000
LINE = re.compile(r"([0-9a-f]{64})  ([^/\\]+)")
COMMENTS = ("#", "saved whole by qkv")
"""What a line begins with that is no checksum; the second one is all that older versions wrote."""


def seal(folder: Path, names: Iterable[str]) -> None:
    """Write the marker with the checksums of those of the named files that exist."""
    present = [name for name in sorted(names) if (folder / name).is_file()]
    lines = [f"{sha256(folder / name)}  {name}\n" for name in present]
    write_text(folder / MARKER, "".join([f"# saved whole by qkv {qkv.__version__}\n", *lines]))


def verify(folder: Path, *names: str) -> None:
    """Compare these files, or all that the marker lists, with their checksums; FileError for one that differs."""
    listed = checksums(folder)
    try:
        compare(folder, {name: listed[name] for name in names or listed if name in listed})
    except FileError:
        if checksums(folder) == listed:
            raise
        verify(folder, *names)  # meanwhile a new folder took its place, as best/ does in a run


def compare(folder: Path, listed: dict[str, str]) -> None:
    """FileError for the first file that is missing, or whose SHA-256 is not the one listed."""
    for name, checksum in listed.items():
        if not (folder / name).is_file():
            raise FileError(f"{folder} lacks {name}, which {MARKER} lists: copy the folder again")
        if sha256(folder / name) != checksum:
            raise FileError(
                f"{folder / name} is damaged: it differs from its checksum in {MARKER}; copy the folder again (if you edited "
                f"the file, delete its line in {MARKER})"
            )


def checksums(folder: Path) -> dict[str, str]:
    """Name -> SHA-256, as the marker lists them; empty where there is no marker, or one of an older version."""
    path, found = folder / MARKER, {}
    if not path.is_file():
        return {}
    text = read_text(path, MAX_BYTES)
    for line in text.split("\n"):
        if match := LINE.fullmatch(line):
            found[match[2]] = match[1]
        elif line and not line.startswith(COMMENTS):
            raise FileError(f"{path} is damaged: {line[:80]!r} is no checksum; copy the folder again")
    if not found and not text.endswith("\n"):
        raise FileError(f"{path} is damaged: its end is missing; copy the folder again")
    return found


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits: 1 GB takes about a second."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; correct the path or its permissions") from None
