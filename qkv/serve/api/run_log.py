"""The log of a training run, read as it grows."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from qkv.errors import FileError
from qkv.look.result import plain

LOG = "log.jsonl"
MOST = 1_000_000
"""Most lines to keep."""
TAIL = 4096
"""Bytes before the current offset that are compared to recognise a log that was replaced."""


class RunLog:
    """Reads the lines that were added since the last call. A resumed run continues from an earlier step: lines of later steps are
    discarded, whether the run truncates its log or appends to it."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise FileError(f"{folder} is not a folder: --run takes the folder of a run, which `qkv train` writes")
        self.folder, self.name = folder, folder.resolve().name
        self.lines: list[dict[str, Any]] = []
        self.offset, self.inode, self.tail = 0, 0, b""
        self.cuts = 0
        """How often lines were discarded: a client that knows another count must fetch all lines again."""
        self.lock = threading.Lock()

    def read(self) -> None:
        """Read complete lines; those that are not JSON are left out."""
        try:
            with open(self.folder / LOG, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self.offset - len(self.tail))
                text = file.read()
                if not text.startswith(self.tail) or (self.offset and inode != self.inode):
                    self.restart()
                    file.seek(0)
                    text = file.read()
        except FileNotFoundError:
            self.restart()
            return
        self.inode, new = inode, text[len(self.tail) :]
        whole = new[: new.rfind(b"\n") + 1]
        self.offset += len(whole)
        self.tail = (self.tail + whole)[-TAIL:]
        for line in whole.splitlines():
            self.add(line)

    def add(self, line: bytes) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            return
        if not isinstance(found, dict) or not isinstance(found.get("step"), int):
            return
        if self.lines and found["step"] <= self.lines[-1]["step"]:
            self.discard(found["step"])
        if len(self.lines) < MOST:
            self.lines.append(plain(found))  # JSON has neither NaN nor infinity

    def discard(self, step: int) -> None:
        """Remove the lines of this step and later ones."""
        self.lines = [line for line in self.lines if line["step"] < step]
        self.cuts += 1

    def restart(self) -> None:
        """Start over: the log was replaced."""
        self.cuts += bool(self.lines)
        self.lines, self.offset, self.tail = [], 0, b""

    def since(self, step: int, points: int) -> dict[str, Any]:
        """Return the lines after a step, reduced to about `points`; those with validation results are all kept."""
        with self.lock:
            self.read()
            new = [line for line in self.lines if line["step"] > step]
            last, cuts = self.lines[-1]["step"] if self.lines else 0, self.cuts
        every = max(1, -(-len(new) // points))
        has_results = lambda line: any(key.startswith("valid_") for key in line)  # noqa: E731
        kept = [line for n, line in enumerate(new, 1) if n % every == 0 or n == len(new) or has_results(line)]
        ended = (self.folder / "results.json").is_file()
        return {"run": self.name, "last": last, "cuts": cuts, "lines": kept, "ended": ended}
