"""Select which of the compiled kernels (lib/, one library per instruction set) this process uses. Nothing here imports torch."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "lib"
LEVELS = ("avx512", "avx2", "dotprod", "portable")
"""Instruction sets, the best first."""
CHOICE = "QKV_KERNELS"
"""Environment variable: an instruction set to use instead of the best, or "none" for torch alone."""
FALLBACK = "torch computes instead, which is slower (see docs/models.md, Kernels)"


@cache
def choose_level() -> str | None:
    """Return the best instruction set that this processor supports and for which a library was built, or the one that is chosen."""
    built = [level for level in LEVELS if (FOLDER / f"{level}.so").is_file()]
    chosen = os.environ.get(CHOICE, "")
    if chosen == "none":
        return None
    if "portable" not in built or not (FOLDER / "cpu.so").is_file():
        warn_once(f"the compiled kernels are missing (no C++ compiler at installation?); {FALLBACK}")
        return None
    best = best_level()
    usable = [level for level in built if LEVELS.index(level) >= LEVELS.index(best)]
    if chosen and chosen not in usable:
        warn_once(f"{CHOICE}={chosen} is not one of {', '.join(usable)}, none; using {usable[0]}")
    return chosen if chosen in usable else usable[0]


def best_level() -> str:
    """Return the best instruction set of the processor."""
    question = ctypes.CDLL(str(FOLDER / "cpu.so")).best_level
    question.restype = ctypes.c_char_p
    return str(question().decode())


def describe() -> str:
    """Return which kernels compute, for `qkv version`."""
    return choose_level() or "torch only"


def warn_once(message: str) -> None:
    """Print a warning on stderr, once per user and message: the marker is a file in the cache folder."""
    text = f"warning: {message}\n"
    with suppress(OSError, RuntimeError):  # no home, or none that can be written to: print it each time
        marker = Path.home() / ".cache" / "qkv" / "kernels-warnings.txt"
        before = marker.read_text() if marker.is_file() else ""
        if text in before:
            return
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text((before + text)[-10_000:])
    print(text, end="", file=sys.stderr)
