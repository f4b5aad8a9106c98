"""Train several runs in parallel, one process with one thread each: finished runs are skipped, interrupted ones resume.

Each run is an ordinary run folder, trained by `python -m qkv train`. The output of run NAME is in logs/NAME.txt.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from qkv.config import Recipe, format_value, load_recipe
from qkv.config.vectors import VectorsRecipe, learns_vectors, load_vectors_recipe
from qkv.convert.detect import open_config
from qkv.convert.files import some
from qkv.device import cores, pick_device
from qkv.errors import FileError
from qkv.train import checkpoint
from qkv.train.extend import MAY_CHANGE, differences, old_recipe
from qkv.train.loop import catch_signals
from qkv.train.run import check_recipe
from qkv.train.training_log import read_last_line

POLL = 0.2
"""Seconds between two polls of the processes."""
PATIENCE = 60.0
"""Seconds for a run that was stopped to finish its update and write a checkpoint."""
AnyRecipe = Recipe | VectorsRecipe
RESCORED = {name for name in MAY_CHANGE if name.startswith(("data.", "decode."))} | {
    "train.keep", "train.save_every", "vectors.similarity", "vectors.analogies"
}  # fmt: skip
"""Fields that may change for a trained run: they affect neither its weights nor their selection. All others that `qkv train` allows
to change would compare runs that were trained in different ways."""


@dataclass(frozen=True)
class PlannedRun:
    """A run to train: a recipe with settings, and the folder that it is trained in."""

    name: str
    """Display name: "position=rotary, seed 1"."""
    folder: Path
    source: Path
    """The recipe file."""
    settings: tuple[str, ...]
    """As `--set` takes them."""
    recipe: AnyRecipe = field(repr=False)
    """The file with the settings, checked."""
    cost: float = 1.0
    """Estimated duration, relative to the other runs."""

    @property
    def log(self) -> Path:
        """The file of the messages of its process."""
        return self.folder.parent.parent / "logs" / f"{self.folder.name}.txt"

    def command(self) -> list[str]:
        """The command that trains it."""
        changes = [argument for setting in self.settings for argument in ("--set", setting)]
        place = ["--out", str(self.folder), "--threads", "1", "--workers", "1"]
        return [sys.executable, "-m", "qkv", "train", str(self.source), *place, *changes]


@dataclass(frozen=True)
class Outcome:
    """How the runs ended."""

    failed: dict[str, str]
    """Name of a run -> the last line of its messages."""
    signal: int = 0
    """The signal that stopped all of them; 0 = each has ended."""


@dataclass(eq=False)
class RunningRun:
    """A run in training, and how far it is."""

    plan: PlannedRun
    process: subprocess.Popen[bytes]
    started: float
    first_step: int
    line: dict[str, Any] = field(default_factory=dict)
    """The last line of its log."""

    def read(self) -> None:
        self.line = read_last_line(self.plan.folder) or self.line

    @property
    def step(self) -> int:
        return int(self.line.get("step", self.first_step))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def share(self) -> float:
        """The share of the whole run that is done, by updates, epochs or time."""
        recipe, epoch = self.plan.recipe, float(self.line.get("epoch", 0))
        if isinstance(recipe, VectorsRecipe):
            return epoch / recipe.vectors.epochs
        c = recipe.train
        timed = 0.0 if c.time_budget is None else self.seconds / (60 * c.time_budget)
        return min(1.0, max(self.step / c.steps, timed, 0.0 if c.epochs is None else epoch / c.epochs))


class RunsDisplay(Protocol):
    """Receives the progress of the runs."""

    def update(self, running: Sequence[RunningRun], waiting: Sequence[PlannedRun]) -> None: ...
    def end(self, run: RunningRun, error: str) -> None: ...
    def say(self, text: str) -> None: ...


# --- recipes


def load_any(source: Path, settings: Sequence[str] = ()) -> AnyRecipe:
    """Load a recipe of any task with settings; QkvError where it can never be trained."""
    if learns_vectors(source, list(settings)):
        return load_vectors_recipe(source, list(settings))
    recipe = load_recipe(source, list(settings), open_config)
    check_recipe(recipe)
    return recipe


def read_any(path: Path) -> AnyRecipe:
    """Read the recipe that a run's folder keeps."""
    return load_vectors_recipe(path) if learns_vectors(path) else load_recipe(path, None, open_config)


def default_jobs(recipe: AnyRecipe) -> int:
    """One run per core; on a GPU one at a time."""
    on_cpu = isinstance(recipe, VectorsRecipe) or pick_device(recipe.train.device).type == "cpu"
    return cores() if on_cpu else 1


def run_state(run: PlannedRun) -> Literal["new", "started", "finished"]:
    """Compare the folder of a run with its recipe; FileError where another recipe was trained in it."""
    folder, kept = run.folder, run.folder / "recipe.toml"
    if not kept.is_file() or checkpoint.newest(folder) is None and not (folder / "best").exists():
        return "new"
    changes = differences(old_recipe(folder, read_any), run.recipe)
    changes.pop("vectors.workers", None)  # the command of a run sets it
    refused = [f"{name} is {format_value(was)} there and {format_value(now)} here"
               for name, (was, now) in changes.items() if name not in RESCORED]  # fmt: skip
    if refused:
        raise FileError(
            f"{folder} holds a run of another recipe: {some(refused, 4)}; choose another folder with --out, or delete this one"
        )
    return "finished" if not changes and (folder / "results.json").is_file() else "started"


# --- processes


def train_runs(runs: Sequence[PlannedRun], jobs: int, display: RunsDisplay,
               command: Callable[[PlannedRun], list[str]] = PlannedRun.command) -> Outcome:  # fmt: skip
    """Train runs that are not finished, at most `jobs` at a time.

    A run that fails does not stop the others. The first SIGINT or SIGTERM stops all of them: each finishes its update and
    writes a checkpoint. The second one, or an error here, ends them immediately.
    """
    waiting = deque(runs)
    running: list[RunningRun] = []
    failed: dict[str, str] = {}
    with catch_signals() as signals:
        try:
            while waiting or running:
                if signals:
                    stop(running, signals[0], display)
                    return Outcome(failed, signals[0])
                while waiting and len(running) < jobs:
                    running.append(start(waiting.popleft(), command))
                time.sleep(POLL)
                for one in running:
                    one.read()
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    if error := failure(one):
                        failed[one.plan.name] = error
                    display.end(one, error)
                display.update(running, waiting)
        finally:
            for one in running:
                end(one.process)
    return Outcome(failed)


def start(plan: PlannedRun, command: Callable[[PlannedRun], list[str]]) -> RunningRun:
    """Start the process of a run. It has a session of its own, so Ctrl-C in a terminal reaches only this process, which
    forwards it once: a second signal would end the run without a checkpoint."""
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    step = int(read_last_line(plan.folder).get("step", 0))
    with open(plan.log, "wb") as messages:
        process = subprocess.Popen(command(plan), stdin=subprocess.DEVNULL, stdout=messages, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True)  # fmt: skip
    return RunningRun(plan, process, time.monotonic(), step)


def failure(run: RunningRun) -> str:
    """Return why the process of a run failed; empty if it did not."""
    if run.process.returncode == 0:
        return ""
    lines = [line for line in run.plan.log.read_text("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("error: ") if lines else ""
    return f"{last or 'no message'} (exit code {run.process.returncode}, {run.plan.log})"


def stop(running: Sequence[RunningRun], number: int, display: RunsDisplay) -> None:
    """Forward a signal, and wait until the checkpoints are written."""
    if running:
        display.say(
            f"stopping {len(running)} run{'s' if len(running) > 1 else ''} after a checkpoint; press Ctrl-C again to end immediately"
        )
    for one in running:
        with suppress(ProcessLookupError):
            one.process.send_signal(number)
    deadline = time.monotonic() + PATIENCE
    for one in running:
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(max(0.1, deadline - time.monotonic()))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process immediately, if it is still running."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
