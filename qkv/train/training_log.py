"""The log of a run: log.jsonl with a line per update, and the same numbers as a TensorBoard event file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from qkv.convert.files import write_text
from qkv.train.tensorboard import Events

BLOCK_SECONDS = 10.0
"""Seconds that lines are buffered before they are written to the event file; those of an evaluation are written immediately."""
NAME = "log.jsonl"
LONGEST_LINE = 10_000
"""Bytes at the end of a log in which its last line is searched."""


class TrainingLog:
    """Append lines to the log of a run in `folder`, which trained for `seconds` before.

    The event file is rewritten from the log, so a run that was killed and resumed has every update in it once. The log
    has no times: those of earlier updates are spread evenly over `seconds`.
    """

    def __init__(self, folder: Path, seconds: float = 0.0):
        self.events = Events(folder / "tensorboard", time.time() - seconds)
        past, start = read_log(folder), time.time() - seconds
        self.pending = [(start + seconds * number / len(past), line) for number, line in enumerate(past, 1)]
        self.file = open(folder / NAME, "a")  # noqa: SIM115 - closed by __exit__
        self.write_events()

    def add(self, line: dict[str, Any], evaluated: bool = False) -> None:
        """Write the numbers of one update."""
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        self.pending.append((time.time(), line))
        if evaluated or self.pending[-1][0] - self.pending[0][0] >= BLOCK_SECONDS:
            self.write_events()

    def write_events(self) -> None:
        """Write the pending lines to the event file."""
        self.events.write(self.pending)
        self.pending = []

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.write_events()
        self.events.close()
        self.file.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's log; none where it has no log."""
    path = folder / NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_last_line(folder: Path) -> dict[str, Any]:
    """Read the last complete line of a log that may be growing; {} where there is none yet."""
    try:
        with open(folder / NAME, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LONGEST_LINE))
            lines = file.read().split(b"\n")[:-1]  # after the last line end: what is being written
        return dict(json.loads(lines[-1]))
    except (OSError, ValueError, IndexError):
        return {}


def cut_log(folder: Path, step: int) -> None:
    """Remove the lines after update `step`: those updates will be computed and logged again."""
    path = folder / NAME
    if not path.exists():
        return
    kept = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            break  # the line that was being written when the run died
    write_text(path, "".join(line + "\n" for line in kept))
