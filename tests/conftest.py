"""What all tests share. One thread per process: the tests are many and small, and run side by side."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not tested for want of a browser is said in a line of its own, not only counted."""
    reasons = {str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())}
    if any("the page is not tested" in reason for reason in reasons):
        terminalreporter.section("NOT TESTED: the page", red=True)
        terminalreporter.line("There is no Chromium or no Playwright: apt-get install chromium; pip install playwright")


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
