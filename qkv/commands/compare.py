"""`qkv compare`: is one system better than another?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qkv.commands.common import Json
from qkv.commands.evaluate import Lower, Metrics, References, Tokenize, of_run
from qkv.errors import ConfigError

SYSTEMS = typer.Argument(
    metavar="A B ...",
    help="Files of translations, or runs; A is what the others are compared with.",
    show_default=False,
)


def run(
    systems: Annotated[list[Path], SYSTEMS],
    references: References = None,
    metrics: Metrics = "bleu,chrf",
    samples: Annotated[int, typer.Option(min=10, help="Resampled test sets.")] = 1000,
    tokenize: Tokenize = "13a",
    lower: Lower = False,
    as_json: Json = False,
) -> None:
    """Compare systems on the same test set, with paired bootstrap resampling (Koehn 2004).

    p is the chance of a difference as large as this one between equally good systems.

    [dim]qkv compare baseline.txt new.txt --references test.de[/]
    [dim]qkv compare runs/a runs/b                  # two runs with the same test set[/]
    """
    from rich.console import Console
    from rich.table import Table

    from qkv.evaluate.scores import read_sentences
    from qkv.evaluate.significance import compare

    if len(set(systems)) < max(2, len(systems)):
        raise ConfigError("compare takes at least two files, each given once")
    texts = {str(path): read_sentences(of_run(path, "hyp") if path.is_dir() else path) for path in systems}
    targets = [read_sentences(path) for path in references or same_references(systems)]
    rows = compare(texts, targets, metrics.split(","), samples, tokenize, lower)
    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=2, ensure_ascii=False))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("system", "metric", "score", "mean ± 95 %", "difference", "p", ""):
        table.add_column(title, justify="left" if title in ("system", "metric", "") else "right", overflow="fold")
    for row in rows:
        p, verdict = (
            ("", "baseline") if row.p is None else (f"{row.p:.4f}", "significant" if row.significant else "may be luck")
        )
        spread = f"{row.mean:.1f} ± {row.interval:.1f}"
        table.add_row(row.system, row.metric, f"{row.value:.2f}", spread, f"{row.difference:+.2f}", p, verdict)
    Console(highlight=False).print(table)
    for name, signature in {row.metric: row.signature for row in rows}.items():
        print(f"  {name}|{signature}")


def same_references(systems: list[Path]) -> list[Path]:
    """Those of the runs, which must be alike: scores on different test sets cannot be compared."""
    found = [of_run(path, "ref") for path in systems]
    if len({path.read_bytes() for path in found}) > 1:
        raise ConfigError("these runs have different test sets: their scores cannot be compared")
    return found[:1]
