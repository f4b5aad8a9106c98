"""Files of word vectors: our folder (vectors.safetensors, vocabulary.json, COMPLETE with checksums) and the two word2vec formats.

text     "V C", then a word and C numbers per line
binary   "V C", then V times: the word, a space, C float32 (a newline may follow)
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from qkv.convert.files import (
    atomically,
    new_folder,
    read_bytes,
    read_header,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
    write_text,
)
from qkv.convert.manifest import seal, verify
from qkv.data.lines import open_binary
from qkv.errors import FileError, QkvError

TENSORS, WORDS = "vectors.safetensors", "vocabulary.json"
MAX_WORDS, MAX_WIDTH, MAX_NUMBERS = 20_000_000, 10_000, 2**33
LONGEST_WORD, LONGEST_NUMBER = 10_000, 40
"""Bytes."""
MAX_VOCABULARY = 1_000_000_000
"""Bytes of vocabulary.json."""
BLOCK = 2**20
FORMATS = ("word2vec-text", "word2vec-binary", "qkv")
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""The first bytes of .gz, .bz2, .xz and .zst."""
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)


class VectorTable(NamedTuple):
    """The contents of a file: the arguments of `qkv.vectors.space.Vectors`."""

    words: list[str]
    vectors: torch.Tensor
    """(V, C) float32."""
    counts: Sequence[int] | None = None
    output: torch.Tensor | None = None
    """(V, C), or (V - 1, C) of a Huffman tree: the vectors of predicted words."""


def holds_vectors(path: Path) -> bool:
    """Return whether a path is our folder of word vectors, a run with one, or a word2vec file."""
    if path.is_file():
        try:
            read_sizes(path)
        except FileError:
            return False
        return True
    return (path / TENSORS).is_file() or (path / "best" / TENSORS).is_file()


def read(path: Path) -> VectorTable:
    """Read word vectors from the folder of a run, our folder, or a word2vec file."""
    if not path.is_dir():
        return read_file(path)
    if not holds_vectors(path):
        raise FileError(f"{path} holds no word vectors ({TENSORS}): give the folder of a run, or a word2vec file")
    return load(path if (path / TENSORS).is_file() else path / "best")


# --- our folder


def save(folder: Path, v: VectorTable) -> None:
    """Write our folder, or replace one; any other existing folder (a run, too) is an error."""
    if folder.exists() and not (folder.is_dir() and ((folder / TENSORS).is_file() or not any(folder.iterdir()))):
        raise FileError(f"{folder} exists and is not a folder of word vectors: choose another folder")
    with new_folder(folder) as new:
        write_vocabulary(new, v.words, v.counts)
        write_tensors(new / TENSORS, {"input": v.vectors, **({} if v.output is None else {"output": v.output})})
        title = f"# {len(v.words):,} word vectors of width {v.vectors.size(1)}"
        write_text(new / "README.md", f"{title}\n\nqkv nearest FOLDER WORD\n")
        seal(new, (WORDS, TENSORS))


def load(folder: Path) -> VectorTable:
    """Read our folder and verify both files."""
    verify(folder)
    path = folder / TENSORS
    (words, counts), header = read_vocabulary(folder), read_header(path)
    shape = header["input"].shape if "input" in header else ()
    if len(shape) != 2 or shape[0] != len(words) or not words or header["input"].dtype != "F32":
        raise FileError(f"{path} must hold 'input', float32 of shape ({len(words)}, width): found shape {shape}")
    tensors = read_tensors(path)
    check_finite(path, tensors["input"])
    return VectorTable(words, tensors["input"], counts, tensors.get("output"))


def check_finite(path: Path, vectors: torch.Tensor) -> None:
    if not vectors.isfinite().all():
        raise FileError(f"{path} has values that are infinite or not a number: is it the right file?")


def write_vocabulary(folder: Path, words: list[str], counts: Sequence[int] | None) -> None:
    write_json(folder / WORDS, {"words": words, **({} if counts is None else {"counts": list(counts)})})


def read_vocabulary(folder: Path) -> tuple[list[str], list[int] | None]:
    """Read the words, and their counts where they are known."""
    table = read_json(folder / WORDS, MAX_VOCABULARY)
    words, counts = table.get("words"), table.get("counts")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or len(set(words)) < len(words):
        raise FileError(f"{folder / WORDS} must hold a list of distinct words: download it again")
    counted = isinstance(counts, list) and len(counts) == len(words) and set(map(type, counts)) <= {int}
    if counts is not None and not counted:
        raise FileError(f"{folder / WORDS} must hold one count for each word: download it again")
    return words, counts


# --- word2vec files


def export(path: Path, to: str, v: VectorTable) -> float:
    """Write, read back and compare; return the largest difference. The word2vec formats hold only the input vectors."""
    if to not in FORMATS:
        raise QkvError(f"cannot export word vectors to {to!r}: choose --to from {', '.join(FORMATS)}")
    if path.exists():
        raise FileError(f"{path} exists: choose another name or remove it")
    if to == "qkv":
        save(path, v)
    else:
        write_file(path, v, binary=to == "word2vec-binary")
    again = read(path)
    difference = float((again.vectors - v.vectors).abs().max())
    if again.words != v.words or difference > 0:
        raise QkvError(f"{path} differs from the model by {difference:.1e} when read back: do not use it")
    return difference


def write_file(path: Path, v: VectorTable, binary: bool) -> None:
    """Write a word2vec file; nine digits restore a float32 exactly."""
    spaced = next((word for word in v.words if not word or any(c in word for c in " \n\r")), None)
    if spaced is not None:
        raise QkvError(f"the word2vec formats do not allow words with spaces, such as {spaced!r}: export to qkv")

    def fill(temporary: str) -> None:
        with open(temporary, "wb") as file:
            file.write(f"{len(v.words)} {v.vectors.size(1)}\n".encode())
            for word, row in zip(v.words, v.vectors.numpy().astype("<f4", copy=False), strict=True):
                numbers = row.tobytes() if binary else " ".join(f"{x:.9g}" for x in row.tolist()).encode()
                file.write(word.encode() + b" " + numbers + b"\n")

    atomically(path, fill)


def read_file(path: Path) -> VectorTable:
    """Read a word2vec file, text or binary (detected from the first row), compressed or not."""
    count, width = read_sizes(path)
    binary = not is_text_format(path, width)
    check_size(path, count * (4 * width + 1 if binary else 2 * width))
    matrix = np.empty((count, width), dtype=np.float32)
    words: list[str] = []
    seen: set[str] = set()
    with open_file(path) as file:
        file.readline(100)
        rows = binary_rows(file, count, width, path) if binary else text_rows(file, count, width, path)
        for word, numbers in rows:
            if word in seen:
                continue  # keep the first, as gensim does
            seen.add(word)
            matrix[len(words)] = numbers
            words.append(word)
    vectors = torch.from_numpy(matrix[: len(words)])
    check_finite(path, vectors)
    return VectorTable(words, vectors)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    if not path.exists() and not any(parent.suffix == ".zip" for parent in path.parents):
        raise FileError(f"{path} does not exist: give the folder of a run, or a word2vec file")
    try:
        with open_binary(path) as file:
            yield file
    except DAMAGE as error:
        raise FileError(f"{path} is damaged or truncated ({error}): download it again") from None


def read_sizes(path: Path) -> tuple[int, int]:
    """Read the number of words and the width from the first line."""
    with open_file(path) as file:
        cells = file.readline(100).split()
    sizes = [int(cell) for cell in cells if cell.isdigit() and len(cell) < 12]
    if len(cells) != 2 or len(sizes) != 2:
        raise FileError(
            f"{path} is not a word2vec file: its first line must give the number of words and the width, such as '50000 100' (in "
            "gensim: save_word2vec_format)"
        )
    count, width = sizes
    if not (0 < count <= MAX_WORDS and 0 < width <= MAX_WIDTH and count * width <= MAX_NUMBERS):
        why = f"not possible (at most {MAX_WORDS:,} words, width {MAX_WIDTH:,})"
        raise FileError(f"{path}: {count:,} words of width {width:,} are {why}: is it the right file?")
    return count, width


def check_size(path: Path, least: int) -> None:
    """Raise an error if the file is smaller than its first line claims, before memory is allocated; compressed files pass."""
    if not path.is_file() or read_bytes(path, 6).startswith(COMPRESSED):
        return
    if (size := path.stat().st_size) < least:
        raise FileError(f"{path} is truncated: it has {size:,} bytes, and its first line implies at least {least:,}")


def is_text_format(path: Path, width: int) -> bool:
    """Return whether the first row is a word followed by decimal numbers."""
    with open_file(path) as file:
        file.readline(100)
        row = file.readline(LONGEST_WORD + width * LONGEST_NUMBER)
    try:
        return len([float(cell) for cell in row.decode().rstrip().rsplit(" ", width)[1:]]) == width
    except ValueError:  # a UnicodeDecodeError is one too
        return False


def text_rows(file: BinaryIO, count: int, width: int, path: Path) -> Iterator[tuple[str, Any]]:
    for number in range(1, count + 1):
        line = file.readline(LONGEST_WORD + width * LONGEST_NUMBER)
        cells = line.rstrip().rsplit(b" ", width)
        try:
            if len(cells) != width + 1:
                raise ValueError
            yield cells[0].decode(), np.array(cells[1:], dtype=np.float32)
        except ValueError:
            if not line.endswith(b"\n"):
                raise FileError(f"{path} is truncated at word {number:,} of {count:,}: download it again") from None
            raise FileError(f"{path}: word {number:,} of {count:,} must be a line with a word and {width} numbers, "
                            f"found {line[:60].decode(errors='replace').rstrip()!r}") from None  # fmt: skip


def binary_rows(file: BinaryIO, count: int, width: int, path: Path) -> Iterator[tuple[str, Any]]:
    block, at = b"", 0
    for number in range(1, count + 1):
        while (space := block.find(b" ", at)) < 0 or len(block) < space + 1 + 4 * width:
            more = file.read(BLOCK)
            if not more or (space < 0 and len(block) - at > LONGEST_WORD):
                raise FileError(f"{path} is damaged or truncated at word {number:,} of {count:,}: download it again")
            block, at = block[at:] + more, 0
        try:
            word = block[at:space].lstrip(b"\n").decode()
        except UnicodeDecodeError:
            raise FileError(f"{path}: word {number:,} is not UTF-8: is it a word2vec file?") from None
        yield word, np.frombuffer(block, dtype="<f4", count=width, offset=space + 1)
        at = space + 1 + 4 * width
