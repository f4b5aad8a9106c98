"""`qkv ablate`: train variants of a recipe and compare them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Settings
from qkv.commands.train import RECIPE
from qkv.text.wording import plural

if TYPE_CHECKING:
    from qkv.lab.ablation import Design
    from qkv.lab.variant_results import Ablation

VARY = typer.Option(
    metavar="FIELD=A,B,...", help="A field and its values: [cyan]model.norm_order=pre,post[/]; may be repeated."
)
BASELINE = typer.Option(
    metavar="FIELD=VALUE", help="Value of a field in the baseline variant; default: the first value."
)
SEEDS = typer.Option(min=1, max=100, help="Number of runs of each variant, with different seeds.")
SINGLE = typer.Option("--one-at-a-time", help="Change one field at a time; the recipe itself is the baseline.")
Jobs = Annotated[int | None, typer.Option(min=1, max=1024, help="Number of parallel runs; default: one per core.")]
OUT = typer.Option(help="Folder of runs and results; default: lab/ablate-NAME.")
METRIC = typer.Option(help="Metric to test: BLEU, accuracy, loss, ...; default: the first of the test set.")
Samples = Annotated[int, typer.Option(min=10, help="Number of resampled or randomised test sets.")]
DRY = typer.Option("--dry-run", help="Check all variants, print the plan and train nothing.")


def run(
    recipe: Annotated[str, RECIPE],
    vary: Annotated[list[str], VARY],
    seeds: Annotated[int, SEEDS] = 3,
    settings: Settings = None,
    one_at_a_time: Annotated[bool, SINGLE] = False,
    baseline: Annotated[list[str] | None, BASELINE] = None,
    jobs: Jobs = None,
    out: Annotated[Path | None, OUT] = None,
    metric: Annotated[str | None, METRIC] = None,
    samples: Samples = 1000,
    dry_run: Annotated[bool, DRY] = False,
) -> None:
    """Train variants of a recipe with several seeds, and compare each with a baseline.

    The variants are all combinations of the given values, or with
    --one-at-a-time the recipe and each single change. All variants are checked
    before training starts. Each run has an ordinary run folder and trains on one
    core; as many run in parallel as there are cores. After Ctrl-C, run the same
    command again: finished runs are kept, the others resume.

    The table has the test scores (mean and 95 % interval over the seeds), the
    difference from the baseline with its significance on the test outputs (as
    in qkv compare) and over the seeds (paired t-test), parameters, operations
    per token and minutes of training. Files: index.html, table.md, table.csv,
    results.json, figure.svg.

    [dim]qkv ablate demo --vary model.position=sinusoidal,learned,rotary[/]
    [dim]qkv ablate demo --vary model.norm_order=pre,post --seeds 5 --jobs 2[/]
    [dim]qkv ablate tags --vary model.n_heads=1,2,4 --set train.steps=300[/]
    [dim]qkv ablate my.toml --vary train.learning_rate=1e-3,3e-3 --one-at-a-time[/]
    """
    from qkv.lab.ablation import design, finish_ablation, train_design
    from qkv.lab.ablation_report import make_table
    from qkv.lab.variants import parse_factor

    factors = [parse_factor(text) for text in vary]
    d = design(recipe, factors, seeds, settings or [], one_at_a_time, baseline or [], out)
    if dry_run:
        print_plan(d)
        return
    outcome = train_design(d, jobs)
    if outcome.signal:
        raise typer.Exit(128 + outcome.signal)
    found = finish_ablation(d, outcome, command_line(), metric, samples)
    print(make_table(found).markdown())
    print_notes(found)
    if found.failed:
        raise typer.Exit(1)


def command_line() -> str:
    """Return the command line as given."""
    return shlex.join(["qkv", *sys.argv[1:]])


def print_plan(d: Design) -> None:
    """Print one line per run: its folder, its state and its settings."""
    from qkv.lab.parallel_runs import run_state

    for run in d.runs:
        print(f"{run.folder}: {run_state(run)}: {' '.join(run.settings)}")
    print(f"{plural(len(d.runs), 'runs')}, {plural(len(d.plans), 'variants')}; baseline: {next(iter(d.plans)).name}")


def print_notes(found: Ablation) -> None:
    print("\n" + "\n".join(f"- {note}" for note in found.notes))
    for name, error in found.failed.items():
        print(f"- failed: {name}: {error}")
    print(f"\nFiles: {found.folder}/index.html, table.md, table.csv, results.json, figure.svg")
