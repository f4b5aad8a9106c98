"""How much of the package a training batch crosses: the budget of docs/architecture.md."""

from __future__ import annotations

from pathlib import Path

from tracing import ROOT, crossed

from qkv.config import load_recipe
from qkv.recipes import find
from qkv.train import run as training
from qkv.train.report import Report

FILES, FUNCTIONS, LINES = 24, 60, 430


def train_demo(updates: int, folder: Path) -> None:
    """Train `qkv train demo` on less text, from reading the corpus to the model card."""
    small = ["data.train=[{grammar=400}]", "data.valid={grammar=20}", "data.test={grammar=20}", "data.vocab_size=300"]
    never = ["train.evaluate_every=1000", "train.save_every=1000"]
    recipe = load_recipe(find("demo"), [f"train.steps={updates}", "data.batch_tokens=300", *small, *never])
    training.run(recipe, "", folder, Report(quiet=True))


def test_a_batch_crosses_few_files_functions_and_lines(tmp_path: Path) -> None:
    """What a run of six more updates calls six times more often, wherever it is called: in the loop, the log, the report, or
    the evaluation and the curves at the end, which must not grow with the updates."""
    few, many = (lambda n=n: train_demo(n, tmp_path / str(n)) for n in (4, 10))
    crossing = crossed(few, many, 6)
    assert {"train/loop.py", "train/tensorboard.py"} <= {str(Path(file).relative_to(ROOT)) for file in crossing.files}
    assert len(crossing.files) <= FILES, str(crossing)
    assert len(crossing.functions) <= FUNCTIONS, str(crossing)
    assert crossing.lines <= LINES, str(crossing)
