"""benchmarks/harness.py: threads that are created after the warm-up may use all processors; what cannot be measured is listed."""

import os
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {benchmarks!r})
from harness import Unavailable, Work, worker

def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

def build(system, case):
    if case.get("absent"):
        raise Unavailable("not installed")
    helper = threading.Thread(target=spin, args=(600,), daemon=True)
    helper.start()

    def unit():
        masks = []
        later = threading.Thread(target=lambda: masks.append(len(os.sched_getaffinity(0))))
        later.start()
        later.join()
        spin(0.1)
        return {{"later": masks[0], "helper": len(os.sched_getaffinity(helper.native_id))}}

    return Work(unit, warmup=1)

worker(build)
"""


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import harness

    return harness


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="one processor")
def test_threads_created_after_the_warm_up_use_all_processors(harness, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(benchmarks=str(BENCHMARKS)))
    options = harness.Options(repeats=1, retries=0)
    first, second = harness.compare_cases(str(script), ["peer"], [{}, {"absent": True}], 2, options)
    assert first["later"][0].rates == [len(os.sched_getaffinity(0))]
    assert first["helper"][0].rates == [1]
    assert second[harness.RATE][0].problem == "not installed"
    assert "not measured: not installed" in harness.table("case", "tokens/s", second[harness.RATE])
