"""Two worker processes for the tests of sharded training, and recipes for them."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import HuggingFaceStorageWriter

from qkv.batch import Batch
from qkv.config import Recipe
from qkv.convert.files import read_headers, read_tensors
from qkv.errors import QkvError
from qkv.parts.state import State
from qkv.train import checkpoint, loop, shard_files
from qkv.train import run as training
from qkv.train.optimizer import local
from qkv.train.report import Report
from qkv.train.step import LossModule
from tests.test_train import recipe

Start = Callable[..., list[tuple[str, int]]]


@contextmanager
def two_workers() -> Iterator[Start]:
    """Two processes that train together, in one run after another. Each keeps its rank: torch caches which shard a process has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["qkv.train.run", "torch.distributed.fsdp"])
    with ProcessPoolExecutor(1, mp_context=context) as first, ProcessPoolExecutor(1, mp_context=context) as second:

        def together(folder: Path, r: Recipe, event: str = "") -> list[tuple[str, int]]:
            store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
            jobs = [
                pool.submit(worker, rank, store.port, folder, r, event) for rank, pool in enumerate((first, second))
            ]
            return [outcome(job) for job in jobs]

        yield together


def outcome(job: Future[tuple[str, int]]) -> tuple[str, int]:
    """What a worker returns, or that it was killed: then its process is gone for good."""
    try:
        return job.result()
    except BrokenProcessPool:
        return "killed", 0


def worker(rank: int, port: int, folder: Path, r: Recipe, event: str) -> tuple[str, int]:
    """Why training ended, and the bytes of weights and optimiser state that this worker has."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank),
                      TORCHELASTIC_USE_AGENT_STORE="True")  # fmt: skip
    torch.set_num_threads(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        if event == "memory" and rank == 1:
            patch.setattr(LossModule, "forward", small_memory(1))
        elif event == "no answer":
            if rank == 1:
                patch.setattr(loop, "isolate_random_state", lambda device: wait_for(folder / "given up"))
        elif event in WRITING:
            patch.setattr(*fault_while_writing(event, rank))
        elif event:
            patch.setattr(loop, "one_update", interrupted(event, rank))
        try:
            t = training.run(r, "recipe", folder, Report(quiet=True)).training
        except QkvError as error:
            (folder / "given up").touch()
            return str(error), 0
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    state = [x for values in t.optimizer.state.values() for x in values.values()]
    return "done", sum(local(x).nbytes for x in (*t.network.parameters(), *state))


def interrupted(event: str, rank: int) -> Callable[..., Any]:
    """An update at the third of which something happens to the second worker."""
    original = loop.one_update

    def one_update(t: checkpoint.Training, *rest: Any) -> Any:
        if rank == 1 and t.progress.step == 2:
            if event == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            if event == "full disk" and t.sharded and t.sharded.saving:
                t.sharded.saving.future.result()
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        return original(t, *rest)

    return one_update


WRITING = ("killed with its shard", "killed before the name", "killed behind the name", "full disk at the checksums")
"""What happens while checkpoint-0000004 is written: the first to the second worker, the others to the first one."""


def fault_while_writing(event: str, rank: int) -> tuple[Any, str, Any]:
    """A function that writes, and what it does instead: (where it is, its name, another function)."""
    place, name = (HuggingFaceStorageWriter, "write_data") if event == WRITING[0] else (shard_files, "take_place")
    if event == WRITING[3]:
        name = "seal"
    original = getattr(place, name)

    def fault(*arguments: Any) -> Any:
        where = str(arguments[0].path if event == WRITING[0] else arguments[0])
        if "0000004" not in where or (event == WRITING[0]) != (rank == 1):
            return original(*arguments)
        if event == WRITING[0]:
            Path(where, "shard-00002-model-00001-of-00001.safetensors").write_bytes(bytes(100))
        if event == WRITING[2]:
            original(*arguments)
        if event == WRITING[3]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.kill(os.getpid(), signal.SIGKILL)

    return place, name, fault


def wait_for(path: Path) -> Any:
    """Wait until another process has made a file."""
    while not path.exists():
        time.sleep(0.01)
    raise QkvError("no evaluation")


def small_memory(rows: int, error: Exception = torch.OutOfMemoryError("CUDA out of memory")) -> Callable[..., Any]:
    """A forward pass with memory for so many rows. It draws random numbers before it fails, as one with dropout does."""
    original = LossModule.forward

    def forward(self: LossModule, batch: Batch, state: State | None = None) -> Any:
        torch.rand(1)
        if batch.size > rows:
            raise error
        return original(self, batch, state)

    return forward


def divided(dropout: float = 0.0, **train: Any) -> Recipe:
    r = recipe(
        pairs=100, dropout=dropout, **{"steps": 6, "evaluate_every": 3, "save_every": 2, "learning_rate": 1e-3, **train}
    )
    return r.changed(model=r.model.changed(n_layers=2), data=r.data.changed(batch_tokens=100))


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def newest(folder: Path) -> Path:
    found = checkpoint.newest(folder)
    assert found is not None
    return found


def same_files(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    assert [name for name in names if not name.endswith(".safetensors")] == ["COMPLETE", "training.json"]  # no pickle
    for name in names[1:-1]:
        tensors = read_tensors(one / name)
        assert tensors.keys() == read_headers(other / name).keys()
        assert all(torch.equal(tensors[key], x) for key, x in read_tensors(other / name).items())
