"""Lines of untrusted text files: plain or compressed, of any size, each validated before it is used."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from qkv.errors import FileError

MAX_LINE = 100_000
"""Bytes of the longest line that is read as a sentence; a longer one is counted and skipped."""
MAX_ROW = 10_000_000
"""Bytes of the longest row of a table of documents."""
RUN = 1000
"""Lines that are read together where only a sample is read."""


def open_binary(path: str | Path) -> BinaryIO:
    """A file, decompressed by its ending (.gz .bz2 .xz .zst), or one within an archive (corpus.zip/corpus.en); "-" is
    standard input."""
    if str(path) == "-":
        if sys.stdin is None:
            raise FileError("there is no standard input: name a file")
        return sys.stdin.buffer if hasattr(sys.stdin.buffer, "peek") else io.BufferedReader(sys.stdin.buffer)  # type: ignore[type-var]
    path = Path(path)
    for archive in path.parents:
        if archive.suffix == ".zip" and archive.is_file():
            return _open_member(archive, path.relative_to(archive).as_posix())
    try:
        return COMPRESSED[path.suffix](path) if path.suffix in COMPRESSED else open(path, "rb", 2**18)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}; correct the path") from None


def _open_member(archive: Path, name: str) -> BinaryIO:
    try:
        return zipfile.ZipFile(archive).open(name)  # type: ignore[return-value]
    except KeyError:
        held = zipfile.ZipFile(archive).namelist()
        raise FileError(f"{archive} holds no {name!r}, but {', '.join(held[:8])}") from None
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise FileError(f"{archive} is damaged or locked ({error}); download it again") from None


def _open_zst(path: Path) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise FileError(f"{path} is zstandard-compressed: pip install 'qkv[zstd]', or decompress it first") from None
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(open(path, "rb")))  # type: ignore[arg-type]


COMPRESSED: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _open_zst
}  # fmt: skip
"""Endings of compressed files, and what opens them."""
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)
"""What is raised where a file cannot be decompressed."""


@contextmanager
def check_whole(path: str | Path) -> Iterator[None]:
    """While a file is read, turn the errors of a damaged one into a FileError."""
    try:
        yield
    except DAMAGE as error:
        raise FileError(f"{path} is damaged or cut short ({error}); download it again") from None


def lines(path: str | Path, skipped: Counter[str] | None = None, longest: int = MAX_LINE) -> Iterator[str | None]:
    """All lines of a file: see Lines."""
    return iter(Lines(path, Counter() if skipped is None else skipped, longest=longest))


@dataclass
class Lines:
    """The lines of a file without their ends. A line that is no text is None, so that parallel files stay in step,
    and is counted under its reason in `skipped`.

    Lines before `start` are passed over by counting line ends, many times faster than they are read. So are, with a
    `stride` of n, all but RUN lines of every n * RUN: a sample that is spread over the whole file.
    """

    path: str | Path
    skipped: Counter[str] = field(default_factory=Counter)
    start: int = 0
    stride: int = 1
    number: int = 0
    """Lines that are behind, passed over or read."""
    longest: int = MAX_LINE
    """Bytes of a line at the most."""

    def __iter__(self) -> Iterator[str | None]:
        with open_binary(self.path) as file, check_whole(self.path):
            self.number = _pass_over(file, self.start)
            if self.number == 0 and file.peek(3)[:3] == codecs.BOM_UTF8:  # type: ignore[attr-defined]
                file.read(3)  # a byte order mark, with which some programs begin a UTF-8 file, is no text
            for count, raw in enumerate(iter(partial(file.readline, self.longest + 1), b""), 1):
                self.number += 1
                yield _text(raw, file, self.skipped, self.longest)
                if count % RUN == 0:
                    self.number += _pass_over(file, RUN * (self.stride - 1))


MAX_WHOLE = 10_000_000
"""Bytes of the longest text that is read whole."""


def read_whole(path: str | Path) -> str:
    """All of a file as one text."""
    with open_binary(path) as file, check_whole(path):
        raw = file.read(MAX_WHOLE + 1)
    if len(raw) > MAX_WHOLE:
        raise FileError(f"{path} has more than {MAX_WHOLE:,} bytes: split it, or give one text per line")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8 text: convert it first") from None


def about(path: str | Path) -> int:
    """How many lines a file has, guessed from its size and its first lines; 0 for standard input."""
    if str(path) == "-":
        return 0
    with open_binary(path) as file:
        try:
            block = file.read(2**18)
        except DAMAGE:
            return 0  # damaged: whoever reads it says so
    packed = 1 if type(file) is io.BufferedReader and Path(path).suffix != ".zst" else 4  # text shrinks to a quarter
    size = Path(path).stat().st_size if Path(path).is_file() else len(block)
    return packed * size * block.count(b"\n") // max(len(block), 1)


def _pass_over(file: BinaryIO, count: int) -> int:
    """Go on behind the next `count` lines; how many there were."""
    left = count
    while left > 0 and (block := file.peek(1)):  # type: ignore[attr-defined]
        ends = block.count(b"\n")
        if ends < left:
            file.read(len(block))
            left -= ends
            if not file.peek(1) and not block.endswith(b"\n"):  # type: ignore[attr-defined]
                left -= 1  # the last line has no end
        else:
            rest = block.split(b"\n", left)[-1]  # what is behind the last of these lines
            file.read(len(block) - len(rest))
            left = 0
    return count - left


def _text(raw: bytes, file: BinaryIO, skipped: Counter[str], longest: int) -> str | None:
    if len(raw) > longest and not raw.endswith(b"\n"):
        while raw and not raw.endswith(b"\n"):  # the rest of it
            raw = file.readline(MAX_LINE)
        skipped[f"longer than {longest:,} bytes"] += 1
        return None
    if b"\0" in raw:
        skipped["NUL bytes"] += 1
        return None
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        skipped["not UTF-8"] += 1
        return None
