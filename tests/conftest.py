"""What all tests share. One thread per process: the tests are many and small, and run side by side."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

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
