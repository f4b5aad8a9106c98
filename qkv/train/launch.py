"""Workers on this machine: how many, and their start.

Threads inside each operation wait for each other thousands of times in an update, and on a machine with other busy processes each
of these waits lasts until the scheduler has run every thread. Workers split each batch and synchronize once per
update: one process per core with one thread each, for networks that are small. The process that the user has started is the
agent (agent.py): it holds the lock of the folder, forwards signals to the workers, and restarts them when one is lost.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from qkv.config import ModelConfig, Recipe
from qkv.device import cores, pick_device
from qkv.distributed import WorkerLost, launched_by_agent
from qkv.models.build import skeleton
from qkv.train import checkpoint
from qkv.train.loop import Ending
from qkv.train.outcome import RunOutcome, read_outcome
from qkv.train.report import Report

MOST_WEIGHTS = 100_000_000
"""Larger networks are held once: every worker has its own weights, gradients and optimiser state."""
LEAST_WORK = 2e12
"""Multiplications of a whole run, below which it is over before other workers have started."""
LEAST_TOKENS = 256
"""Tokens of a batch for each worker, below which its operations are too small to be worth the synchronization."""
RESTARTS = 3
"""Default limit of how often all workers of a run are restarted."""
JOB, OUTCOME = "job.json", "outcome.json"
"""Files between the agent and its workers: what to train, and how it ended."""


def worker_count(recipe: Recipe, folder: Path) -> int:
    """How many workers train this recipe: those of the run's last checkpoint, those that the recipe sets, or one per core
    where data parallelism pays. A function of the recipe and the machine, not of the clock: results do not depend on load."""
    if launched_by_agent():
        return 1  # torchrun has started the workers
    device, last = pick_device(recipe.train.device).type, checkpoint.newest(folder)
    if last is not None:
        before = checkpoint.workers_of(last)
        return before if device == "cpu" else max(1, min(before, torch.cuda.device_count()))
    if device != "cpu":
        return 1  # a GPU needs no second process
    return recipe.train.workers or (cores() if pays_off(recipe) else 1)


def pays_off(recipe: Recipe) -> bool:
    """Whether workers are faster than threads: neither too large for a copy each nor too small to be shared."""
    assert recipe.data is not None
    weights = sum(p.numel() for p in skeleton(with_classes(recipe.model)).parameters())
    tokens = recipe.data.batch_tokens * recipe.train.accumulate
    work = 3.0 * weights * tokens * recipe.train.steps
    return weights <= MOST_WEIGHTS and work >= LEAST_WORK and recipe.data.batch_tokens >= LEAST_TOKENS * cores()


def with_classes(c: ModelConfig) -> ModelConfig:
    """Return a configuration that can be built before the labels are known: two classes where none are set."""
    return c if c.head not in ("classes", "classes-words", "tags") or c.n_classes else c.changed(n_classes=2)


def launch(recipe: Recipe, folder: Path, workers: int, restarts: int, report: Report, changed_data: bool) -> RunOutcome:
    """Train a recipe in a folder with several workers on this machine, and wait until they have ended.

    An error that they cannot recover from is raised here, as if this process had trained.
    """
    from qkv.train.agent import run_workers  # torch's agent takes 0.2 s to import, and a single process needs none

    with tempfile.TemporaryDirectory(prefix="qkv-") as name:
        place = Path(name)
        job = {"recipe": recipe.model_dump_json(exclude_unset=True), "folder": str(folder), "changed_data": changed_data,
               "agent": os.getpid(), "quiet": report.console.quiet}  # fmt: skip
        (place / JOB).write_text(json.dumps(job))
        try:
            number = run_workers(["-m", "qkv.train.worker", name], workers, restarts, place, report.say)
        except WorkerLost as error:
            raise WorkerLost(f"{error}; run the same command again to continue from the last checkpoint") from None
        if number is None or (place / OUTCOME).exists():
            return read_outcome(place / OUTCOME, folder, recipe)
        last = checkpoint.newest(folder)
        progress = checkpoint.Progress() if last is None else checkpoint.read_progress(last)
        return RunOutcome(folder, recipe, progress, Ending(f"stopped immediately by {number.name}", number))


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
