"""Small training runs of five kinds as processes, for faults.py: start, monitor, stop, and compare their results.

transformer   the demo: a translator, with dropout, averaged weights, evaluations by BLEU, several epochs
workers       the same by two workers, each with the whole network
sharded       the same by two workers, each with a shard of weights and optimiser state, and a file of its own in a checkpoint
recurrent     an LSTM language model whose state is carried from each window to the next
word2vec      word vectors by one thread
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkv.convert.manifest import MARKER

NAP = 0.001


@dataclass(frozen=True)
class Kind:
    """A shipped recipe, reduced."""

    recipe: str
    settings: dict[str, object]
    evaluate: int = 0
    """Updates between evaluations; 0 = none."""
    save: int = 3
    """Lines of the log between checkpoints."""
    workers: int = 1

    def command(self, folder: Path) -> list[str]:
        changes = [part for key, value in self.settings.items() for part in ("--set", f"{key}={value}")]
        processes = ["--threads", "1"] if self.workers == 1 else ["--workers", str(self.workers)]
        return [sys.executable, "-m", "qkv", "train", self.recipe, "--out", str(folder), *processes, *changes]


DEMO: dict[str, object] = {
    "model.d_model": 64, "model.n_layers": 1, "model.d_ff": 128, "model.dropout": 0.1, "data.vocab_size": 300,
    "data.train": "[{ grammar = 400 }]", "data.valid": "{ grammar = 12 }", "data.test": "{ grammar = 4 }",
    "data.batch_tokens": 600, "data.pool": 150, "train.steps": 120, "train.evaluate_every": 20, "train.save_every": 8,
    "train.warmup": 20, "train.ema": 0.9, "train.keep": 2,
}  # fmt: skip
KINDS = {
    "transformer": Kind("demo", DEMO, evaluate=20, save=8),
    "workers": Kind("demo", {**DEMO, "train.steps": 60}, evaluate=20, save=8, workers=2),
    "sharded": Kind("demo", {**DEMO, "train.steps": 60, "train.sharding": "full"}, evaluate=20, save=8, workers=2),
    "recurrent": Kind("shakespeare-lstm", {
        "model.d_model": 64, "model.n_layers": 1, "data.train": "[{ grammar = 2500 }]", "data.valid": "{ grammar = 20 }",
        "data.test": "{ grammar = 10 }", "data.batch_tokens": 512, "data.max_length": 64, "train.time_budget": 1000,
        "train.schedule": "constant", "train.steps": 160, "train.evaluate_every": 20, "train.save_every": 8,
        "train.warmup": 10, "train.keep": 2,
    }, evaluate=20, save=8),
    "word2vec": Kind("word2vec", {
        "data.train": "[{ grammar = 25000 }]", "vectors.epochs": 30, "vectors.width": 100, "vectors.workers": 1,
        "vectors.keep": 2,
    }),
}  # fmt: skip


class Process:
    """`qkv train` in a folder; killed at the end of the block if it still runs."""

    def __init__(self, kind: Kind, folder: Path, changes: dict[str, object] | None = None):
        self.kind = replace(kind, settings={**kind.settings, **(changes or {})})
        self.folder = folder

    def __enter__(self) -> Process:
        self.begin, self.before = stored(self.folder), mark(self.folder)
        self.left = half_written(self.folder)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            self.kind.command(self.folder), stdout=subprocess.DEVNULL, stderr=self.errors, env=environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)
        self.errors.close()

    def until(self, condition: Callable[[], object], seconds: float = float("inf")) -> bool:
        """Wait for a condition, at most `seconds`; return False if the process ends first."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            if condition() or time.monotonic() > end:
                return True
            time.sleep(NAP)
        return False

    def has_begun(self) -> bool:
        """Whether the log of the previous attempt was cut to the last checkpoint."""
        return mark(self.folder) not in (None, self.before)

    def trains(self) -> bool:
        """Wait until it begins."""
        return self.until(self.has_begun)

    def writes(self, name: str) -> bool:
        """Whether this process is writing a folder of this name."""
        found = half_written(self.folder)
        return any(path.startswith(f".{name}") and self.left.get(path) != when for path, when in found.items())

    def processor_time(self) -> float:
        """CPU seconds that the process and its workers have used (Linux)."""
        used = [status(pid)[11:13] for pid in (self.process.pid, *self.workers())]
        return sum(int(ticks) for one in used for ticks in one) / os.sysconf("SC_CLK_TCK")

    def workers(self) -> list[int]:
        """The processes that it has started, by rank (Linux)."""
        try:
            return [
                int(p) for p in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            ]
        except OSError:
            return []

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def end(self, number: int) -> int:
        """Send a signal; return the exit code when the workers have ended too."""
        workers = self.workers()
        self.process.send_signal(number)
        code = self.process.wait()
        while any(status(pid)[:1] not in ([], ["Z"]) for pid in workers):
            time.sleep(NAP)
        return code

    def finish(self) -> str:
        """Wait for the end; return how it failed, or an empty string."""
        code = self.process.wait()
        return "" if code == 0 else f"exit code {code}: {self.said()[-400:]}"


def train(kind: Kind, folder: Path, changes: dict[str, object] | None = None) -> str:
    """Train to the end; return how it failed, or an empty string."""
    with Process(kind, folder, changes) as p:
        return p.finish()


def status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


# --- the folder of a run


def mark(folder: Path) -> tuple[int, int] | None:
    """A value that changes whenever the log changes."""
    try:
        found = (folder / "log.jsonl").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def logged(folder: Path) -> int:
    """Lines of the log."""
    log = folder / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def stored(folder: Path) -> int:
    """The update of the newest checkpoint."""
    return max((int(p.name.partition("-")[2]) for p in checkpoints(folder)), default=0)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("checkpoint-*") if path.suffix != ".damaged")


def half_written(folder: Path) -> dict[str, int]:
    """Folders that do not have their final name yet, and when they were created."""
    found = {}
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name.endswith(".partial"):
            try:
                found[name] = (folder / name).stat().st_ctime_ns
            except FileNotFoundError:  # it has its name now
                continue
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on where the run was stopped; times are left out."""
    last = checkpoints(folder)[-1]
    files = [folder / "log.jsonl", *(path for path in (folder / "best").iterdir() if path.suffix == ".safetensors")]
    files += [path for name in ("tokenizer.json", "vocabulary.json") if (path := folder / name).exists()]
    files += [path for path in last.iterdir() if path.name not in (MARKER, "training.json")]
    found = {str(path.relative_to(folder)): shards(path) or path.read_bytes() for path in files}
    numbers = json.loads((last / "training.json").read_text())
    results = json.loads((folder / "results.json").read_text())
    scores = {key: results[key] for key in ("test", "losses") if key in results}
    return {**found, "progress": encoded(untimed(numbers)), "scores": encoded(scores)}


def shards(path: Path) -> bytes:
    """The tensors of a worker's shards and their positions, by name; empty for other files.

    The header of such a file has two entries besides the tensors, in any order.
    """
    if not path.name.startswith("shard-"):
        return b""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    places = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
    found = {name: [entry, places[name]] for name, entry in header.items()}
    return encoded(found) + data[start:]


def untimed(numbers: dict[str, Any]) -> dict[str, Any]:
    """Without the times: of training, and of the last evaluation (its third number, in minutes)."""
    numbers = {**numbers, "progress": dict(numbers.get("progress", {}))}
    numbers.pop("seconds", None)
    numbers["progress"].pop("seconds", None)
    numbers["progress"]["evaluated"] = numbers["progress"].get("evaluated", [])[:2]
    return numbers


def encoded(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
