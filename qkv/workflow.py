"""Train and evaluate from Python: what `qkv.train(...)` and `qkv.evaluate(...)` do. Torch is imported when they are called."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import ConfigError

if TYPE_CHECKING:
    from qkv.api import Model
    from qkv.train.evaluation import Evaluation
    from qkv.vectors.space import Vectors


@dataclass(frozen=True)
class TrainedRun:
    """A run that `qkv.train` has trained, or trained a part of."""

    folder: Path
    """Everything of it: the best model in best/, its card, log and scores."""
    results: dict[str, Any] = field(repr=False)
    """What results.json holds; empty while the run has not ended."""
    ended: str
    """Why training ended, for good or (where results are empty) for now."""

    @cached_property
    def model(self) -> Model:
        """The best model, opened at the first use."""
        import qkv

        return qkv.load(self.folder)

    @cached_property
    def vectors(self) -> Vectors:
        """The word vectors of a run of word2vec, opened at the first use."""
        import qkv

        return qkv.load_vectors(self.folder)

    @property
    def scores(self) -> dict[str, float]:
        """Metric -> value on the test set; where there is none, on the validation set."""
        if not self.results:
            return {}
        if test := self.results.get("test"):
            return {score["name"]: score["value"] for score in test["scores"]}
        valid = self.results.get("valid")
        return {valid["metric"]: valid["value"]} if valid else {}

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        return f"TrainedRun({str(self.folder)!r}, {scores or self.ended})"


def train(recipe: str | Path | Mapping[str, Any], out: str | Path | None = None, *,
          overrides: Mapping[str, Any] | None = None, quiet: bool = False, changed_data: bool = False,
          **fields: Any) -> TrainedRun:  # fmt: skip
    """Train what a recipe describes, score it on its test set and write its card.

    recipe: the name of a recipe that comes with qkv ("demo"), the path of a .toml file, or a dict with the tables of one:
        {"task": "classification", "model": {...}, "data": {...}}.
    out: the folder of the run; without one runs/NAME. The same call again continues a run that was stopped, and returns
        at once where it has ended.
    overrides: fields to change, by their names in the recipe: {"train.steps": 100, "model.d_model": 64}.
    quiet: print nothing. Otherwise progress goes to stderr.
    changed_data: continue a run although its training data have changed since it began.
    fields: the same as overrides, with two underscores for the point: train__steps=100.

    Returns a TrainedRun: `.folder`, `.results`, `.scores` and `.model` (of word2vec `.vectors`), opened at the first use.

    >>> run = qkv.train("demo", out="runs/short", train__steps=100)
    >>> run.model.translate(["I ate an apple."])
    """
    from qkv.config.strict import with_changes
    from qkv.config.vectors import learns_vectors
    from qkv.convert.files import read_text
    from qkv.recipes import find

    changes = settings(overrides or {}, fields)
    if isinstance(recipe, Mapping) and out is None:
        raise ConfigError("a recipe in a dict has no name: say where the run goes with out=FOLDER")
    with tempfile.TemporaryDirectory() as place:
        if isinstance(recipe, Mapping):
            path = Path(place) / "recipe.toml"
            path.write_text(toml(recipe), encoding="utf-8")
        else:
            path = find(str(recipe))
        folder = Path("runs") / path.stem if out is None else Path(out)
        kept = with_changes(read_text(path), changes)
        if learns_vectors(path, changes):
            return train_vectors(path, changes, kept, folder, quiet)
        return train_network(path, changes, kept, folder, quiet, changed_data)


def evaluate(model: str | Path | TrainedRun | Model, data: str | Path | Sequence[str | Path] | None = None, *,
             columns: Iterable[int | str] = (), device: str = "auto", precision: str | None = None, quiet: bool = True,
             shots: int | None = None, shots_from: str | Path | None = None, template: str = "", seed: int = 0, generate: bool = False,
             same_shots: bool = False) -> Evaluation:  # fmt: skip
    """Score a model of any task on its run's test set, or on files.

    model: the folder of a run or of a model, a TrainedRun, or a Model that is already open. The task is that of the run;
        without a run it follows from the model's head.
    data: a file to score it on: a table (.tsv, .csv, .jsonl) of texts and labels, of pairs or of questions; a CoNLL or
        .conllu file; a text file; a .json file in the layout of SQuAD; a folder of images with a folder per class. Two
        parallel text files, or two idx files, are a list. Without any, the test set of the run.
    columns: of a table, by name or number from 0, in the order text, label; source, target; question, context, answer.
        Without any those that the run was trained with, else the first ones.
    device: where to compute: "cpu", "cuda", "mps", or "auto".
    precision: "int8" or "float32", as in qkv.load; of a Model that is open it is that model's.
    quiet: print nothing of what is left out. Otherwise it goes to stderr.
    shots: of a language model: predict the labels of a table from prompts with so many solved examples; nothing is trained.
    shots_from: the table of these examples, such as the training set; without one, the other rows of `data`.
    template: with shots: one example, with {text}, {label} and for pairs {second}; or "chat".
    seed: with shots: chooses the examples.
    generate: with shots: generate answers instead of comparing the log-probabilities of the labels.
    same_shots: use the same examples for all rows, which is faster: their tokens are read once.

    Returns an Evaluation: `.scores` {metric: value}, `.report` with precision, recall and F1 of every class and the
    confusion matrix (of classes, tags and images), `print(evaluation)` for all of it as text.

    >>> qkv.evaluate("runs/topics", "new.tsv", columns=["text", "label"]).scores["accuracy"]
    """
    from qkv.tasks.few_shot import Prompting
    from qkv.train.evaluation import Evaluation
    from qkv.train.rescore import from_parts, open_trained_model, rescore_few_shot, rescore_model

    paths = [] if data is None else [data] if isinstance(data, str | Path) else list(data)
    if shots is not None and len(paths) != 1:
        raise ConfigError("shots needs one table of texts and labels as data")
    say = (lambda _: None) if quiet else (lambda text: print(text, file=sys.stderr))
    if isinstance(model, TrainedRun):
        model = model.folder
    if isinstance(model, str | Path):
        trained, name = open_trained_model(Path(model), device, not paths, precision), str(model)
    else:
        parts = model.config, model.network, model.tokenizer, model.target_tokenizer, model.usage
        trained, name = from_parts(*parts), "an open model"
    if shots is not None:
        how = Prompting(shots, template, seed, generate, same_shots)
        return Evaluation.from_json(rescore_few_shot(trained, paths[0], list(columns), shots_from, how, say))
    return Evaluation.from_json(rescore_model(trained, name, say, paths, list(columns)))


# --- recipes


def settings(overrides: Mapping[str, Any], fields: Mapping[str, Any]) -> list[str]:
    """Changed fields as `--set` writes them, the way in which a run's folder keeps them."""
    named = {**overrides, **{key.replace("__", "."): value for key, value in fields.items()}}
    return [f"{key}={toml_value(value, key)}" for key, value in named.items()]


def toml(recipe: Mapping[str, Any]) -> str:
    """A recipe in a dict as TOML."""
    plain = [f"{key} = {toml_value(value, key)}\n" for key, value in recipe.items() if not isinstance(value, Mapping)]
    tables = [f"\n[{name}]\n" + "".join(f"{key} = {toml_value(value, f'{name}.{key}')}\n" for key, value in table.items())
              for name, table in recipe.items() if isinstance(table, Mapping)]  # fmt: skip
    return "".join([*plain, *tables])


def toml_value(value: Any, where: str) -> str:
    """One value as TOML; tables are written inline."""
    if isinstance(value, bool | int | float | str | Path):
        text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
        return text.replace("\x7f", "\\u007f")  # which JSON allows and TOML does not
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(one, where) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml_value(one, where)}' for key, one in value.items())} }}"
    raise ConfigError(
        f"{where} is a number, text, true or false, a list or a table, given {value!r}; leave it out for its default"
    )


# --- runs


def train_network(
    path: Path, changes: list[str], kept: str, folder: Path, quiet: bool, changed_data: bool
) -> TrainedRun:
    from qkv.config import load_recipe
    from qkv.convert.detect import open_config
    from qkv.train.report import Report
    from qkv.train.run import run

    recipe = load_recipe(path, changes, open_config)
    if recipe.data is None:
        raise ConfigError("this recipe has no [data] table: it describes a model but no training data")
    done = run(recipe, kept, folder, Report(quiet=quiet), None, changed_data)
    return TrainedRun(folder, done.results, done.why)


def train_vectors(path: Path, changes: list[str], kept: str, folder: Path, quiet: bool) -> TrainedRun:
    """word2vec: no network, so a loop of its own."""
    from qkv.config.vectors import load_vectors_recipe
    from qkv.train.report import Report
    from qkv.vectors.run import run

    done = run(load_vectors_recipe(path, changes), kept, folder, Report(quiet=quiet))
    return TrainedRun(folder, done.results, done.why)
