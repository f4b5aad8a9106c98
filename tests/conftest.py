"""What all tests share. One thread per process: the tests are many and small, and run side by side."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qkv.engine import native  # before torch: how long its threads spin is settled when it is loaded

# isort: split
import hypothesis
import pytest
import torch

torch.set_num_threads(1)

# The same cases on every run, so that a failure is the change's; QKV_RANDOM=1 looks for new ones.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
hypothesis.settings.load_profile("random" if os.environ.get("QKV_RANDOM") else "fixed")

COMPILERS = ("c++", "g++", "clang++")
needs_compiler = pytest.mark.skipif(
    native.library() is None and not any(map(shutil.which, COMPILERS)),
    reason="no C++ compiler: the kernels are not tested",
)
"""Skips where the kernels were not built for want of a compiler; where there is one, code that it refuses fails the test."""


@pytest.fixture(params=[1, 2, 3], ids="{} thread(s)".format)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many threads torch and the kernels use: work that is divided evenly, unevenly and not at all."""
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


UNTESTED = {
    "the page is not tested": (
        "the page",
        "There is no Chromium or no Playwright: apt-get install chromium; pip install playwright",
    ),
    "the kernels are not tested": ("the C++ kernels", "There is no C++ compiler: apt-get install g++"),
    "QKV_DATA": ("real data", "Set QKV_DATA to the folder that holds the data sets and models named below."),
}
"""Part of the reason of a skip -> what was not tested, and what to do about it."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Announce what was not tested in sections of their own, and count all skipped tests by reason."""
    skipped = Counter(reason_of(report) for report in terminalreporter.stats.get("skipped", ()))
    for mark, (what, advice) in UNTESTED.items():
        count = sum(n for reason, n in skipped.items() if mark in reason)
        if count:
            terminalreporter.section(f"NOT TESTED: {what} ({count} skipped)", red=True)
            terminalreporter.line(advice)
    if skipped:
        terminalreporter.section("skipped")
        for reason, count in skipped.most_common():
            terminalreporter.line(f"{count:5} {reason}")


def reason_of(report: Any) -> str:
    """The reason of a skipped test; `longrepr` is (file, line, "Skipped: reason")."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call `qkv ARGUMENTS` within this process, with `given` as its input -> exit code, stdout, stderr."""

    def call(*arguments: str | Path, given: str | None = None) -> tuple[int, str, str]:
        from qkv.cli import main

        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        if given is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call
