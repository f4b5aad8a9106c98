"""Watch: the log of a run in training, as it grows."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

from qkv.errors import FileError

LOG = "log.jsonl"
MOST = 1_000_000
"""Lines that are kept."""


class Watch:
    """Reads what was added since it last looked. A run that was resumed may have cut its log: then all is read again."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise FileError(f"{folder} is no run's folder: --run takes what `qkv train` writes to")
        self.folder, self.name = folder, folder.resolve().name
        self.lines: list[dict[str, Any]] = []
        self.offset = 0
        self.lock = threading.Lock()

    def read(self) -> None:
        """Whole lines only; one that is no JSON is left out."""
        path = self.folder / LOG
        size = path.stat().st_size if path.is_file() else 0
        if size < self.offset:
            self.lines, self.offset = [], 0
        if size == self.offset:
            return
        with open(path, "rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and isinstance(found.get("step"), int) and len(self.lines) < MOST:
                self.lines.append({key: finite(value) for key, value in found.items()})

    def since(self, step: int, points: int) -> dict[str, Any]:
        """Lines after an update, thinned to about so many; those with a look at the held-out set are all kept."""
        with self.lock:
            self.read()
            new = [line for line in self.lines if line["step"] > step]
        every = max(1, -(-len(new) // points))
        kept = [
            line
            for number, line in enumerate(new, 1)
            if number % every == 0 or number == len(new) or any(key.startswith("valid_") for key in line)
        ]
        last = self.lines[-1]["step"] if self.lines else 0
        return {"run": self.name, "last": last, "lines": kept, "ended": (self.folder / "results.json").is_file()}


def finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
