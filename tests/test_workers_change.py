"""Each example is learned from exactly once in an epoch, although the number of workers changes within it."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from qkv.batch import Batch
from qkv.config import Recipe
from qkv.distributed import world_size
from qkv.train import loop, step
from qkv.train import run as training
from qkv.train.report import Report
from tests.test_train import recipe

Row = tuple[int, ...]


def rows_of(batch: Batch) -> list[Row]:
    """The source ids of every row, without padding."""
    assert batch.source is not None
    mask = torch.ones_like(batch.source, dtype=torch.bool) if batch.source_mask is None else batch.source_mask
    return [tuple(row[real].tolist()) for row, real in zip(batch.source, mask, strict=True)]


def learned_rows(rank: int, count: int, port: int, folder: Path, r: Recipe) -> list[Row]:
    """Train as one of `count` workers; return the rows whose loss this worker has added to the gradient."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), RANK=str(rank),
                      TORCHELASTIC_USE_AGENT_STORE="True")  # fmt: skip
    torch.set_num_threads(1)
    seen: list[Row] = []
    own_rows, update = step.own_rows, loop.step

    def record_own(batch: Batch, replica: int, replicas: int) -> tuple[Batch, float]:
        rows, weight = own_rows(batch, replica, replicas)
        seen.extend(rows_of(rows) if weight else [])
        return rows, weight

    def record_all(model: object, optimizer: object, batches: list[Batch], *rest: object) -> object:
        if world_size() == 1:
            seen.extend(row for batch in batches for row in rows_of(batch))
        return update(model, optimizer, batches, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "own_rows", record_own)
        patch.setattr(loop, "step", record_all)
        training.run(r, "recipe", folder, Report(quiet=True))
    return seen


def test_two_workers_then_one_then_three_learn_from_every_example_once(tmp_path: Path) -> None:
    """Batches have 1 to 5 rows: some workers have one more, or none."""
    r = recipe(pairs=61, epochs=1.0, steps=1000, evaluate_every=1000, save_every=1000)
    r = r.changed(data=r.data.changed(batch_tokens=60))
    task = training.open_run(r, tmp_path / "read", Report(quiet=True)).task
    expected, sizes = Counter[Row](), set[int]()
    for examples in task.batches:
        if task.batches.position.epoch:
            break
        batch = loop.collate(task, examples, 0)
        expected.update(rows_of(batch))
        sizes.add(batch.size)
    assert (
        expected.total() == 61 and {size % 2 for size in sizes} == {0, 1} and {size % 3 for size in sizes} == {0, 1, 2}
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["qkv.train.run"])
    found = Counter[Row]()
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        for count, steps in ((2, 5), (1, 11), (3, 1000)):
            part = r.changed(train=r.train.changed(steps=steps))
            store = dist.TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
            jobs = [pool.submit(learned_rows, rank, count, store.port, tmp_path / "run", part) for rank in range(count)]
            rows = [job.result() for job in jobs]
            assert all(rows)
            found.update(row for own in rows for row in own)
    assert found == expected
