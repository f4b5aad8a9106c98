"""How much of the package a training batch crosses: the budget of docs/architecture.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracing import crossed

from qkv.config import Recipe, load_recipe
from qkv.recipes import find
from qkv.train import loop
from qkv.train import run as training
from qkv.train.report import Report

FILES, FUNCTIONS, LINES = 23, 63, 431


def demo(updates: int) -> Recipe:
    small = ["data.train=[{grammar=400}]", "data.valid={grammar=20}", "data.vocab_size=300", "data.batch_tokens=300"]
    never = ["train.evaluate_every=1000", "train.save_every=1000"]
    return load_recipe(find("demo"), [f"train.steps={updates}", *small, *never])


def test_a_batch_crosses_few_files_functions_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the ids of a pair to the updated weights, the log and the report; evaluations and checkpoints are apart."""
    monkeypatch.setattr(loop, "evaluate", lambda *_: {})
    report = Report(quiet=True)
    few, many = (training.open_run(demo(n), tmp_path / str(n), report) for n in (3, 9))
    crossing = crossed(lambda: training.learn(few, report), lambda: training.learn(many, report), 6)
    assert len(crossing.files) <= FILES, str(crossing)
    assert len(crossing.functions) <= FUNCTIONS, str(crossing)
    assert crossing.lines <= LINES, str(crossing)
