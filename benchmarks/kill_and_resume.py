"""Kill a training run at many moments, resume it each time, and compare with the run that was never stopped.

    python benchmarks/kill_and_resume.py                20 kills and all other cases, a few minutes on one core
    python benchmarks/kill_and_resume.py --quick        3 kills

The runs are real processes (`qkv train demo`, made short), ended with SIGKILL: while the vocabulary is learned, while the
held-out set is translated, while a checkpoint or the best model is written, between two updates, twice before the first
new checkpoint, right behind an epoch. Compared are the bytes of log.jsonl, of the best model and of the last checkpoint.
Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

SETTINGS = {
    "model.d_model": 64, "model.n_layers": 1, "model.d_ff": 128, "model.dropout": 0.1, "data.vocab_size": 300,
    "data.train": "[{ grammar = 400 }]", "data.valid": "{ grammar = 12 }", "data.test": "{ grammar = 4 }",
    "data.batch_tokens": 600, "data.pool": 150, "train.steps": 120, "train.evaluate_every": 20, "train.save_every": 8,
    "train.warmup": 20, "train.ema": 0.9,
}  # fmt: skip
"""The demo recipe, small: several pools per epoch, several epochs, dropout and averaged weights."""
EVALUATE, SAVE = int(str(SETTINGS["train.evaluate_every"])), int(str(SETTINGS["train.save_every"]))
MOMENTS = ["vocabulary", "saving", "early", "early", "random", "evaluating", "saving", "best", "random", "saving"]
"""Twice these make 20 kills; "early" is before the first new checkpoint, so that the next one resumes from the same."""
NAP = 0.0003


@dataclass
class Process:
    """`qkv train` in a folder."""

    folder: Path
    changes: dict[str, object] = field(default_factory=dict)

    def __enter__(self) -> Process:
        settings = [part for key, value in (SETTINGS | self.changes).items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "qkv", "train", "demo", "--out", str(self.folder), "--threads", "1", *settings]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self.begin, self.before = stored(self.folder), mark(self.folder)
        self.left = half_written(self.folder, "")
        _, self.errors = tempfile.mkstemp(dir=self.folder.parent)
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def until(self, condition: Callable[[], object]) -> bool:
        """Wait; False when the process ended before."""
        while self.process.poll() is None:
            if condition():
                return True
            time.sleep(NAP)
        return False

    def trains(self) -> bool:
        """Wait until the log of the attempt before is cut to what was stored."""
        return self.until(lambda: mark(self.folder) not in (None, self.before))

    def writes(self, name: str) -> bool:
        """Is a folder of that name half written, by this process?"""
        return not half_written(self.folder, name).items() <= self.left.items()

    def said(self) -> str:
        return Path(self.errors).read_text()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait()

    def finish(self) -> None:
        if self.process.wait() != 0:
            raise SystemExit(f"qkv train failed: {self.said()}")


# --- looking at a run's folder


def mark(folder: Path) -> tuple[int, int] | None:
    """Changes when anything happens to the log."""
    log = folder / "log.jsonl"
    return (log.stat().st_ino, log.stat().st_ctime_ns) if log.exists() else None


def logged(folder: Path) -> int:
    """Updates in the log."""
    log = folder / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def stored(folder: Path) -> int:
    """The update of the newest checkpoint."""
    return max((int(p.name.partition("-")[2]) for p in folder.glob("checkpoint-*")), default=0)


def half_written(folder: Path, name: str) -> dict[Path, int]:
    """Folders that have no name yet, and when they were made."""
    found = {}
    for path in folder.glob(f".{name}*.partial"):
        try:
            found[path] = path.stat().st_ctime_ns
        except FileNotFoundError:  # it has its name now
            continue
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """All that must not depend on where the run was stopped; of the numbers, the seconds do."""
    last = folder / f"checkpoint-{stored(folder):07d}"
    numbers = json.loads((last / "training.json").read_text())
    numbers["progress"].pop("seconds")
    numbers["progress"]["evaluated"].pop()  # when it was, in minutes
    paths = {"log": folder / "log.jsonl", "best model": folder / "best/model.safetensors"}
    paths |= {"last checkpoint": last / "training.safetensors", "vocabulary": folder / "tokenizer.json"}
    found = {name: path.read_bytes() for name, path in paths.items()}
    tested = json.loads((folder / "results.json").read_text())["test"]
    return {**found, "progress": json.dumps([last.name, numbers]).encode(), "test scores": json.dumps(tested).encode()}


class Comparison:
    """The run that was never stopped, and what of it differs elsewhere."""

    def __init__(self, folder: Path):
        with Process(folder) as p:
            p.finish()
        self.whole, self.differs, self.runs = contents(folder), False, 0
        self.epochs = [json.loads(line)["epoch"] for line in self.whole["log"].splitlines()]

    def same(self, folder: Path, what: str) -> None:
        found = contents(folder)
        wrong = [name for name in self.whole if found[name] != self.whole[name]]
        self.differs |= bool(wrong)
        self.runs += 1
        print(f"  {what}: {'DIFFERS in ' + ', '.join(wrong) if wrong else 'identical'}", flush=True)

    def edges(self) -> list[int]:
        """The last updates of the epochs."""
        return [step for step, (a, b) in enumerate(pairwise(self.epochs), 1) if a < b]


# --- killing


def wait_for(moment: str, p: Process, r: random.Random) -> bool:
    """Wait for a moment; False when the process ended before."""
    folder = p.folder
    if moment == "vocabulary":
        return p.until(lambda: "Training the tokenizer" in p.said())
    if not p.trains():
        return False
    if moment == "evaluating":
        came = p.until(lambda: logged(folder) % EVALUATE == EVALUATE - 1)
        time.sleep(r.uniform(0.0, 0.1))
        return came
    if moment == "saving":
        goal = p.begin + SAVE * r.randrange(3)
        return p.until(lambda: stored(folder) >= goal) and p.until(lambda: p.writes("checkpoint"))
    if moment == "best":
        return p.until(lambda: p.writes("best"))
    goal = p.begin + 1 + r.randrange(SAVE - 1 if moment == "early" else 3 * SAVE)
    return p.until(lambda: logged(folder) >= goal)


def kill(moment: str, p: Process) -> str:
    """End it at once; what was cut off, as far as the folder shows."""
    p.end(signal.SIGKILL)
    for name in ("checkpoint", "best"):
        if p.writes(name):
            return f"while the {name} was written"
    if moment == "vocabulary" and not (p.folder / "tokenizer.json").exists():
        return "while the vocabulary was learned"
    if logged(p.folder) % EVALUATE == EVALUATE - 1:
        return "while the held-out set was translated"
    return "between two updates" if moment != "saving" else "just behind a checkpoint"


def killed(place: Path, whole: Comparison, kills: int, r: random.Random) -> int:
    """Kill and resume until there are enough kills, run after run; how many were during a save."""
    queue = [MOMENTS[i % len(MOMENTS)] for i in range(kills)] if kills > 3 else ["saving", "random", "evaluating"]
    number, during_save, run = 0, 0, 0
    while queue:
        run += 1
        folder = place / f"killed-{run}"
        ended = False
        while queue and not ended:
            moment = queue[0] if queue[0] != "vocabulary" or not stored(folder) else "random"
            with Process(folder) as p:
                ended = not wait_for(moment, p, r)
                if ended:
                    p.finish()
                    break
                was = kill(moment, p)
            queue.pop(0)
            number += 1
            during_save += "written" in was
            if moment == "saving" and "written" not in was and number < 2 * kills:
                queue.append("saving")  # too late: once more
            print(f"  kill {number:2}, after update {logged(folder):3}, stored {stored(folder):3}: {was}", flush=True)
        if not ended:
            with Process(folder) as p:
                p.finish()
        whole.same(folder, f"run {run}, killed and resumed")
    print(f"  {number} kills, {during_save} of them while something was written", flush=True)
    return during_save


# --- the other cases


def epoch_edge(place: Path, whole: Comparison) -> bool:
    """Stored at every update, killed when the last batch of an epoch is done; False when no kill came in time."""
    folder, hits = place / "edge", 0
    for edge in whole.edges():
        with Process(folder, {"train.save_every": 1}) as p:
            p.until(lambda edge=edge: (folder / f"checkpoint-{edge:07d}").exists())
            p.end(signal.SIGKILL)
        hits += stored(folder) == edge
        print(f"  epoch ends with update {edge}: killed, stored {stored(folder)}", flush=True)
        if hits == 2:
            break
    with Process(folder, {"train.save_every": 1}) as p:
        p.finish()
    whole.same(folder, f"resumed {hits} times right behind an epoch")
    return hits > 0


def asked_to_stop(place: Path, whole: Comparison, r: random.Random) -> bool:
    """SIGTERM and Ctrl-C: the update is finished and stored, the exit code is the shell's."""
    folder, well = place / "stopped", True
    for number in (signal.SIGTERM, signal.SIGINT):
        with Process(folder) as p:
            p.trains()
            p.until(lambda goal=stored(folder) + r.randrange(2, 40): logged(folder) >= goal)
            code = p.end(number)
        fine = code == 128 + number and stored(folder) == logged(folder) > 0
        print(f"  {number.name} after update {logged(folder)}: stored {stored(folder)}, exit code {code}", flush=True)
        well &= fine
    with Process(folder) as p:
        p.finish()
    whole.same(folder, "asked to stop and resumed")
    return well


def two_at_once(place: Path, whole: Comparison) -> bool:
    """A second process in the same folder is sent away, and the first does not notice."""
    folder = place / "two"
    with Process(folder) as first:
        first.until(lambda: (folder / "recipe.toml").exists())
        with Process(folder) as second:
            code = second.process.wait()
            said = second.said().strip()
        first.finish()
    print(f"  the second process: exit code {code}, {said}", flush=True)
    whole.same(folder, "the first process")
    return code == 2 and said.startswith("error: another process is training in") and "\n" not in said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="3 kills in one run, and nothing else")
    options = parser.parse_args()
    r, start = random.Random(options.seed), time.monotonic()
    if options.quick:
        SETTINGS["train.steps"] = 48
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        whole = Comparison(place / "whole")
        print(f"never stopped: {len(whole.epochs)} updates, {whole.epochs[-1] + 1} epochs", flush=True)
        saves = killed(place, whole, 3 if options.quick else options.kills, r)
        well = options.quick or saves >= min(5, options.kills // 4)
        if not options.quick:
            well &= epoch_edge(place, whole) & asked_to_stop(place, whole, r) & two_at_once(place, whole)
    result = "a run DIFFERS" if whole.differs else "a case went wrong" if not well else "all identical"
    print(f"{whole.runs} interrupted runs: {result} ({time.monotonic() - start:.0f} s)")
    sys.exit(int(whole.differs or not well))


if __name__ == "__main__":
    main()
