"""Compare trained models of one task on the same test set, and several runs of each with each other.

Where all runs have the same test set, what they stored of it is compared; on other files every model is evaluated first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.convert.detect import find_run
from qkv.convert.files import read_json
from qkv.data.corpus_files import Columns
from qkv.errors import ConfigError, FileError
from qkv.evaluate.significance import Comparison, Measure, RunScores, compare, compare_groups, compare_measures
from qkv.tasks.predictions import Predictions, read_predictions
from qkv.train.extend import flatten
from qkv.train.rescore import Paths, recipe_of, rescore, task_name

Say = Callable[[str], None]
TEXTS = {"translation": ("bleu", "chrf"), "captions": ("bleu",)}
"""Tasks whose texts are compared by sacreBLEU's metrics."""
NOTHING: Mapping[str, Any] = {}
SYSTEM, ANY = ("model.", "train.", "tune.", "decode.", "corrupt.", "augment."), ("train.seed", "train.device")
"""The fields of a recipe that make a run the system it is, and those among them that may differ between runs of one system."""


@dataclass(frozen=True)
class Scored:
    """A model, its scores on a test set, and its answers."""

    name: str
    task: str
    test: dict[str, Any]
    """As results.json has it."""
    predictions: Predictions

    @property
    def scores(self) -> dict[str, float]:
        return {score["name"]: float(score["value"]) for score in self.test["scores"]}


def open_scores(folder: Path, say: Say, paths: Paths = (), columns: Columns = (), device: str = "cpu") -> Scored:
    """Read the stored scores and answers of a run, or score the model on the given files."""
    task = task_name(folder)
    if paths:
        with tempfile.TemporaryDirectory() as place:
            test = rescore(folder, say, paths, columns, device, Path(place))
            return Scored(str(folder), task, test, read_predictions(task, Path(place)))
    run = find_run(folder)
    stored = read_json(run / "results.json").get("test") if run and (run / "results.json").is_file() else None
    if run is None or not isinstance(stored, dict) or not stored.get("scores"):
        raise FileError(f"{folder} has no scores of a test set: give one with --data FILE, or let the run end")
    return Scored(str(folder), task, stored, read_predictions(task, run))


def same_test_set(runs: Sequence[Scored]) -> None:
    """One test set: scores of different ones cannot be compared."""
    first = runs[0]
    for other in runs[1:]:
        asked = [(run.test.get("digest"), list(run.predictions.examples)) for run in (first, other)]
        if asked[0] == asked[1]:
            continue
        if "accuracy" in first.predictions.measures and "loss" in first.predictions.measures:
            raise ConfigError(
                f"{first.name} and {other.name} predict different tokens: these follow from the vocabulary and data.max_length"
            )
        raise ConfigError(f"{first.name} and {other.name} have different test sets: give one for all with --data FILE")


def same_task(folders: Sequence[Path]) -> None:
    first = task_name(folders[0])
    for folder in folders[1:]:
        if (other := task_name(folder)) != first:
            raise ConfigError(
                f"the task of {folders[0]} is {first!r}, that of {folder} is {other!r}: compare models of one task"
            )


def compare_runs(folders: Sequence[Path], say: Say, paths: Paths = (), columns: Columns = (), samples: int = 1000,
                 metrics: Sequence[str] = (), how: Mapping[str, Any] = NOTHING, device: str = "cpu") -> list[Comparison]:  # fmt: skip
    """Every model against the first one, by every metric of their task.

    paths, columns: files to evaluate all of them on; without any, the test set that the runs share.
    samples: exchanges, or resampled test sets.
    metrics, how: of translations, some of bleu, chrf and ter, and their settings (tokenize, lowercase).
    """
    same_task(folders)
    runs = [open_scores(folder, say, paths, columns, device) for folder in folders]
    same_test_set(runs)
    rows = compare_measures({run.name: measures_of(run, runs) for run in runs}, samples)
    if not rows and runs[0].task == "language":
        raise ConfigError(
            "these models have no metric in common: their tokens differ, which makes losses per token incomparable, and a "
            "tokenizer is not lossless, so that its bits per byte are not those of the text"
        )
    if runs[0].task in TEXTS:
        texts = {run.name: run.predictions.texts for run in runs}
        rows += compare(texts, list(runs[0].predictions.references), metrics or TEXTS[runs[0].task], samples, **how)
    return rows


def measures_of(run: Scored, runs: Sequence[Scored]) -> Mapping[str, Measure]:
    """The metrics that the task reports. A loss per token is left out where the models have different tokens."""
    found = {name: measure for name, measure in run.predictions.measures.items() if name in run.scores}
    tokens = {tuple(one.predictions.measures["loss"].units[:, 1].tolist()) for one in runs if "loss" in found}
    return {name: measure for name, measure in found.items() if name != "loss" or len(tokens) == 1}


def compare_seeds(groups: Sequence[Sequence[Path]], say: Say, paths: Paths = (), columns: Columns = (), paired: bool = False,
                  device: str = "cpu") -> list[RunScores]:  # fmt: skip
    """Groups of runs, each of one recipe with several seeds, against the first group."""
    if any(len(group) < 2 for group in groups):
        raise ConfigError(
            "each system needs at least two runs, with commas between: runs/a-1,runs/a-2 runs/b-1,runs/b-2"
        )
    same_task([folder for group in groups for folder in group])
    for group in groups:
        one_recipe(group)
    scored = [[open_scores(folder, say, paths, columns, device) for folder in group] for group in groups]
    same_test_set([run for group in scored for run in group])
    systems = {",".join(run.name for run in group): scores_of(group) for group in scored}
    return compare_groups(systems, paired)


def scores_of(group: Sequence[Scored]) -> dict[str, list[float]]:
    return {name: [run.scores[name] for run in group] for name in group[0].scores}


def one_recipe(folders: Sequence[Path]) -> None:
    """A group has one recipe, but for the seed and the data (of folds)."""
    values = [fields(folder) for folder in folders]
    for folder, other in zip(folders[1:], values[1:], strict=True):
        keys = sorted(key for key in {*values[0], *other} if values[0].get(key) != other.get(key))
        if keys:
            raise ConfigError(
                f"{folders[0]} and {folder} are of different recipes ({', '.join(keys[:3])}): a group is one recipe with several seeds"
            )


def fields(folder: Path) -> dict[str, Any]:
    """The fields of a run's recipe that make it the system it is."""
    run = find_run(folder)
    if run is None:
        return {}
    found = flatten(recipe_of(run))
    return {key: value for key, value in found.items() if key.startswith(SYSTEM) and key not in ANY}
