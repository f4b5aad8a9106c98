"""Word vectors in files: our folder (vectors.safetensors, vocabulary.json, COMPLETE with their checksums), and the two formats of word2vec.

text     "V C", then a word and C numbers per line
binary   "V C", then V times: the word, a space, C float32 (a line end may follow)
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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
from qkv.vectors.space import Vectors

TENSORS, WORDS = "vectors.safetensors", "vocabulary.json"
MAX_WORDS, MAX_WIDTH, MAX_NUMBERS = 20_000_000, 10_000, 2**33
LONGEST_WORD, LONGEST_NUMBER = 10_000, 40
"""Bytes."""
MAX_VOCABULARY = 1_000_000_000
"""Bytes of vocabulary.json."""
BLOCK = 2**20
FORMATS = ("word2vec-text", "word2vec-binary", "qkv")
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)


def holds_vectors(path: Path) -> bool:
    """Is it our folder of word vectors, the folder of a run that has made one, or a file that begins as word2vec's do?"""
    if path.is_file():
        try:
            read_sizes(path)
        except FileError:
            return False
        return True
    return (path / TENSORS).is_file() or (path / "best" / TENSORS).is_file()


def open_vectors(path: str | Path) -> Vectors:
    """Word vectors, wherever they are: a run's folder, our folder, or a file of word2vec."""
    path = Path(path)
    if not path.is_dir():
        return read_file(path)
    if not holds_vectors(path):
        raise FileError(
            f"{path} holds no word vectors: looked for {TENSORS}; give the folder of a run, or a file of word2vec"
        )
    return load(path if (path / TENSORS).is_file() else path / "best")


# --- our folder


def save(folder: Path, v: Vectors, card: str = "") -> None:
    """Write it, or put it in the place of one of ours (a run's folder is not one: it has more than vectors in it)."""
    if folder.exists() and not (folder.is_dir() and ((folder / TENSORS).is_file() or not any(folder.iterdir()))):
        raise FileError(f"{folder} exists and holds something else: choose another folder")
    with new_folder(folder) as new:
        write(new, v, card)


def write(folder: Path, v: Vectors, card: str = "") -> None:
    write_vocabulary(folder, v.words, v.counts)
    write_tensors(folder / TENSORS, {"input": v.vectors, **({} if v.output is None else {"output": v.output})})
    write_text(
        folder / "README.md",
        card or f"# {len(v):,} word vectors of width {v.vectors.size(1)}\n\nqkv nearest FOLDER WORD\n",
    )
    seal(folder, (WORDS, TENSORS))


def load(folder: Path) -> Vectors:
    """Read it, both files verified."""
    verify(folder)
    (words, counts), header = read_vocabulary(folder), read_header(folder / TENSORS)
    shape = header["input"].shape if "input" in header else ()
    if len(shape) != 2 or shape[0] != len(words) or not words or header["input"].dtype != "F32":
        raise FileError(
            f"{folder / TENSORS} must hold 'input', a float32 vector for each of {len(words):,} words; it has {shape}"
        )
    tensors = read_tensors(folder / TENSORS)
    check_finite(folder / TENSORS, tensors["input"])
    return Vectors(words, tensors["input"], counts, tensors.get("output"))


def check_finite(path: Path, vectors: torch.Tensor) -> None:
    if not vectors.isfinite().all():
        raise FileError(f"{path} has numbers that are none (infinite or not a number); is it the right file?")


def write_vocabulary(folder: Path, words: list[str], counts: Sequence[int] | None) -> None:
    write_json(folder / WORDS, {"words": words, **({} if counts is None else {"counts": list(counts)})})


def read_vocabulary(folder: Path) -> tuple[list[str], list[int] | None]:
    """The words, and where they are known their counts."""
    table = read_json(folder / WORDS, MAX_VOCABULARY)
    words, counts = table.get("words"), table.get("counts")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or len(set(words)) < len(words):
        raise FileError(f"{folder / WORDS} has no list of different words; fetch it again")
    if counts is not None and not (
        isinstance(counts, list) and len(counts) == len(words) and set(map(type, counts)) <= {int}
    ):
        raise FileError(f"{folder / WORDS}: there must be one count for each word; fetch it again")
    return words, counts


# --- files of word2vec


def export(path: Path, to: str, v: Vectors) -> float:
    """Write, read back, compare; the largest difference. The formats of word2vec hold the input vectors alone."""
    if to not in FORMATS:
        raise QkvError(f"word vectors are exported to {', '.join(FORMATS)} (--to), not to {to!r}")
    if path.exists():
        raise FileError(f"{path} exists: choose another name or remove it")
    if to == "qkv":
        save(path, v)
    else:
        write_file(path, v, binary=to == "word2vec-binary")
    again = open_vectors(path)
    difference = float((again.vectors - v.vectors).abs().max())
    if again.words != v.words or difference > 0:
        raise QkvError(f"{path}: what was read back differs by {difference:.1e}: do not use it")
    return difference


def write_file(path: Path, v: Vectors, binary: bool) -> None:
    """Nine digits give a float32 back exactly."""
    spaced = next((word for word in v.words if not word or any(c in word for c in " \n\r")), None)
    if spaced is not None:
        raise QkvError(f"the formats of word2vec have no words with spaces in them, such as {spaced!r}")

    def fill(temporary: str) -> None:
        with open(temporary, "wb") as file:
            file.write(f"{len(v)} {v.vectors.size(1)}\n".encode())
            for word, row in zip(v.words, v.vectors.numpy().astype("<f4", copy=False), strict=True):
                numbers = row.tobytes() if binary else " ".join(f"{x:.9g}" for x in row.tolist()).encode()
                file.write(word.encode() + b" " + numbers + b"\n")

    atomically(path, fill)


def read_file(path: Path) -> Vectors:
    """Text or binary, compressed or not; which, shows the first row."""
    count, width = read_sizes(path)
    binary = not is_text(path, width)
    check_size(path, count * (4 * width + 1 if binary else 2 * width))
    matrix = np.empty((count, width), dtype=np.float32)
    words: list[str] = []
    seen: set[str] = set()
    with opened(path) as file:
        file.readline(100)
        rows = binary_rows(file, count, width, path) if binary else text_rows(file, count, width, path)
        for word, numbers in rows:
            if word in seen:
                continue  # the first one counts, as in gensim
            seen.add(word)
            matrix[len(words)] = numbers
            words.append(word)
    vectors = torch.from_numpy(matrix[: len(words)])
    check_finite(path, vectors)
    return Vectors(words, vectors)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    if not path.exists() and not any(parent.suffix == ".zip" for parent in path.parents):
        raise FileError(f"{path} does not exist: give the folder of a run, or a file of word2vec")
    try:
        with open_binary(path) as file:
            yield file
    except DAMAGE as error:
        raise FileError(f"{path} is damaged or cut short ({error}); fetch it again") from None


def read_sizes(path: Path) -> tuple[int, int]:
    """How many words, and how many numbers each: the first line."""
    with opened(path) as file:
        cells = file.readline(100).split()
    sizes = [int(cell) for cell in cells if cell.isdigit() and len(cell) < 12]
    if len(cells) != 2 or len(sizes) != 2:
        raise FileError(
            f"{path} is no file of word2vec: its first line must say how many words and numbers, such as '50000 100' (from "
            "gensim: save_word2vec_format)"
        )
    count, width = sizes
    if not (0 < count <= MAX_WORDS and 0 < width <= MAX_WIDTH and count * width <= MAX_NUMBERS):
        raise FileError(f"{path}: {count:,} words of {width:,} numbers are not possible here; is it the right file?")
    return count, width


def check_size(path: Path, least: int) -> None:
    """No memory is taken for what cannot be in the file; of a compressed one nobody knows."""
    plain = path.is_file() and not read_bytes(path, 6).startswith(
        (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
    )
    if plain and path.stat().st_size < least:
        raise FileError(
            f"{path} is cut short: it has {path.stat().st_size:,} bytes, and its first line promises {least:,} or more"
        )


def is_text(path: Path, width: int) -> bool:
    """Is the first row a word and numbers in letters?"""
    with opened(path) as file:
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
                raise FileError(f"{path} is cut short at word {number:,} of {count:,}; fetch it again") from None
            raise FileError(f"{path}: word {number:,} of {count:,} must be a line with a word and {width} numbers, "
                            f"not {line[:60].decode(errors='replace').rstrip()!r}") from None  # fmt: skip


def binary_rows(file: BinaryIO, count: int, width: int, path: Path) -> Iterator[tuple[str, Any]]:
    block, at = b"", 0
    for number in range(1, count + 1):
        while (space := block.find(b" ", at)) < 0 or len(block) < space + 1 + 4 * width:
            more = file.read(BLOCK)
            if not more or (space < 0 and len(block) - at > LONGEST_WORD):
                raise FileError(f"{path} is damaged or cut short at word {number:,} of {count:,}; fetch it again")
            block, at = block[at:] + more, 0
        try:
            word = block[at:space].lstrip(b"\n").decode()
        except UnicodeDecodeError:
            raise FileError(f"{path}: word {number:,} is not UTF-8; is it a file of word2vec?") from None
        yield word, np.frombuffer(block, dtype="<f4", count=width, offset=space + 1)
        at = space + 1 + 4 * width
