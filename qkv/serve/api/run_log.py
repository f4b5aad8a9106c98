"""Watch: the log of a run in training, as it grows."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

from qkv.errors import FileError

LOG = "log.jsonl"
MOST = 1_000_000
"""Lines that are kept."""
TAIL = 4096
"""Bytes before the place up to which the log was read, by which it is known again."""


class Watch:
    """Reads what was added since it last looked. A run that is resumed goes on from an earlier update: what its log said of
    later ones is forgotten, whether the run cut its log or only writes on behind it."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise FileError(f"{folder} is no run's folder: --run takes what `qkv train` writes to")
        self.folder, self.name = folder, folder.resolve().name
        self.lines: list[dict[str, Any]] = []
        self.offset, self.inode, self.tail = 0, 0, b""
        self.cuts = 0
        """How often lines were forgotten: whoever has seen another count asks for all of them again."""
        self.lock = threading.Lock()

    def read(self) -> None:
        """Whole lines only; one that is no JSON is left out."""
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
            self.forget(found["step"])
        if len(self.lines) < MOST:
            self.lines.append({key: finite(value) for key, value in found.items()})

    def forget(self, step: int) -> None:
        """What is known of this update and later ones."""
        self.lines = [line for line in self.lines if line["step"] < step]
        self.cuts += 1

    def restart(self) -> None:
        """This is another log than it was: it is read from its beginning."""
        self.cuts += bool(self.lines)
        self.lines, self.offset, self.tail = [], 0, b""

    def since(self, step: int, points: int) -> dict[str, Any]:
        """Lines after an update, thinned to about so many; those with a look at the held-out set are all kept."""
        with self.lock:
            self.read()
            new = [line for line in self.lines if line["step"] > step]
            last, cuts = self.lines[-1]["step"] if self.lines else 0, self.cuts
        every = max(1, -(-len(new) // points))
        kept = [
            line
            for number, line in enumerate(new, 1)
            if number % every == 0 or number == len(new) or any(key.startswith("valid_") for key in line)
        ]
        ended = (self.folder / "results.json").is_file()
        return {"run": self.name, "last": last, "cuts": cuts, "lines": kept, "ended": ended}


def finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
