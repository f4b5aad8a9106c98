"""`qkv scale`: fit a scaling law to runs of a recipe, and check its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.commands.ablate import Jobs, command_line
from qkv.commands.common import Settings, to_stderr
from qkv.commands.train import RECIPE

MINUTES = typer.Option(min=0.1, max=100_000, help="Total time for all runs, in minutes.")
OUT = typer.Option(help="Folder of runs and results; default: lab/scale-NAME.")
OPERATIONS = typer.Option(metavar="C", min=1, help="Predict the best size for C training operations; may be repeated.")
EMBEDDINGS = typer.Option(
    "--count-embeddings", help="Count all parameters in N, including embeddings and output matrix."
)
DRY = typer.Option("--dry-run", help="Measure the speed of every size, print the plan and train nothing.")


def run(
    recipe: Annotated[str, RECIPE],
    minutes: Annotated[float, MINUTES] = 30.0,
    settings: Settings = None,
    jobs: Jobs = None,
    out: Annotated[Path | None, OUT] = None,
    operations: Annotated[list[float] | None, OPERATIONS] = None,
    count_embeddings: Annotated[bool, EMBEDDINGS] = False,
    dry_run: Annotated[bool, DRY] = False,
) -> None:
    """Fit a scaling law to runs of a language model, and check its prediction.

    Plans runs with several sizes (up to that of the recipe) and amounts of data
    that fit into the given time, trains them in parallel on one core each, and
    fits L = E + A / N^a + B / D^b with bootstrap intervals (N parameters, D tokens;
    Hoffmann et al. 2022). Reports if the runs cannot separate the exponents,
    predicts the best size for C = 6 N D operations, and checks the prediction
    with one more run. To resume after Ctrl-C, run the same command again. Files:
    index.html, table.md, table.csv, results.json, figure.svg.

    [dim]qkv scale stdlib-code --minutes 40[/]
    [dim]qkv scale stdlib-code --minutes 40 --dry-run        # print the plan[/]
    [dim]qkv scale my.toml --minutes 120 --operations 1e15 --operations 1e16[/]
    """
    from qkv.lab.parallel_runs import default_jobs
    from qkv.lab.scaling_experiment import finish_scaling, train_grid
    from qkv.lab.scaling_plan import CHECK_SHARE, load_base, open_plan
    from qkv.lab.scaling_report import describe_plan, findings, make_tables, plan_table, write_scaling
    from qkv.recipes import find

    source, changes = find(recipe), settings or []
    base, folder = load_base(source, changes), out or Path("lab") / f"scale-{source.stem}"
    plan = open_plan(source, changes, minutes, jobs or default_jobs(base), folder, to_stderr)
    plan = plan.with_embeddings() if count_embeddings else plan
    (print if dry_run else to_stderr)(f"{plan_table(plan).markdown()}\n\n{describe_plan(plan, CHECK_SHARE)}")
    if dry_run:
        return
    runs, outcome = train_grid(plan, base, folder)
    if outcome.signal:
        raise typer.Exit(128 + outcome.signal)
    to_stderr("fitting the law")
    found, stopped = finish_scaling(source, changes, folder, plan, runs, outcome, operations or [])
    if stopped:
        raise typer.Exit(128 + stopped)
    write_scaling(found, command_line())
    print("\n\n".join([*findings(found), *(table.markdown() for table in make_tables(found).values())]))
    print("\n" + "\n".join(f"- {note}" for note in found.notes))
    print(f"\nFiles: {folder}/index.html, table.md, table.csv, results.json, figure.svg")
    if found.failed:
        raise typer.Exit(1)
