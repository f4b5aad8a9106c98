"""Load the C++ kernels (cpp/) for this processor; the structures that they take, and weights in their layout.

The package contains one library per instruction set (setup.py, kernels.py); the best that the processor supports is loaded. Where
there is none, `library()` is None, and torch computes the same more slowly.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.engine.kernels import FALLBACK, FOLDER, choose_level, warn_once
from qkv.engine.weight_memory import place

PANEL_WIDTH = 16
"""Columns of a panel."""
OUT_OF_RANGE = 2
"""Result of a kernel; any other than 0: out of memory."""
POINTER, WHOLE, REAL, FLAG = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_bool


@cache
def library() -> ctypes.CDLL | None:
    """Return the kernels for this processor; None where there are none."""
    try:
        level = choose_level()
        return None if level is None else open_library(level)
    except (OSError, AttributeError) as problem:
        warn_once(f"cannot load the compiled kernels: {problem}; {FALLBACK}")
        return None


def open_library(level: str) -> ctypes.CDLL:
    """Open the library of one instruction set and declare its functions."""
    found = ctypes.CDLL(str(FOLDER / f"{level}.so"))
    declare(found)
    return found


def raise_failure(code: int, function: Any, arguments: Any) -> int:
    """Raise the error that a kernel returned (errcheck of ctypes)."""
    if code == OUT_OF_RANGE:
        raise IndexError(f"index out of range in {function.__name__}")
    if code:
        raise MemoryError(f"out of memory in {function.__name__}: use a smaller batch or shorter texts")
    return code


def supports(weight: Tensor) -> bool:
    """Return whether the kernels compute with this weight."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and library() is not None


# --- weights in the layout of the kernels


def pad_rows(x: Tensor) -> Tensor:
    """Fill the first dimension with 0 up to a multiple of 16."""
    rest = -x.size(0) % PANEL_WIDTH
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, rest))


def panels(weight: Tensor) -> Tensor:
    """(out, in) -> (out / 16, in, 16): what a number of x is multiplied with stands together."""
    return place(pad_rows(weight).unflatten(0, (-1, PANEL_WIDTH)).transpose(1, 2))


def panels_int8(weight: Tensor) -> Tensor:
    """int8 (out, in) -> uint8 (out / 16, in / 4, 16, 4), w + 128: four inputs of sixteen columns are 64 bytes."""
    shifted = F.pad(weight, (0, -weight.size(1) % 4)).view(torch.uint8) ^ 128
    return (pad_rows(shifted).unflatten(0, (-1, PANEL_WIDTH)).unflatten(2, (-1, 4)).transpose(1, 2)).contiguous()


def weights_int8(panels: Tensor, d_out: int, d_in: int) -> Tensor:
    """Undo `panels_int8`: int8 (out, in)."""
    return (panels.transpose(1, 2).flatten(2).flatten(0, 1)[:d_out, :d_in] ^ 128).view(torch.int8)


def panel_scales(scale: Tensor) -> Tensor:
    """(out, groups) -> (out / 16, groups, 16): the scales of a panel, in the order in which it is read."""
    return pad_rows(scale).unflatten(0, (-1, PANEL_WIDTH)).transpose(1, 2).contiguous()


def weight_scales(scales: Tensor, d_out: int) -> Tensor:
    """Undo `panel_scales`: (out, groups)."""
    return scales.transpose(1, 2).flatten(0, 1)[:d_out]


def panels_int4(weight: Tensor) -> Tensor:
    """uint8 (out, in), w + 8 in 0 .. 15 -> uint8 (out / 16, in / 8, 16, 4): the first four of eight inputs in the low half-bytes."""
    both = pad_rows(weight).unflatten(0, (-1, PANEL_WIDTH)).unflatten(2, (-1, 2, 4))  # (out / 16, 16, in / 8, 2, 4)
    return (both[:, :, :, 0] | both[:, :, :, 1] << 4).transpose(1, 2).contiguous()


def weights_int4(panels: Tensor, d_out: int) -> Tensor:
    """Undo `panels_int4`: uint8 (out, in), w + 8."""
    both = torch.stack([panels & 15, panels >> 4], 3)  # (out / 16, in / 8, 16, 2, 4)
    return both.transpose(1, 2).flatten(2).flatten(0, 1)[:d_out]


# --- the structures of the kernels; each holds addresses, so whoever makes one keeps the tensors


class LinearStruct(ctypes.Structure):
    _fields_ = [("panels", POINTER), ("scales", POINTER), ("bias", POINTER), ("inputs", WHOLE), ("outputs", WHOLE),
                ("type", WHOLE), ("group", WHOLE)]  # fmt: skip


class NormStruct(ctypes.Structure):
    _fields_ = [("weight", POINTER), ("bias", POINTER), ("eps", REAL), ("centred", FLAG)]


class ResidualStruct(ctypes.Structure):
    _fields_ = [("before", NormStruct), ("after", NormStruct), ("first", LinearStruct), ("last", LinearStruct)]


class BlockStruct(ctypes.Structure):
    _fields_ = [("attention", ResidualStruct), ("cross", ResidualStruct), ("feedforward", ResidualStruct), ("scale", REAL),
                ("window", WHOLE), ("n_global", WHOLE), ("gated", FLAG), ("parallel", FLAG)]  # fmt: skip


class StackStruct(ctypes.Structure):
    _fields_ = [("blocks", POINTER), *((name, WHOLE) for name in ("layers", "width", "heads", "key_heads", "head_width",
                "activation")), ("norm", NormStruct)]  # fmt: skip


class Pass(ctypes.Structure):
    _fields_ = [("x", POINTER), ("rows", WHOLE), ("tokens", WHOLE), ("past", WHOLE), ("threads", WHOLE), ("cache", POINTER),
                ("slots", WHOLE), ("capacity", WHOLE), ("slot", POINTER), ("real", POINTER), ("positions", POINTER),
                ("memory", POINTER), ("sentences", WHOLE), ("source", WHOLE), ("source_real", POINTER), ("cosine", POINTER),
                ("sine", POINTER), ("rotation_row", WHOLE), ("interleaved", FLAG), ("bias", POINTER), ("bias_row", WHOLE),
                ("spans", POINTER), ("n_spans", WHOLE), ("causal", FLAG)]  # fmt: skip


class Heads(ctypes.Structure):
    """(B, H, T, D), the numbers of a token side by side: the address and the first three strides."""

    _fields_ = [("at", POINTER), ("row", WHOLE), ("head", WHOLE), ("token", WHOLE)]


class AttentionStruct(ctypes.Structure):
    _fields_ = [*((name, Heads) for name in ("query", "key", "value", "out")), ("sums", POINTER), ("spans", POINTER),
                *((name, WHOLE) for name in ("n", "tokens", "heads", "key_heads", "width")), ("scale", REAL), ("causal", FLAG),
                ("length", WHOLE), ("bias", POINTER), ("bias_row", WHOLE),
                *((name, Heads) for name in ("dout", "dquery", "dkey", "dvalue"))]  # fmt: skip


class ScanStruct(ctypes.Structure):
    _fields_ = [*((name, POINTER) for name in ("u", "step", "decay", "enter", "leave", "first", "y", "last", "marks")),
                *((name, WHOLE) for name in ("rows", "tokens", "width", "states")),
                *((name, POINTER) for name in ("dy", "dlast", "du", "dstep", "ddecay", "denter", "dleave", "dfirst"))]  # fmt: skip


class Word2VecStruct(ctypes.Structure):
    _fields_ = [("ids", POINTER), ("firsts", POINTER), ("ends", POINTER), ("sentences", WHOLE), ("place", WHOLE),
                ("input", POINTER), ("output", POINTER), ("rows", WHOLE), ("width", WHOLE), ("stride", WHOLE),
                ("keep", POINTER), ("coins", POINTER), ("others", POINTER), ("words", WHOLE), ("negative", WHOLE),
                ("window", WHOLE), ("starts", POINTER), ("nodes", POINTER), ("labels", POINTER), ("mean", FLAG),
                ("seed", ctypes.c_uint64), ("rate", ctypes.c_double), ("slope", ctypes.c_double), ("workers", WHOLE),
                ("loss", ctypes.c_double), ("count", WHOLE)]  # fmt: skip


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "Linear": LinearStruct, "Norm": NormStruct, "Residual": ResidualStruct, "Block": BlockStruct, "Stack": StackStruct, "Pass": Pass,
    "Heads": Heads, "Attention": AttentionStruct, "Scan": ScanStruct, "Work": Word2VecStruct,
}  # fmt: skip
"""Names in C++."""
ARGUMENTS: dict[str, list[Any]] = {
    "run_stack": [POINTER, POINTER],
    "linear": [POINTER, POINTER, WHOLE, POINTER, WHOLE],
    "weight_rows": [POINTER, POINTER, WHOLE, POINTER, WHOLE],
    "log_softmax": [POINTER, WHOLE, WHOLE, WHOLE],
    "attend": [POINTER],
    "attend_back": [POINTER],
    "gelu_tanh": [POINTER, POINTER, WHOLE],
    "gelu_tanh_back": [POINTER, POINTER, POINTER, WHOLE],
    "scan": [POINTER],
    "scan_back": [POINTER],
    "word2vec": [POINTER],
}
WITHOUT_RESULT = {"log_softmax", "gelu_tanh", "gelu_tanh_back", "word2vec"}
"""Functions that cannot fail; the others return 0 or the code of an error."""


def declare(found: ctypes.CDLL) -> None:
    """Declare the functions; raise OSError if a structure has another size in C++: its fields would be read from wrong addresses."""
    for name, structure in STRUCTURES.items():
        size = getattr(found, f"sizeof_{name}")
        size.restype = WHOLE
        if size() != ctypes.sizeof(structure):
            raise OSError(
                f"{name} has {size()} bytes in C++ and {ctypes.sizeof(structure)} in Python: install the package again"
            )
    for name, arguments in ARGUMENTS.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None if name in WITHOUT_RESULT else ctypes.c_int
        if name not in WITHOUT_RESULT:
            function.errcheck = raise_failure


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
