"""Read untrusted files: safetensors and JSON. Sizes that a file declares are checked before memory is allocated.

A safetensors file is 8 bytes (length n of the header), n bytes of JSON {name: {dtype, shape, data_offsets}}, then the
tensors' bytes end to end. Every problem is a FileError of one line that says what to do.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.errors import FileError, is_memory_error

MAX_HEADER = 100_000_000
MAX_JSON = 50_000_000
MAX_ELEMENTS = 2**50
MAX_DIMENSIONS = 16
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of one element of each dtype a file may hold."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
NO_PICKLE = (
    "pickles are not opened, since they can run code: in the program that made it, save the model again as safetensors "
    "(transformers: model.save_pretrained(folder, safe_serialization=True))"
)


@dataclass(frozen=True)
class Entry:
    """What a header says of one tensor; its bytes are begin..end of the data part."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


# --- reading


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors file, or of a folder with model.safetensors, whole or sharded."""
    tensors: dict[str, Tensor] = {}
    for file, wanted in weight_files(Path(path)).items():
        header = read_header(file)
        absent = sorted(wanted - header.keys())
        if absent:
            raise FileError(f"{file} lacks {some(absent)}, which the index places there; download the shards again")
        tensors.update(_read_and_check(file, sorted(wanted) or list(header)))
    return tensors


def read_headers(path: str | Path) -> dict[str, Entry]:
    """What `read_tensors` would give, without reading any tensor."""
    found: dict[str, Entry] = {}
    for file, wanted in weight_files(Path(path)).items():
        found.update({name: entry for name, entry in read_header(file).items() if not wanted or name in wanted})
    return found


def weight_files(path: Path) -> dict[Path, set[str]]:
    """The safetensors files of a folder, each with the tensors to take from it; an empty set = all."""
    if path.is_file():
        if path.suffix in PICKLES:
            raise FileError(f"{path} looks like a pickle by its name; {NO_PICKLE}")
        return {path: set()}
    if not path.is_dir():
        raise FileError(f"{path} does not exist: give a model folder or a .safetensors file")
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return {single: set()}
    if index.is_file():
        return _shards(index)
    other = sorted(p.name for p in path.iterdir() if p.suffix in PICKLES or p.name.endswith(".safetensors"))
    pickled = [name for name in other if not name.endswith(".safetensors")]
    if pickled:
        raise FileError(f"{path} holds {', '.join(pickled)} and no model.safetensors; {NO_PICKLE}")
    advice = (
        f"found {', '.join(other)}: rename it or give the file itself" if other else "download them or correct the path"
    )
    raise FileError(f"no weights in {path}: looked for model.safetensors and model.safetensors.index.json; {advice}")


def _shards(index: Path) -> dict[Path, set[str]]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise FileError(f"{index} has no 'weight_map' of tensor names to file names; download it again")
    shards: dict[Path, set[str]] = {}
    for tensor, name in places.items():
        plain = name == os.path.basename(name) and "\\" not in name and name.endswith(".safetensors")
        if not plain:
            raise FileError(f"{index} points to {name!r}: shards must be .safetensors files in the same folder")
        shards.setdefault(index.parent / name, set()).add(tensor)
    missing = sorted(file.name for file in shards if not file.is_file())
    if missing:
        raise FileError(f"{index.parent} lacks {some(missing)}, listed in {index.name}; download the missing shards")
    return dict(sorted(shards.items()))


def read_header(path: str | Path) -> dict[str, Entry]:
    """The table of contents of a safetensors file, checked against the file's length; no tensor is read."""
    path = Path(path)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(512)
            length = int.from_bytes(start[:8], "little")
            _check_start(path, start, length, size)
            file.seek(8)
            text = file.read(length)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; correct the path") from None
    header = _parse(path, text)
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value) for name, value in header.items()}
    _check_layout(path, entries, size - 8 - length)
    return entries


def _check_start(path: Path, start: bytes, length: int, size: int) -> None:
    """Is it safetensors at all? If not, say what it is."""
    if len(start) > 8 and start[8:9] == b"{" and length <= min(size - 8, MAX_HEADER):
        return
    if start.startswith(b"version https://git-lfs"):
        problem = "is a git-lfs pointer, not the file itself: run `git lfs pull` in its repository"
    elif start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        problem = "is a web page, not weights: the download went wrong (is a login needed?); download the file itself"
    elif start.startswith(b"PK\x03\x04"):
        problem = f"is a zip archive, not safetensors: unpack it; if it is a PyTorch checkpoint, {NO_PICKLE}"
    elif start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        problem = f"is a pickle; {NO_PICKLE}"
    elif start.startswith(b"GGUF"):
        problem = "is a GGUF file: give it a name that ends in .gguf"
    elif size < 9:
        problem = f"is truncated ({size} bytes); download it again"
    elif start[8:9] == b"{":
        problem = f"is truncated: its header alone would take {length:,} bytes of {size:,}; download it again"
    else:
        problem = (
            f"is not safetensors, or corrupt (header of {length:,} bytes in a file of {size:,}); download it again"
        )
    raise FileError(f"{path} {problem}")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise FileError(f"{path} is corrupt: its header is not JSON; download it again") from None
    if not isinstance(header, dict):
        raise FileError(f"{path} is corrupt: its header is not a table of tensors; download it again")
    return header


def _entry(path: Path, name: str, value: Any) -> Entry:
    """One line of the header; whatever JSON may hold, only whole numbers that agree with one another pass."""

    def broken(what: str) -> FileError:
        return FileError(f"{path} is corrupt: tensor {name!r} {what}; download it again")

    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise broken("is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise broken(f"has the unknown dtype {str(dtype)[:40]!r} (known: {', '.join(SIZES)})")
    if not _whole(shape) or len(shape) > MAX_DIMENSIONS or math.prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
        raise broken(f"has an impossible shape, {str(shape)[:60]}")
    if not _whole(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise broken(f"has impossible offsets, {str(offsets)[:60]}")
    needed = math.prod(shape) * SIZES[dtype]
    if needed != offsets[1] - offsets[0]:
        raise broken(f"of shape {shape} and dtype {dtype} needs {needed:,} bytes but has {offsets[1] - offsets[0]:,}")
    return Entry(dtype, tuple(shape), *offsets)


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def _check_layout(path: Path, entries: dict[str, Entry], size: int) -> None:
    """The tensors lie end to end and fill the data part: no gap, no overlap, nothing beyond the end of the file."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > size:
            raise FileError(
                f"{path} is truncated: tensor {name!r} ends at byte {entry.end:,} of {size:,}; download the file again"
            )
        if entry.begin != at:
            raise corrupt(path, f"tensor {name!r} overlaps another or leaves a gap")
        at = entry.end
    if at != size:
        raise corrupt(path, f"{size - at:,} bytes after the last tensor")


def corrupt(path: Path, problem: str) -> FileError:
    return FileError(f"{path} is corrupt: {problem}; download the file again")


def _read_and_check(path: Path, names: list[str]) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        if is_memory_error(error):
            raise
        raise corrupt(path, _one_line(error)) from None


def read_json(path: str | Path, max_bytes: int = MAX_JSON, kind: type = dict) -> Any:
    """The object in a JSON file; with `kind` = list, the list in it."""
    path = Path(path)
    text = read_text(path, max_bytes)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "is a web page" if text.lstrip()[:1] == "<" else "is not valid JSON"
        raise FileError(f"{path} {what} ({_one_line(error)}); download the file again or correct it") from None
    if not isinstance(value, kind):
        wanted = "object {...}" if kind is dict else kind.__name__
        raise FileError(f"{path} holds no JSON {wanted} but a {type(value).__name__}; is it the right file?")
    return value


def read_bytes(path: str | Path, most: int) -> bytes:
    """The first bytes of a file, `most` at most."""
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; correct the path or download the file") from None


def read_text(path: str | Path, max_bytes: int = MAX_JSON) -> str:
    """A text file of bounded length."""
    path = Path(path)
    try:
        if path.stat().st_size > max_bytes:
            size = f"over {max_bytes:,} bytes, far more than such a file needs"
            raise FileError(f"{path} is {size}; is it the right file?")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; correct the path or download the file") from None
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8 text; is it the right file?") from None


UMASK = os.umask(0)
"""What new files may not allow. It can only be read by setting it, for all threads: so once, here."""
os.umask(UMASK)


# --- writing: a reader sees the old file or the new one, never half of it


def write_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, atomically."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        shared = own.untyped_storage().nbytes() > own.nbytes or own.data_ptr() in seen  # which safetensors refuses
        plain[name] = own.clone() if shared else own
        seen.add(own.data_ptr())
    atomically(Path(path), lambda temporary: save_file(plain, temporary, metadata={"format": "pt", **(metadata or {})}))


def write_text(path: str | Path, text: str) -> None:
    """A text file, atomically."""
    atomically(Path(path), lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))


def write_array(path: str | Path, array: np.ndarray) -> None:
    """A .npy file, atomically; numbers only, no pickle."""

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            np.save(file, array, allow_pickle=False)

    atomically(Path(path), write)


def write_json(path: str | Path, value: Any) -> None:
    """A JSON file, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def atomically(path: Path, write: Callable[[str], object]) -> None:
    """Write beside the target, flush to the disk, then rename."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            write(temporary)
            os.chmod(temporary, 0o666 & ~UMASK)
            to_disk(temporary)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        to_disk(path.parent)
    except (OSError, SafetensorError) as error:  # SafetensorError: what the library makes of an OSError
        reason = error.strerror if isinstance(error, OSError) else _one_line(error)
        raise FileError(f"cannot write {path}: {reason}; check the free space and the permissions") from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` to write into: it takes the place of `path` when the block ends, and only then.

    A folder that is not empty takes two renames to replace. Who is killed between them finds the old one as .name.old,
    and the next call puts it back.
    """
    path = path.resolve()
    try:
        if path == Path.cwd() or path in Path.cwd().parents or path.is_mount():
            raise FileError(f"{path} is in use as the current folder or a disk: give a new folder in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        settle(path)
        partial_path(path).mkdir()
        try:
            yield partial_path(path)
            take_place(path)
        finally:
            settle(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; choose another folder") from None


def partial_path(path: Path) -> Path:
    """Where a new folder is written before it takes the place of `path`."""
    return path.parent / f".{path.name}.partial"


def backup_path(path: Path) -> Path:
    """Where the old folder is while a new one takes its place."""
    return path.parent / f".{path.name}.old"


def take_place(path: Path) -> None:
    """Give the new folder its name."""
    if path.exists():
        path.rename(backup_path(path))
    partial_path(path).rename(path)
    to_disk(path.parent)


def settle(path: Path) -> None:
    """Put back what was moved away, and remove what is left of an earlier attempt to write the folder."""
    old = backup_path(path)
    if old.is_dir() and not path.exists():
        old.rename(path)
    for left in (partial_path(path), old):
        shutil.rmtree(left, ignore_errors=True)


def to_disk(path: str | Path) -> None:
    """Wait until a file is on the disk; a rename is when its folder is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- words


def some(names: list[str], most: int = 8) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
