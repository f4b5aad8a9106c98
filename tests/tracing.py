"""Which files, functions and code lines of the package a unit of work crosses: a batch, a translated line, a request."""

from __future__ import annotations

import ast
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import qkv

ROOT = Path(qkv.__file__).parent
Function = tuple[str, str, int]
"""File, qualified name, first line."""


@dataclass(frozen=True)
class Crossing:
    """What every unit of work crosses."""

    functions: tuple[Function, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted({file for file, _, _ in self.functions}))

    @property
    def lines(self) -> int:
        return sum(code_lines(file, first) for file, _, first in self.functions)

    def __str__(self) -> str:
        found = [f"{Path(file).relative_to(ROOT)} {name}" for file, name, _ in self.functions]
        return "\n".join([f"{len(self.files)} files, {len(found)} functions, {self.lines} code lines", *found])


def calls(work: Callable[[], Any]) -> Counter[Function]:
    """How often each function of the package is called, in this thread and in those started meanwhile."""
    found: Counter[Function] = Counter()
    root = str(ROOT)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            found[code.co_filename, code.co_qualname, code.co_firstlineno] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return found


def crossed(few: Callable[[], Any], many: Callable[[], Any], more: int) -> Crossing:
    """The functions that `many`, which has `more` units of work more than `few`, calls at least as many times more."""
    before, after = calls(few), calls(many)
    own = (key for key in after if after[key] - before[key] >= more and "<" not in key[1].split(".")[-1])
    return Crossing(tuple(sorted(own)))


@cache
def functions(file: str) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
    """First line (of the first decorator) -> function."""
    nodes = [
        node
        for node in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {min([node.lineno, *(d.lineno for d in node.decorator_list)]): node for node in nodes}


def code_lines(file: str, first: int) -> int:
    """Lines of a function with code on them, its docstring left out."""
    node = functions(file).get(first)
    if node is None:
        return 0
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return 1 + len({inner.lineno for statement in body for inner in ast.walk(statement) if hasattr(inner, "lineno")})
