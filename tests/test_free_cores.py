"""Threads beside other busy processes: as many as have a core for themselves, and the same results with any number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import qkv
from qkv.generate import free_cores, parallel


@pytest.fixture
def four_threads() -> Iterator[None]:
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(1)


def busy(monkeypatch: pytest.MonkeyPatch, others: float) -> None:
    """A load that finds so many cores busy with other processes, half a second after it was made."""
    clock, seconds = [100.0], [(0.0, 0.0)]
    monkeypatch.setattr("qkv.generate.free_cores.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(free_cores, "processor_seconds", lambda: seconds[0])
    load = free_cores.Load()
    clock[0], seconds[0] = 100.5, (1000.0 + 0.5 * others + 0.3, 1000.3)  # ours count in both
    load.last = (100.0, 1000.0, 1000.0)
    monkeypatch.setattr(free_cores, "LOAD", load)


@pytest.mark.parametrize(("others", "free"), [(0.0, 4), (0.1, 4), (1.0, 3), (2.2, 2), (3.9, 1), (9.0, 1)])
def test_threads_are_those_that_have_a_core(
    others: float, free: int, monkeypatch: pytest.MonkeyPatch, four_threads: None
) -> None:
    busy(monkeypatch, others)
    assert free_cores.LOAD.read() == pytest.approx(others)
    used = parallel.run_batches(lambda _: torch.get_num_threads(), [1, 2], parallel=False)
    assert used == [free, free] and torch.get_num_threads() == 4
    assert parallel.run_batches(lambda _: torch.get_num_threads(), [1], small=True) == [1]


def test_free_cores_are_counted_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four are busy with other processes during the measurement."""
    clock, seconds = [100.0], [(10.0, 5.0)]

    def sleep(duration: float) -> None:
        clock[0], seconds[0] = clock[0] + duration, (10.0 + 2 * duration, 5.0)

    monkeypatch.setattr("qkv.generate.free_cores.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("qkv.generate.free_cores.time.sleep", sleep)
    monkeypatch.setattr(free_cores, "processor_seconds", lambda: seconds[0])
    monkeypatch.setattr(free_cores.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert free_cores.free_cores() == 2


def test_an_error_gives_the_threads_back(monkeypatch: pytest.MonkeyPatch, four_threads: None) -> None:
    busy(monkeypatch, 3.0)
    with pytest.raises(ZeroDivisionError):
        parallel.run_batches(lambda _: 1 / 0, [1])
    assert torch.get_num_threads() == 4


def test_processor_seconds_count_this_process() -> None:
    before = free_cores.processor_seconds()
    while free_cores.processor_seconds()[1] < before[1] + 0.1:
        pass
    after = free_cores.processor_seconds()
    assert after[0] - before[0] >= 0.05  # the whole system was busy at least as long, but for the grain of its clock


def test_translations_are_the_same_bits_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What adapts to the load must not change results."""
    monkeypatch.setattr("qkv.generate.translate.MIN_WIDTH", 0)
    model, found = qkv.load("example", device="cpu"), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.append(model.translate(["The old woman sees a small dog because she is tired."], scores=True)[0])
        finally:
            torch.set_num_threads(1)
    assert found[0].token_log_probs == found[1].token_log_probs == found[2].token_log_probs


def test_threads_spin_for_microseconds_only() -> None:
    """Set before torch is imported; the environment of the user wins."""
    import os
    import subprocess
    import sys

    code = "import os, sys, qkv; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    for given, expected in ((None, "2000 False"), ("7", "7 False")):
        env = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"} | (
            {} if given is None else {"GOMP_SPINCOUNT": given}
        )
        said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        assert said.strip() == expected
