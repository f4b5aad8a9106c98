"""Lines of text from outside: plain or compressed, any size, each checked before anything else sees it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from qkv.errors import FileError

MAX_LINE = 100_000
"""Bytes of the longest line that is read as a sentence; a longer one is counted and skipped."""


def open_binary(path: str | Path) -> BinaryIO:
    """A file, decompressed by its ending (.gz .bz2 .xz .zst), or one within an archive (corpus.zip/corpus.en); "-" is
    standard input."""
    if str(path) == "-":
        return sys.stdin.buffer
    path = Path(path)
    for archive in path.parents:
        if archive.suffix == ".zip" and archive.is_file():
            return _open_member(archive, path.relative_to(archive).as_posix())
    try:
        match path.suffix:
            case ".gz":
                return gzip.open(path, "rb")  # type: ignore[return-value]
            case ".bz2":
                return bz2.open(path, "rb")  # type: ignore[return-value]
            case ".xz":
                return lzma.open(path, "rb")  # type: ignore[return-value]
            case ".zst":
                return _open_zst(path)
        return open(path, "rb")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}; correct the path") from None


def _open_member(archive: Path, name: str) -> BinaryIO:
    try:
        return zipfile.ZipFile(archive).open(name)  # type: ignore[return-value]
    except KeyError:
        held = zipfile.ZipFile(archive).namelist()
        raise FileError(f"{archive} holds no {name!r}, but {', '.join(held[:8])}") from None
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise FileError(f"{archive} is damaged or locked ({error}); fetch it again") from None


def _open_zst(path: Path) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise FileError(f"{path} is zstandard-compressed: pip install zstandard, or decompress it first") from None
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(open(path, "rb")))  # type: ignore[arg-type]


def lines(path: str | Path, skipped: Counter[str] | None = None) -> Iterator[str | None]:
    """The lines of a file without their ends. A line that is no text is None, so that parallel files stay in step,
    and is counted under its reason in `skipped`."""
    counts = Counter[str]() if skipped is None else skipped
    with open_binary(path) as file:
        try:
            while raw := file.readline(MAX_LINE + 1):
                yield _text(raw, file, counts)
        except (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
            raise FileError(f"{path} is damaged or cut short ({error}); fetch it again") from None


def _text(raw: bytes, file: BinaryIO, skipped: Counter[str]) -> str | None:
    if len(raw) > MAX_LINE and not raw.endswith(b"\n"):
        while raw and not raw.endswith(b"\n"):  # the rest of it
            raw = file.readline(MAX_LINE)
        skipped["longer than 100,000 bytes"] += 1
        return None
    if b"\0" in raw:
        skipped["NUL bytes"] += 1
        return None
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        skipped["not UTF-8"] += 1
        return None
