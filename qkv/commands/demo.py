"""`qkv demo`: a translator from raw text in a few minutes."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Settings
from qkv.commands.train import BUDGET, Threads, Workers, score_lines, trained

if TYPE_CHECKING:
    from rich.console import Console

WHAT = (
    "[bold]A translator from raw text[/], English to German, from sentences of a small grammar that comes with qkv: learn a "
    "vocabulary, train a small Transformer (at most {budget} of training; Ctrl-C stops it, the same command goes on), keep the "
    "weights that do best on held-out sentences, score them on others that nobody has looked at. It all goes to {out}.\n"
)
NEXT = (
    ("{qkv} serve {out}", "its page, at http://127.0.0.1:8000/ : translate, and look inside"),
    ('echo "The old woman sees a small dog." | {qkv} translate {out} --alignments', "a sentence of your own"),
    ("{qkv} evaluate {out}", "BLEU with intervals, and by length of sentence"),
    ("tensorboard --logdir {out}", "the curves, where TensorBoard is installed"),
    ("cp {out}/recipe.toml my.toml && {qkv} train my.toml", "your own text: name your files in its [data]"),
    ("{qkv} config", "all that a recipe can say"),
    ("{qkv} lectures", "the worked examples behind it, step by step"),
)


def run(
    out: Annotated[Path, typer.Option("--out", help="The run's folder.")] = Path("runs/demo"),
    time_budget: Annotated[str, BUDGET] = "3m",
    threads: Threads = None,
    workers: Workers = None,
    settings: Settings = None,
    serve: Annotated[bool, typer.Option("--serve", help="At the end, serve it: a page to play with.")] = False,
) -> None:
    """Train a translator from raw text, score it, and show what it does; at most 5 minutes on two cores.

    Stopped, the same command goes on; after the end it shows the results again,
    or trains on where it is given more time.

    [dim]qkv demo[/]
    [dim]qkv demo --time-budget 10m[/]
    """
    from rich.console import Console

    console = Console(highlight=False)
    console.print(WHAT.format(budget=time_budget, out=out))
    finished = trained("demo", list(settings or []), out, time_budget, threads, workers)
    show(console, out)
    console.print()
    for line in score_lines(finished.results):
        console.print(line, markup=False, soft_wrap=True)
    done, planned = finished.training.progress.step, finished.recipe.train.steps
    if finished.training.progress.best < 95 and done < planned:
        console.print(f"{done:,} of {planned:,} updates fitted into the time: the same command with --time-budget 10m continues "
                      "the training", soft_wrap=True)  # fmt: skip
    files = {"alignment.svg": "where it looks, word by word (open it in a browser)", "curves.svg": "how it learned",
             "README.md": "the model card", "test.hyp.txt": "all translations", "best": "the model"}  # fmt: skip
    console.print("\n[bold]What there is[/]")
    for name, what in files.items():
        console.print(f"  {out / name!s:<28} {what}", soft_wrap=True)
    console.print("\n[bold]What next[/]")
    started = sys.argv[0] if Path(sys.argv[0]).name == "qkv" else "python -m qkv"
    qkv = "qkv" if which("qkv") else started
    for command, what in NEXT:
        console.print(f"  {command.format(out=out, qkv=qkv)}\n      {what}", markup=False, soft_wrap=True)
    if serve:
        from qkv.commands import serve as server

        console.print()
        server.run([str(out)])


def show(console: Console, out: Path) -> None:
    """Some translations with their alignments, and the picture of one."""
    from rich.markup import escape
    from rich.table import Table

    from qkv.api import load
    from qkv.convert.files import write_text
    from qkv.generate.alignment import pharaoh
    from qkv.lab.demo import alignment_picture, chosen, shown

    model = load(out)
    pairs = chosen(out)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for one in shown(model, pairs):
        table.add_row("source", one.source)
        table.add_row("translation", f"[bold]{escape(one.translation)}[/]")
        table.add_row("reference", "the same" if one.reference == one.translation else one.reference)
        table.add_row("alignment", f"{pharaoh(one.links)}   [dim]{escape(one.words)}[/]")
        table.add_row()
    console.print(table)
    write_text(out / "alignment.svg", alignment_picture(model, pairs[0][0]))
