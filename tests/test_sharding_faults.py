"""Sharded checkpoints and faults: damaged, missing and half-written shards, killed workers, full disks, changed data, averages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import qkv
from qkv.convert.files import read_tensors
from qkv.convert.manifest import MARKER
from qkv.errors import FileError
from qkv.train import checkpoint
from qkv.train.average import average_run
from tests.sharded import WRITING, Start, divided, losses, newest, same_files, two_workers

SHARDS = [f"shard-0000{worker}-model-00001-of-00001.safetensors" for worker in (1, 2)]
RECIPE = divided(dropout=0.2, sharding="full", keep=3)


@pytest.fixture(scope="module")
def workers() -> Iterator[Start]:
    """Two processes that serve all tests but those in which they are killed."""
    with two_workers() as together:
        yield together


@pytest.fixture(scope="module")
def whole(workers: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six updates with checkpoints at 2, 4 and 6, that nothing happens to."""
    folder = tmp_path_factory.mktemp("sharded") / "run"
    assert [why for why, _ in workers(folder, RECIPE)] == ["done", "done"]
    return folder


@pytest.mark.parametrize("name", [*SHARDS, checkpoint.NUMBERS, MARKER])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_file_of_a_sharded_checkpoint_is_noticed(name: str, damage: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    path = newest(run) / name
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        os.truncate(path, path.stat().st_size - 20)
    else:
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
    said: list[str] = []
    checkpoint.set_aside_damaged_checkpoints(run, said.append)
    assert newest(run).name == "checkpoint-0000004", said
    (line,) = said
    assert name in line and "\n" not in line


def test_a_run_with_a_missing_shard_continues_from_the_checkpoint_before(
    workers: Start, whole: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (newest(run) / SHARDS[1]).unlink()
    workers(run, RECIPE)
    assert losses(run) == losses(whole)
    same_files(newest(run), newest(whole))


@pytest.mark.parametrize("event", WRITING[:3])
def test_a_worker_that_is_killed_while_a_checkpoint_is_written_loses_nothing(
    event: str, workers: Start, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with two_workers() as killed:
        said = [why for why, _ in killed(run, RECIPE, event)]
    victim = int(event == WRITING[0])
    assert said[victim] == "killed" and "another worker has ended" in said[1 - victim]
    assert newest(run).name == ("checkpoint-0000004" if event == WRITING[2] else "checkpoint-0000002")
    assert [checkpoint.damage(path) for path in checkpoint.all_of(run)].count("") == len(checkpoint.all_of(run))
    workers(run, RECIPE)
    assert losses(run) == losses(whole)
    same_files(newest(run), newest(whole))
    assert not list(run.glob(".checkpoint*"))


def test_a_disk_that_is_full_at_the_last_file_leaves_the_checkpoint_before(
    workers: Start, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for why, _ in workers(run, RECIPE, WRITING[3]):
        assert "cannot write" in why and "No space left on device" in why and "\n" not in why
    assert newest(run).name == "checkpoint-0000002" and not list(run.glob(".checkpoint*"))
    workers(run, RECIPE)
    assert losses(run) == losses(whole)


def test_changed_data_are_refused_by_all_workers(workers: Start, tmp_path: Path) -> None:
    text = [tmp_path / name for name in ("a.en", "a.de")]
    for path in text:
        path.write_text("one two three four\n" * 40)
    r = RECIPE.changed(data=RECIPE.data.changed(train=[{"files": [str(path) for path in text]}]))
    shorter = r.changed(train=r.train.changed(steps=3))
    assert [why for why, _ in workers(tmp_path / "run", shorter)] == ["done", "done"]
    text[0].write_text("one two three five\n" * 40)
    (first, _), (second, _) = workers(tmp_path / "run", r)
    assert "the training data have changed since the run began" in first and "\n" not in first
    assert "another worker has ended" in second


def test_a_worker_that_vanishes_in_an_evaluation_is_noticed(tmp_path: Path) -> None:
    """It does not answer, and its connections stay open."""
    with two_workers() as together:
        said = together(tmp_path / "run", RECIPE.changed(train=RECIPE.train.changed(idle_timeout=0.05)), "no answer")
    assert "another worker does not answer" in said[0][0] and "train.idle_timeout = 0.05 minutes" in said[0][0]


def test_a_checkpoint_for_which_memory_is_lacking_is_no_other_run_s(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.errors import explain
    from qkv.train import run as training
    from qkv.train.report import Report

    def fail(*_: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")

    run = Path(shutil.copytree(whole, tmp_path / "run"))
    monkeypatch.setattr(checkpoint, "read_shards", fail)
    with pytest.raises(RuntimeError) as caught:
        training.run(RECIPE, "recipe", run, Report(quiet=True))
    assert explain(caught.value).startswith("not enough memory")


def test_sharded_checkpoints_are_averaged(whole: Path, tmp_path: Path) -> None:
    """By a single process, to the mean of the whole weights."""
    chosen = average_run(whole, tmp_path / "mean", 3)
    assert [path.name for path in chosen] == [f"checkpoint-000000{step}" for step in (2, 4, 6)]
    parts = [checkpoint.read_state(path) for path in chosen]
    mean = read_tensors(tmp_path / "mean")
    for name, x in mean.items():
        torch.testing.assert_close(x, sum(p[f"weights.{name}"] for p in parts) / 3)
    assert {name: x.shape for name, x in mean.items()} == {n: x.shape for n, x in read_tensors(whole / "best").items()}
    assert len(qkv.load(tmp_path / "mean").translate(["a man sleeps ."])) == 1


def test_an_average_lacks_no_shard(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (newest(run) / SHARDS[0]).unlink()
    with pytest.raises(FileError, match=f"lacks {SHARDS[0]}"):
        average_run(run, tmp_path / "mean", 2)
