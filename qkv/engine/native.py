"""native.cpp, compiled on first use and called on tensors. Where there is no compiler, `library()` is None and torch does
the same work."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = ["-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp"]
WIDE = 16
"""Columns of a panel, as in native.cpp."""
POINTER, WHOLE = ctypes.c_void_p, ctypes.c_long


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None where they cannot be had."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None or ctypes.sizeof(WHOLE) != 8:
        return None
    try:
        found = ctypes.CDLL(str(compiled(compiler)))
    except (OSError, subprocess.SubprocessError):
        return None
    found.linear.argtypes = [POINTER, WHOLE, WHOLE, POINTER, POINTER, POINTER, WHOLE]
    found.attend.argtypes = [POINTER, *[WHOLE] * 3, POINTER, POINTER, *[WHOLE] * 5, POINTER, WHOLE, POINTER,
                             ctypes.c_float, POINTER]  # fmt: skip
    found.linear.restype = found.attend.restype = None
    return found


def compiled(compiler: str) -> Path:
    """The shared library for this source and this processor, from the cache or made now."""
    key = SOURCE.read_text() + " ".join([compiler, *FLAGS, platform.platform(), torch.__version__, processor()])
    path = Path.home() / ".cache" / "qkv" / "native" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            run = lambda *words: subprocess.run([compiler, *words], check=True, capture_output=True, cwd=folder)  # noqa: E731
            run(*FLAGS, "-c", str(SOURCE), "-o", "native.o")
            # linked without -fopenmp: its threads are then torch's, which has them loaded, and not a second pool
            run("-shared", "native.o", "-o", "native.so")
            os.replace(Path(folder) / "native.so", path)
    return path


def processor() -> str:
    """What the processor can do: a library made for another one must not be loaded."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.processor())


def possible(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and library() is not None


def panels(weight: Tensor) -> Tensor:
    """(out, in) -> (out / 16, in, 16): what a row is multiplied with stands together; the last panel is filled with 0."""
    padded = F.pad(weight, (0, 0, 0, -weight.size(0) % WIDE))
    return padded.unflatten(0, (-1, WIDE)).transpose(1, 2).contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W^T + b: (..., in), the panels of W, (out,) -> (..., out)."""
    x = x.contiguous()
    depth, out = weight.size(1), bias.size(0)
    y = x.new_empty(*x.shape[:-1], out)
    library().linear(x.data_ptr(), x.numel() // depth, depth, weight.data_ptr(),  # type: ignore[union-attr]
                     bias.data_ptr(), y.data_ptr(), out)  # fmt: skip
    return y


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, allowed: Tensor | None = None,
           lanes: Tensor | None = None) -> Tensor:  # fmt: skip
    """softmax(q K^T scale) V for one query per row: (R, H, 1, D), keys and values (L, H_kv, S, D) -> (R, H, 1, D).

    `lanes` (R, S) says in which lane each row finds the key of each place; without them row r reads lane r / (R / L), so
    that beams share the memory of their sentence. `allowed` (L, 1, 1, S), or (R, 1, 1, S) with lanes: which places count.
    """
    rows, heads, _, width = query.shape
    query, length = query.contiguous(), key.size(2) if lanes is None else lanes.size(1)
    out = torch.empty_like(query)
    share = rows // key.size(0) if lanes is None else 1
    allowed = None if allowed is None else allowed.expand(rows // share, 1, 1, length).contiguous()
    assert key.stride() == value.stride() and key.stride(3) == 1
    library().attend(query.data_ptr(), rows, heads, width, key.data_ptr(), value.data_ptr(),  # type: ignore[union-attr]
                     key.stride(0), key.stride(1), key.stride(2), length, heads // key.size(1),
                     None if lanes is None else lanes.data_ptr(), share,
                     None if allowed is None else allowed.data_ptr(), scale, out.data_ptr())  # fmt: skip
    return out
