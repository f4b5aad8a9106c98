"""Start workers on this machine: one process per core with one thread each, for networks that are small.

Threads inside each operation wait for each other thousands of times in an update, and on a machine that is also doing something
else each of those waits lasts until the scheduler has given every thread its turn. Workers split each batch and synchronize once per
update. The process that the user has started is rank 0: it writes, scores and answers signals; the others are children
that end with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from qkv.config import ModelConfig, Recipe
from qkv.device import pick_device
from qkv.distributed import WorkerLost, by_torchrun, process_group
from qkv.errors import QkvError
from qkv.models.build import skeleton
from qkv.train import checkpoint

MOST_WEIGHTS = 100_000_000
"""Larger networks are held once: every worker has its own weights, gradients and optimiser state."""
LEAST_WORK = 2e12
"""Multiplications of a whole run, below which it is over before other workers have started."""
LEAST_TOKENS = 256
"""Tokens of a batch for each worker, below which its operations are too small to be worth the synchronization."""
HOST = "127.0.0.1"
PATIENCE = 30.0
"""Seconds for a worker to end by itself when the run is over."""


def worker_count(recipe: Recipe, folder: Path) -> int:
    """How many workers train this recipe: those of the run's last checkpoint, those that the recipe asks for, or one per core
    where data parallelism pays. A function of the recipe and the machine, not of the clock: results do not depend on load."""
    if by_torchrun() or pick_device(recipe.train.device).type != "cpu":
        return 1  # torchrun has started the workers; a GPU needs no second process
    last = checkpoint.newest(folder)
    if last is not None:
        return checkpoint.workers_of(last)
    return recipe.train.workers or (cores() if pays_off(recipe) else 1)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


@contextmanager
def local_workers(count: int, recipe: Recipe, folder: Path) -> Iterator[None]:
    """Within it this process is rank 0 of `count` workers, which run the same recipe with one thread each."""
    if count == 1:
        with process_group():
            yield
        return
    offline_sockets()
    store = dist.TCPStore(HOST, 0, count, is_master=True, wait_for_workers=False)
    job = {
        "recipe": recipe.model_dump_json(exclude_unset=True),
        "folder": str(folder),
        "port": store.port,
        "world": count,
    }
    with ExitStack() as stack:
        children = [stack.enter_context(child({**job, "rank": rank})) for rank in range(1, count)]
        wait_for(children, store)
        stack.enter_context(one_thread())
        try:
            with process_group(store, 0, count):
                yield
        except WorkerLost as error:
            raise WorkerLost(f"{error}{reason(children)}") from None


def offline_sockets() -> None:
    """Use the loopback interface, which is available without a network."""
    name = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Child = tuple[subprocess.Popen[bytes], IO[bytes]]
"""A worker, and the file that has its messages."""


@contextmanager
def child(job: dict[str, object]) -> Iterator[Child]:
    """One more worker. It reads its job from a pipe, and ends when the pipe closes: it never outlives this process."""
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv.train.worker"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            yield process, messages
        finally:
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(children: list[Child], store: dist.Store) -> None:
    """Until all have started; QkvError if one cannot."""
    names = [f"worker {number}" for number in range(1, len(children) + 1)]
    while not store.check(names):
        if any(process.poll() is not None for process, _ in children):
            raise QkvError(
                f"a worker could not start{reason(children)}; train in a single process with --workers 1 and a new --out"
            )
        time.sleep(0.01)


def reason(children: list[Child]) -> str:
    """The last line that a worker which has failed has left."""
    for process, messages in children:
        if process.poll():
            messages.seek(0)
            lines = messages.read()[-2000:].decode(errors="replace").split("\n")
            said = next((line for line in reversed(lines) if line.strip()), "")
            return f" (exit code {process.returncode}{': ' if said else ''}{said.strip()})"
    return ""
