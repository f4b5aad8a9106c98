"""Compile C++ kernels on first use and load them; the structures of native.cpp and training_kernels.cpp. Without a compiler
`library()` is None, and torch does the same work; a failed compilation is reported once, and not repeated."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SOURCES = [Path(__file__).with_name(name) for name in ("native.cpp", "training_kernels.cpp", "vectors.h")]
FLAGS = ["-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp"]
WIDE = 16
"""Columns of a panel, as in native.cpp."""
POINTER, WHOLE, REAL = ctypes.c_void_p, ctypes.c_long, ctypes.c_float


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None if there are none."""
    found = load_library(SOURCES, STRUCTURES)
    if found is None:
        return None
    for name in ("decode", "attend", "attend_back"):
        function = getattr(found, name)
        function.argtypes, function.restype, function.errcheck = [POINTER], ctypes.c_int, raise_failure
    found.decode.argtypes = [POINTER, POINTER]
    found.linear.argtypes, found.linear.restype = [POINTER, POINTER, WHOLE, POINTER], None
    found.log_softmax.argtypes, found.log_softmax.restype = [POINTER, WHOLE, WHOLE], None
    found.gelu_tanh.argtypes, found.gelu_tanh.restype = [POINTER, POINTER, WHOLE], None
    found.gelu_tanh_back.argtypes, found.gelu_tanh_back.restype = [POINTER, POINTER, POINTER, WHOLE], None
    return found


class CompileError(Exception):
    """The compiler's first error, and where its whole message is."""


class KnownCompileError(Exception):
    """The same sources failed to compile before, which was reported then."""


def raise_failure(code: int, function: Any, arguments: Any) -> int:
    """Raise the error that a kernel returned (errcheck of ctypes)."""
    if code:
        raise MemoryError(f"out of memory in {function.__name__}: use a smaller batch or shorter texts")
    return code


def find_compiler() -> str | None:
    """Return the path of the C++ compiler, or None where there is none (or where `long` has not 64 bits)."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return found if ctypes.sizeof(WHOLE) == 8 else None


def load_library(
    sources: list[Path], structures: dict[str, type[ctypes.Structure]] | None = None
) -> ctypes.CDLL | None:
    """Load the library of these C++ files (and headers), compiled if necessary; None without a compiler, and, with a line on
    stderr, if they cannot be compiled or loaded. `structures`: those of C++ by name, whose sizes must be equal."""
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        found = ctypes.CDLL(str(compile_library(compiler, sources)))
        check_sizes(found, structures or {})
        return found
    except KnownCompileError:
        return None
    except (OSError, CompileError) as problem:
        print(f"warning: cannot use {sources[0].name}, falling back to slower code: {problem}", file=sys.stderr)
        return None


def check_sizes(found: ctypes.CDLL, structures: dict[str, type[ctypes.Structure]]) -> None:
    """Raise OSError if a structure has another size in C++: its fields would be read from wrong addresses."""
    for name, structure in structures.items():
        size = getattr(found, f"sizeof_{name}")
        size.restype = WHOLE
        if size() != ctypes.sizeof(structure):
            raise OSError(
                f"{name} has {size()} bytes in C++ and {ctypes.sizeof(structure)} in Python: they must be equal"
            )


def compile_library(compiler: str, sources: list[Path]) -> Path:
    """Return the shared library for these sources and this processor, from the cache or compiled now."""
    texts = "".join(source.read_text() for source in sources)
    key = texts + " ".join([compiler, *FLAGS, platform.platform(), torch.__version__, processor()])
    path = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    log = path.with_suffix(".log")
    if not path.is_file() or not private(path):
        if log.is_file() and private(log):
            raise KnownCompileError(log)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            files = [source for source in sources if source.suffix == ".cpp"]
            run([compiler, *FLAGS, "-c", *map(str, files)], folder, log)
            # linked without -fopenmp: its threads are then torch's, which has them loaded, and not a second pool
            run([compiler, "-shared", *(f"{file.stem}.o" for file in files), "-o", "native.so"], folder, log)
            (Path(folder) / "native.so").chmod(0o700)
            os.replace(Path(folder) / "native.so", path)
    return path


def cache_folder() -> Path:
    """The folder of compiled libraries: ~/.cache/qkv/native, or a temporary folder where there is no home to write to.

    What lies there is executed: a folder that somebody else owns or may write to is not used.
    """
    try:
        return private_folder(Path.home() / ".cache" / "qkv" / "native")
    except (RuntimeError, OSError):  # Path.home() raises RuntimeError where there is none
        return private_folder(Path(tempfile.gettempdir()) / f"qkv-native-{os.geteuid()}")


def private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not private(path) or not os.access(path, os.W_OK):
        raise PermissionError(f"{path} belongs to another user or is writable by others: remove it, or chmod 700")
    return path


def private(path: Path) -> bool:
    """Whether the file or folder itself, not what it links to, is owned by this user and writable by no other."""
    found = path.lstat()
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def run(command: list[str], folder: str, log: Path) -> None:
    """Run the compiler; if it fails, write its message to `log` and raise a CompileError of one line."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
    if done.returncode:
        if done.returncode < 0:  # ended by a signal: the next process tries again
            raise CompileError(f"the compiler was ended by signal {-done.returncode}")
        log.write_text(f"{' '.join(command)}\n{done.stderr}")
        log.chmod(0o600)
        errors = [line.strip() for line in done.stderr.splitlines() if "error:" in line]
        first = errors[0][:200] if errors else f"the compiler ended with exit code {done.returncode}"
        raise CompileError(f"{first} (delete this file to try again, it has the full message: {log})")


def processor() -> str:
    """What the processor can do: a library made for another one must not be loaded."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.processor())


def supports(weight: Tensor) -> bool:
    """Return whether the kernels compute with this weight."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and library() is not None


def panels(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """(out, in) -> (out / 16, in, 16): what a number of x is multiplied with stands together; and the bias. Both are
    filled with 0 up to a multiple of 16."""
    bias = weight.new_zeros(weight.size(0)) if bias is None else bias
    rest = -weight.size(0) % WIDE
    padded = F.pad(weight, (0, 0, 0, rest)).unflatten(0, (-1, WIDE))  # (out / 16, 16, in)
    return padded.transpose(1, 2).contiguous(), F.pad(bias, (0, rest)).contiguous()


# --- the structures of native.cpp and training_kernels.cpp; each holds addresses, so whoever makes one keeps the tensors


class LinearStruct(ctypes.Structure):
    _fields_ = [("panels", POINTER), ("bias", POINTER), ("inputs", WHOLE), ("outputs", WHOLE)]


class NormStruct(ctypes.Structure):
    _fields_ = [("weight", POINTER), ("bias", POINTER), ("eps", REAL)]


class ResidualStruct(ctypes.Structure):
    _fields_ = [("before", NormStruct), ("after", NormStruct), ("first", LinearStruct), ("last", LinearStruct)]


class BlockStruct(ctypes.Structure):
    _fields_ = [("attention", ResidualStruct), ("cross", ResidualStruct), ("feedforward", ResidualStruct)]


class DecoderStruct(ctypes.Structure):
    _fields_ = [("blocks", POINTER), *((name, WHOLE) for name in ("layers", "width", "heads", "key_heads", "head_width",
                "activation")), ("scale", REAL), ("norm", NormStruct)]  # fmt: skip


class Pass(ctypes.Structure):
    _fields_ = [("x", POINTER), ("rows", WHOLE), ("tokens", WHOLE), ("past", WHOLE), ("written", POINTER),
                ("lanes", WHOLE), ("places", WHOLE), ("lane", POINTER), ("real", POINTER), ("memory", POINTER),
                ("sentences", WHOLE), ("source", WHOLE), ("source_real", POINTER)]  # fmt: skip


class Heads(ctypes.Structure):
    """(B, H, T, D), the numbers of a token side by side: the address and the first three strides."""

    _fields_ = [("at", POINTER), ("row", WHOLE), ("head", WHOLE), ("token", WHOLE)]


class AttentionStruct(ctypes.Structure):
    _fields_ = [*((name, Heads) for name in ("query", "key", "value", "out")), ("sums", POINTER), ("spans", POINTER),
                *((name, WHOLE) for name in ("n", "tokens", "heads", "key_heads", "width")), ("scale", REAL),
                ("causal", ctypes.c_bool), *((name, Heads) for name in ("dout", "dquery", "dkey", "dvalue"))]  # fmt: skip


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "Linear": LinearStruct, "Norm": NormStruct, "Residual": ResidualStruct, "Block": BlockStruct, "Decoder": DecoderStruct, "Pass": Pass,
    "Heads": Heads, "Attention": AttentionStruct,
}  # fmt: skip
"""Names in C++."""


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
