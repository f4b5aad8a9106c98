"""The log of a run that is watched: it grows, it is cut, it is written anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from qkv.serve.api.run_log import TAIL, RunLog


def text(steps: range, loss: float) -> str:
    return "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step in steps)


def known(watch: RunLog) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in watch.since(0, 10_000)["lines"]]


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("count", [8, 400])
def test_a_resumed_run_that_is_longer_than_before(tmp_path: Path, replaced: bool, count: int) -> None:
    """It is cut at update 5 and passes the place up to which it was read before anybody looks again."""
    log, watch = tmp_path / "log.jsonl", RunLog(tmp_path)
    log.write_text(text(range(1, count), 2.0))
    first = watch.since(0, 10_000)
    assert first["last"] == count - 1 and (count < 100 or log.stat().st_size > TAIL)
    anew = text(range(1, 5), 2.0) + text(range(5, count + 20), 1.0)
    if replaced:
        (tmp_path / "new").write_text(anew)
        os.replace(tmp_path / "new", log)
    else:
        log.write_text(anew)
    assert known(watch) == [(step, 2.0 if step < 5 else 1.0) for step in range(1, count + 20)]
    assert watch.since(0, 10)["cuts"] != first["cuts"]  # whoever has the old lines is told


def test_a_run_that_writes_on_behind_what_it_did_before(tmp_path: Path) -> None:
    log, watch = tmp_path / "log.jsonl", RunLog(tmp_path)
    log.write_text(text(range(1, 9), 2.0))
    cuts = watch.since(0, 10)["cuts"]
    with open(log, "a") as file:
        file.write(text(range(6, 8), 1.0))
    assert known(watch) == [(step, 2.0 if step < 6 else 1.0) for step in range(1, 8)]
    assert watch.since(0, 10)["cuts"] == cuts + 1


def test_growing_is_no_cut(tmp_path: Path) -> None:
    log, watch = tmp_path / "log.jsonl", RunLog(tmp_path)
    assert watch.since(0, 10) == {"run": tmp_path.name, "last": 0, "cuts": 0, "lines": [], "ended": False}
    for end in (200, 400):  # beyond the bytes by which the log is known again
        log.write_text(text(range(1, end), 2.0))
        assert watch.since(0, 10)["last"] == end - 1
    with open(log, "a") as file:
        file.write('{"step": 400, "lo')
        file.flush()
        assert watch.since(0, 10)["last"] == 399  # half a line
        file.write('ss": 1.0}\n')
    assert watch.since(399, 10)["lines"] == [{"step": 400, "loss": 1.0}] and watch.cuts == 0
    log.unlink()
    assert watch.since(0, 10)["lines"] == []
