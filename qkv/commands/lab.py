"""`qkv lab`: the claims of the lectures as experiments."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import QkvError
from qkv.text.wording import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from qkv.lab.experiment import Claim
    from qkv.lab.workers import MeasurementPool

app = typer.Typer(
    help="Run the lectures' claims as experiments with verdicts.", no_args_is_help=False, rich_markup_mode="rich"
)
CLAIMS = typer.Argument(metavar="CLAIM...", help="Claims by id: C1 C8.", show_default=False)
OutOption = Annotated[Path, typer.Option("--out", help="Folder for the results, one subfolder per claim and version.")]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, max=100, help="Number of random seeds.")]
FullOption = Annotated[bool, typer.Option("--full", help="Run the long version, closer to the sizes in the papers.")]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="With --full: folder of the real data sets that some claims need.", show_default=False),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=1, max=256, help="Number of parallel processes; default: one per core.", show_default=False
    ),
]
OUT = Path("lab")


@app.callback(invoke_without_command=True)
def list_claims(context: typer.Context, out: OutOption = OUT) -> None:
    """List the claims with their last verdicts; run one with `qkv lab run`.

    [dim]qkv lab[/]
    [dim]qkv lab run C1 C9[/]
    [dim]qkv lab run C8 --seeds 5 --full[/]
    [dim]qkv lab all[/]
    """
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from qkv.lab.claims import MODULES, get_claim
    from qkv.lab.report import last_verdict, read_results

    results = read_results(out)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("claim", "sentence", "lectures", "time", "last verdict"):
        table.add_column(title, overflow="fold")
    for claim in map(get_claim, MODULES):
        cells = claim.id, claim.sentence, claim.lectures, format_duration(60 * claim.minutes)
        table.add_row(*cells, last_verdict(results, claim.id))
    Console(highlight=False).print(table)


@app.command("run")
def run_claims(claims: Annotated[list[str], CLAIMS], out: OutOption = OUT, seeds: SeedsOption = 3, full: FullOption = False,
               data: DataOption = None, jobs: JobsOption = None) -> None:  # fmt: skip
    """Run the experiments of some claims; an interrupted experiment resumes from its finished measurements.

    [dim]qkv lab run C1 C9[/]
    [dim]qkv lab run C8 --seeds 5 --full[/]
    """
    from qkv.lab.claims import get_claim

    run_all([get_claim(name) for name in claims], out, seeds, full, data, jobs)


@app.command("all")
def run_every_claim(
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    full: FullOption = False,
    data: DataOption = None,
    jobs: JobsOption = None,
) -> None:
    """Run the experiments of all claims and write one report with tables and figures.

    [dim]qkv lab all[/]
    """
    from qkv.lab.claims import MODULES, get_claim

    run_all([get_claim(name) for name in MODULES], out, seeds, full, data, jobs)


def run_all(claims: Sequence[Claim], out: Path, seeds: int, full: bool, data: Path | None, jobs: int | None) -> None:
    """Run claims one after the other, print each verdict, write the report of all results in the folder.

    A claim that fails is reported, and the others run; the exit code is 1. The folder is locked: claims share measurements.
    """
    from rich.console import Console

    from qkv.lab.report import read_results, write_report
    from qkv.lab.workers import MeasurementPool
    from qkv.train.lock import lock_folder

    console, failed = Console(highlight=False, stderr=not sys.stdout.isatty()), dict[str, str]()
    with lock_folder(out), MeasurementPool(jobs) as pool, make_bar(console, claims) as bar:
        for number, claim in enumerate(claims, 1):
            try:
                run_claim(console, bar, claim, f"{number} of {len(claims)}", out, seeds, full, data, pool)
            except QkvError as error:
                failed[claim.id] = str(error)
                console.print(f"failed: {error}\n", markup=False, soft_wrap=True)
        path = write_report(out, read_results(out), failed)
    console.print(f"Report: {path}", soft_wrap=True)
    if failed:
        console.print(f"Failed: {', '.join(failed)}")
        raise typer.Exit(1)


def make_bar(console: Console, claims: Sequence[Claim]) -> Bar:
    """Return a progress bar over the expected minutes of all claims."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left · {task.description}"),
    )
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task("starting", total=sum(claim.minutes for claim in claims))
    return bar


def run_claim(console: Console, bar: Bar, claim: Claim, place: str, out: Path, seeds: int, full: bool, data: Path | None,
              pool: MeasurementPool) -> None:  # fmt: skip
    """Run one claim, write its files, and print its verdict and table."""
    from qkv.lab.experiment import Experiment
    from qkv.lab.report import write_result

    console.rule(f"[bold]{claim.id}[/] ({place})", align="left")
    console.print(claim.sentence, markup=False)
    started, before = time.monotonic(), bar.tasks[0].completed

    def report(name: str, done: int, planned: int) -> None:
        rate = f", {done / (time.monotonic() - started) * 60:.0f} per min" if done else ""
        share = min(done / planned, 0.95) if planned else 0.0
        bar.update(bar.task_ids[0], completed=before + share * claim.minutes,
                   description=f"{claim.id} ({place}): measurement {done + 1} of {max(planned, done + 1)}{rate}: {name}")  # fmt: skip

    lab = Experiment(Experiment.folder_of(out, claim.id, full), seeds, full, report, data, pool)
    result = claim.run(lab)
    bar.update(bar.task_ids[0], completed=before + claim.minutes)
    seconds = time.monotonic() - started
    command = (
        f"qkv lab run {claim.id} --seeds {seeds}{' --full' if full else ''}{' --data FOLDER' if full and data else ''}"
    )
    write_result(claim, result, lab, command, seconds)
    console.print(f"\n[bold]{result.verdict}[/] ({result.basis}, {format_duration(seconds)})")
    console.print(result.finding + "\n", markup=False)
    print(result.table.markdown())
    console.print(f"\nFiles: {lab.folder}/index.html, results.json, table.md, figure.svg", markup=False, soft_wrap=True)
