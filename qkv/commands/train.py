"""`qkv train`: train and score a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Settings
from qkv.errors import ConfigError

if TYPE_CHECKING:
    from qkv.train.outcome import RunOutcome

RECIPE = typer.Argument(help="A recipe: the path of a TOML file, or the name of one that ships with qkv.")
OUT = typer.Option(help="Folder of the run; default: runs/NAME.")
BUDGET = typer.Option(help="Maximum training time, such as 90s, 10m or 1h; the schedule is scaled to it.")
Threads = Annotated[int | None, typer.Option(min=1, help="Train in one process with this many threads.")]
WORKERS = typer.Option(
    min=1, max=1024, help="Data-parallel worker processes; default: one per core where that is faster."
)
Workers = Annotated[int | None, WORKERS]
RESTARTS = typer.Option(
    min=0, max=1_000_000, help="Restart the workers up to this many times when one is lost; default: 3."
)
Restarts = Annotated[int | None, RESTARTS]
Changed = Annotated[bool, typer.Option("--changed-data", help="Resume a run even if its training data have changed.")]


def run(
    recipe: Annotated[str, RECIPE],
    out: Annotated[Path | None, OUT] = None,
    settings: Settings = None,
    time_budget: Annotated[str | None, BUDGET] = None,
    threads: Threads = None,
    workers: Workers = None,
    max_restarts: Restarts = None,
    changed_data: Changed = False,
) -> None:
    """Train a model of any task, score it on the test set, and write a model card.

    Run the same command again to resume a run that was stopped; the result is
    the same bit for bit, except with a time budget, where the learning rate
    depends on the clock. Ctrl-C and SIGTERM finish the current update, write a
    checkpoint and exit with code 130 or 143; a second Ctrl-C exits immediately, and
    updates after the last checkpoint are repeated. More updates, epochs, time or
    patience, or another learning rate, extend the run in its folder. When one of
    several workers is lost, all are restarted from the last checkpoint. To write
    your own recipe, copy runs/demo/recipe.toml. qkv config lists all fields.

    [dim]qkv train demo                      # a recipe that ships with qkv[/]
    [dim]qkv train tags                      # another; docs/train.md lists them[/]
    [dim]qkv train multi30k-en-de --set data.root=FOLDER    # folder of the data set[/]
    [dim]qkv train my.toml --out runs/wide --set model.d_model=256[/]
    [dim]qkv train my.toml --time-budget 1h[/]
    [dim]qkv train my.toml --set train.steps=20000          # extend the run[/]
    [dim]qkv train my.toml --workers 4       # data-parallel processes[/]
    [dim]torchrun --nproc-per-node 4 -m qkv train my.toml       # the same[/]
    [dim]tensorboard --logdir runs           # show the curves[/]
    """
    from qkv.config.vectors import learns_vectors
    from qkv.recipes import find

    if learns_vectors(find(recipe), settings):
        word_vectors(recipe, list(settings or []), out, time_budget, threads)
    else:
        changes = list(settings or [])
        print_results(train_recipe(recipe, changes, out, time_budget, threads, workers, changed_data, max_restarts))


def print_results(finished: RunOutcome) -> None:
    """Print the scores of a run, and where its model is."""
    from qkv.evaluate.baseline import describe_baseline
    from qkv.train.evaluation import score_lines
    from qkv.train.report import digits, in_words

    folder, progress = finished.folder, finished.progress
    valid = finished.results["valid"]
    print(f"best validation {in_words(valid['metric'])} {digits(valid['value'])}, at update {progress.best_step:,}")
    for name, one in finished.results["extra_valid"].items():
        print(f"{name} {in_words(one['metric'])} {digits(one['scores'][one['metric']])}, of the same weights")
    for line in (*score_lines(finished.results), *describe_baseline(finished.results)):
        print(line)
    print(f"model: {folder / 'best'}, model card: {folder / 'README.md'}, learning curves: {folder / 'curves.svg'}")
    print(f"use it: {finished.use}")


def word_vectors(
    recipe: str, changes: list[str], out: Path | None, time_budget: str | None, threads: int | None
) -> None:
    """Train word vectors (word2vec), which have a training loop of their own."""
    from qkv.config.vectors import load_vectors_recipe
    from qkv.recipes import find
    from qkv.train.evaluation import score_lines
    from qkv.train.report import Report
    from qkv.vectors import run as training

    if time_budget is not None:
        raise ConfigError(
            "--time-budget does not apply to word vectors: set the number of epochs with --set vectors.epochs=3"
        )
    path = find(recipe)
    changes += [] if threads is None else [f"vectors.workers={threads}"]
    folder = out or Path("runs") / path.stem
    finished = training.run(load_vectors_recipe(path, changes), kept_text(path, changes), folder, Report())
    if finished.signal:
        raise typer.Exit(128 + finished.signal)
    print(f"loss in the last epoch {finished.results['loss']:.4f} per prediction")
    for line in score_lines(finished.results):
        print(line)
    print(f"vectors: {folder / 'best'}, model card: {folder / 'README.md'}, learning curves: {folder / 'curves.svg'}")
    print(f"use them: qkv nearest {folder} {finished.vocabulary.words[len(finished.vocabulary.words) // 10]}")


def kept_text(path: Path, changes: list[str]) -> str:
    """Return the recipe as stored in the run folder, with the changes of the command line."""
    from qkv.config.strict import with_changes
    from qkv.convert.files import read_text

    return with_changes(read_text(path), changes)


def train_recipe(recipe: str, changes: list[str], out: Path | None, time_budget: str | None, threads: int | None,
            workers: int | None = None, changed_data: bool = False, max_restarts: int | None = None) -> RunOutcome:  # fmt: skip
    """Train to the end; where a signal stops it, exit with 128 + its number, as shells do."""
    import torch

    from qkv.config import load_recipe, minutes
    from qkv.convert.detect import open_config
    from qkv.recipes import find
    from qkv.train import run as training
    from qkv.train.report import Report

    path = find(recipe)
    if time_budget is not None:
        changes = [*changes, f"train.time_budget={minutes(time_budget)}"]
    loaded = load_recipe(path, changes, open_config)
    if loaded.data is None:
        raise ConfigError(f"{recipe} has no [data] table: add one, or choose a recipe with data")
    if threads is not None:
        torch.set_num_threads(threads)
    if workers is None and threads is not None:
        workers = 1
    folder = out or Path("runs") / path.stem
    finished = training.run(loaded, kept_text(path, changes), folder, Report(), workers, changed_data, max_restarts)
    if finished.ending.signal:
        raise typer.Exit(128 + finished.ending.signal)
    if not finished.results:  # one of several workers: rank 0 reports
        raise typer.Exit
    return finished
