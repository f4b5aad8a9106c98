"""`qkv demo`: a translator from raw text in a few minutes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Settings
from qkv.commands.train import BUDGET, Threads, Workers, train_recipe

if TYPE_CHECKING:
    from rich.console import Console

    from qkv.train.outcome import RunOutcome

GOOD = 95.0
"""BLEU on held-out sentences from which on the translator counts as trained."""
MORE = 1.5
"""Factor by which the number of updates grows while the score is below that."""
WHAT = (
    "[bold]Train a translator from raw text[/], English to German, on sentences of a small grammar that ships with qkv. "
    "Train a tokenizer and a small Transformer until its translations of held-out sentences are good ({good:g} BLEU), for at most "
    "{budget}; keep the best weights and score them on a test set. Ctrl-C stops the run, the same command resumes it."
)
FILES = {
    "alignment.svg": "attention as a word alignment (open it in a browser)",
    "curves.svg": "learning curves",
    "README.md": "the model card",
    "test.hyp.txt": "all translations of the test set",
    "best": "the model",
}
NEXT = (
    ("{qkv} serve {out}", "serve its page at http://127.0.0.1:8000/ : translate and inspect"),
    ('echo "The old woman sees a small dog." | {qkv} translate {out} --alignments', "translate a sentence of your own"),
    ("{qkv} evaluate {out}", "score it: BLEU with 95 % intervals, and BLEU by sentence length"),
    ("tensorboard --logdir {out}", "show the curves, if TensorBoard is installed"),
    ("cp {out}/recipe.toml my.toml && {qkv} train my.toml", "train on your own text: name your files in its [data]"),
    ("{qkv} config", "list every field of a recipe"),
    ("{qkv} lectures", "print the worked examples behind it, step by step"),
)


def run(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    time_budget: Annotated[str, BUDGET] = "10m",
    threads: Threads = None,
    workers: Workers = None,
    settings: Settings = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the model at the end, with its web page.")] = False,
) -> None:
    """Train a translator from raw text, score it, and show translations: under 5 minutes on two cores.

    Training ends when the translations of held-out sentences are good (95 BLEU), or
    when the time budget is used up, which happens only on a very busy machine. The
    same command resumes a run that was stopped, shows the results of a finished
    one, or continues training if given more time.

    [dim]qkv demo[/]
    [dim]qkv demo --time-budget 30m[/]
    """
    from rich.console import Console

    from qkv.train.evaluation import score_lines

    console = Console(highlight=False)
    console.print(WHAT.format(budget=time_budget, good=GOOD))
    console.print(f"Output: {out}\n", markup=False, soft_wrap=True)
    changes = list(settings or [])
    finished = until_good(console, changes, out, time_budget, threads, workers)
    good = finished.progress.best >= GOOD
    if good:
        show(console, out)
        console.print()
    for line in score_lines(finished.results):
        console.print(line, markup=False, soft_wrap=True)
    if not good:
        why = explain_low_score(finished, time_budget, changes)
        console.print(f"\nThis model is not trained yet: {why}", markup=False, soft_wrap=True)
    console.print("\n[bold]Files[/]")
    for name, what in FILES.items():
        if (out / name).exists():
            console.print(f"  {out / name!s:<28} {what}", markup=False, soft_wrap=True)
    if good:
        next_steps(console, out)
    if serve:
        from qkv.commands import serve as server

        console.print()
        server.run([str(out)])


def until_good(console: Console, changes: list[str], out: Path, time_budget: str, threads: int | None,
               workers: int | None) -> RunOutcome:  # fmt: skip
    """Train; while the score is below the target and there is time, continue with more updates, unless the user set their
    number."""
    from qkv.train.report import digits

    fixed, more = any(change.startswith("train.steps=") for change in changes), list[str]()
    while True:
        finished = train_recipe("demo", [*changes, *more], out, time_budget, threads, workers)
        score, steps = finished.progress.best, int(MORE * finished.recipe.train.steps)
        if fixed or score >= GOOD or finished.progress.step < finished.recipe.train.steps:
            return finished
        console.print(
            f"{digits(score)} BLEU on held-out sentences is below the target of {GOOD:g}: continuing to {steps:,} updates"
        )
        more = [f"train.steps={steps}"]


def explain_low_score(finished: RunOutcome, time_budget: str, changes: list[str]) -> str:
    """Explain why the score is below the target, and how to continue."""
    from qkv.config import minutes
    from qkv.train.report import digits

    p, c = finished.progress, finished.recipe.train
    kept = [change for change in changes if not change.startswith("train.steps=")]
    more = f"--time-budget {3 * minutes(time_budget):g}m"
    if p.step >= c.steps:
        kept, more = [*kept, f"train.steps={int(MORE * c.steps)}"], ""
    out = "" if finished.folder == Path("runs/demo") else f"--out {shlex.quote(str(finished.folder))}"
    words = ["qkv demo", more, out, *(f"--set {shlex.quote(change)}" for change in kept)]
    return (
        f"{digits(p.best)} BLEU on held-out sentences; the target is {GOOD:g}. Training ended after {p.step:,} of {c.steps:,} updates "
        f"because {finished.why}. Continue with: {' '.join(filter(None, words))}"
    )


def next_steps(console: Console, out: Path) -> None:
    console.print("\n[bold]Next steps[/]")
    started = shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "qkv" else "python -m qkv"
    qkv = "qkv" if which("qkv") else started
    for command, what in NEXT:
        given = command.format(out=shlex.quote(str(out)), qkv=qkv)
        console.print(f"  {given}\n      {what}", markup=False, soft_wrap=True)


def show(console: Console, out: Path) -> None:
    """Print some translations with their alignments, and draw one alignment."""
    from rich.markup import escape
    from rich.table import Table

    from qkv.api import load
    from qkv.convert.files import write_text
    from qkv.generate.alignment import pharaoh
    from qkv.lab.demo import alignment_picture, choose_examples, translate_examples

    model = load(out)
    pairs = choose_examples(out)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for one in translate_examples(model, pairs):
        table.add_row("source", one.source)
        table.add_row("translation", f"[bold]{escape(one.translation)}[/]")
        table.add_row("reference", "the same" if one.reference == one.translation else one.reference)
        table.add_row("alignment", f"{pharaoh(one.links)}   [dim]{escape(one.words)}[/]")
        table.add_row()
    console.print(table)
    write_text(out / "alignment.svg", alignment_picture(model, pairs[0][0]))
