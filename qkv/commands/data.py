"""`qkv data`: inspect a corpus before training on it, or fetch a public data set."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Json, parse_columns, writing
from qkv.errors import ConfigError

if TYPE_CHECKING:
    from qkv.data.inspect import CorpusReport
    from qkv.data.sources import TableSource

app = typer.Typer(help="Inspect a corpus before training on it, or fetch a public data set.", no_args_is_help=True)

WHAT = typer.Argument(
    metavar="RECIPE|FILES", help="A recipe, a table (.tsv .csv .jsonl), or parallel text files, source then target."
)
TOKENIZER = typer.Option(help="Count tokens instead of words: a tokenizer.json, a .model file or a model folder.")
COLUMNS = typer.Option(
    help="The table's columns, by number (every row is a record) or by name. Default: recognised in the header, else 0,1."
)
MAX_LENGTH = typer.Option(min=1, help="Longest side of a pair in words or tokens; longer pairs are dropped.")
MAX_RATIO = typer.Option(min=1.01, help="Largest length ratio of a pair; others are dropped.")
LIMIT = typer.Option(min=0, help="Records to read from each corpus; 0 = all.")
PATH = typer.Option(help="Folder or archive that already holds the data set.")


@app.command("inspect")
def inspect_command(
    what: Annotated[list[Path], WHAT],
    tokenizer: Annotated[Path | None, TOKENIZER] = None,
    columns: Annotated[str | None, COLUMNS] = None,
    max_length: Annotated[int, MAX_LENGTH] = 128,
    max_ratio: Annotated[float, MAX_RATIO] = 9.0,
    limit: Annotated[int, LIMIT] = 1_000_000,
    as_json: Json = False,
) -> None:
    """Report counts, lengths, examples, what training would drop and why, and suspicious lines.

    [dim]qkv data inspect train.en train.de[/]
    [dim]qkv data inspect recipes/demo.toml --tokenizer my-model --json[/]
    """
    from qkv.convert.tokenizer_files import read_tokenizer
    from qkv.data.inspect import words

    count: Any = words if tokenizer is None else read_tokenizer(tokenizer).plain
    unit = "words" if tokenizer is None else "tokens"
    if what[0].suffix == ".toml":
        reports, leaks = inspect_toml(what, count, unit, limit)
    else:
        reports, leaks = inspect_files(what, columns, (max_length, max_ratio), count, unit, limit), {}
    if as_json:
        print(json.dumps({"corpora": [r.to_json() for r in reports], "leaks": leaks}, indent=2, ensure_ascii=False))
        return
    for report in reports:
        print_report(report)
    print_leaks(leaks)


def inspect_toml(what: list[Path], count: Any, unit: str, limit: int) -> tuple[list[CorpusReport], dict[str, int]]:
    """Inspect the corpora of a recipe: reports, and how many records two of its sets share."""
    from qkv.config import load_recipe
    from qkv.data.inspect import inspect_recipe
    from qkv.tasks.base import task_of
    from qkv.tasks.translation import drop_reason

    recipe = load_recipe(what[0])
    data = recipe.data
    if data is None or len(what) > 1:
        raise ConfigError(f"{what[0]} has no [data] to inspect" if data is None else "give one recipe at a time")
    problem = partial(drop_reason, data=data) if recipe.task == "translation" else None
    return inspect_recipe(data, task_of(recipe).schema, [count], unit, limit, problem)


def inspect_files(
    what: list[Path], columns: str | None, most: tuple[int, float], count: Any, unit: str, limit: int
) -> list[CorpusReport]:
    """Inspect a table or parallel files; `most` is the longest side and the largest length ratio of a pair."""
    from qkv.config import CorpusConfig, DataConfig
    from qkv.data.inspect import inspect
    from qkv.data.sources import TABLES, Parallel, Source, ending
    from qkv.tasks.translation import drop_reason

    source: Source = Parallel(what)
    how: dict[str, Any] = {}
    if ending(what[0]) in TABLES and len(what) == 1:
        source, how = read_table(what[0], columns)
    anything = CorpusConfig(grammar=1)
    data = DataConfig(train=(anything,), valid=anything, max_length=most[0], max_ratio=most[1])
    problem = None if how.get("labelled") else partial(drop_reason, data=data)
    return [inspect(source, " + ".join(map(str, what)), [count], unit, problem, limit, **how)]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="multi30k, opus/CORPUS/VERSION, wmt14, glue/sst2, ud/en_ewt ...")],
    source: Annotated[str, typer.Option(help="Language of the source side.")] = "en",
    target: Annotated[str, typer.Option(help="Language of the target side.")] = "de",
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    path: Annotated[Path | None, PATH] = None,
) -> None:
    """Fetch a public data set into the cache, check it, and print its records as tab-separated lines.

    [dim]qkv data fetch multi30k --source en --target de --split test > test.tsv[/]
    [dim]qkv data fetch glue/sst2 --split valid --path FOLDER | head[/]
    """
    from qkv.config import CorpusConfig, DataConfig
    from qkv.data.corpora import open_dataset

    anything = CorpusConfig(grammar=1)
    data = DataConfig(train=(anything,), valid=anything, source=source, target=target)
    found = open_dataset(name, data, split, path)
    with writing():
        for _, record in found.read():
            print("\t".join(text.replace("\t", " ").replace("\n", " ") for text in record))
        sys.stdout.flush()


def read_table(path: Path, columns: str | None) -> tuple[TableSource, dict[str, Any]]:
    """Choose the columns of a table to inspect, and print a note on a header row."""
    from qkv.data.header import guess_columns, names_of
    from qkv.data.schema import LABEL, SOURCE
    from qkv.data.sources import JSON_LINES, TableSource, ending

    if columns is not None:
        chosen = parse_columns(columns)
        return TableSource(path, chosen), {"sides": [f"column {c}" if isinstance(c, int) else c for c in chosen]}
    names = names_of(path)
    if not names:
        return TableSource(path, (0, 1)), {"sides": ["column 0", "column 1"]}
    guessed = guess_columns(names) or []
    kinds, found = [column for column, _ in guessed], [name for _, name in guessed] or list(names[:2])
    if ending(path) not in JSON_LINES:
        print(f"the first row of {path} is a header ({', '.join(names)[:300]})", file=sys.stderr)
    return TableSource(path, found), {"sides": found, "labelled": LABEL in kinds, "pairs": SOURCE in kinds}


def print_report(report: CorpusReport) -> None:
    from qkv.text.wording import plural

    more = " (and more: see --limit)" if report.partial else ""
    print(f"{report.name}: {plural(report.records, 'records')}{more}")
    labels = report.labels or Counter[str]()
    for number, (side, lengths) in enumerate(zip(report.sides, report.lengths, strict=True), 1):
        n = lengths.to_json()
        if labels and number == len(report.sides):
            print(f"\n  {side}: {len(labels):,} different")
            print_bars([(shorten(name, 20), count) for name, count in labels.most_common(20)], 20)
            continue
        quantiles = "  ".join(f"{key} {n[key]:,}" for key in ("p5", "p50", "p95", "p99", "max"))
        print(f"\n  {side}: {plural(n['total'], report.unit)}, mean {n['mean']:.1f}  {quantiles}")
        print_bars([(f"{a}-{b}" if a < b else f"{a}", count) for a, b, count in lengths.histogram()], 11)
    for title, counts in (("unreadable", report.unreadable), ("training drops", report.dropped)):
        for reason, count in counts.most_common():
            print(f"\n  {title}: {count:,} {reason}", end="")
    print()
    for reason in [*(["examples"] if report.records else []), *dict(report.suspicious.most_common())]:
        print(f"\n  {reason}" + (f": {report.suspicious[reason]:,}" if reason in report.suspicious else ""))
        for number, record in report.shown[reason]:
            print(f"    {number:>8,}  {'  |  '.join(shorten(text) for text in record)}")
    print()


def print_leaks(leaks: dict[str, int]) -> None:
    """Print a line for each held-out set: how many of its texts are in the training set."""
    from qkv.text.wording import plural

    for name, number in leaks.items():
        are, flatters = "is" if number == 1 else "are", ": scores on it will be too high" if number else ""
        print(f"{name}: {plural(number, 'texts')} {are} also in the training set{flatters}")


def print_bars(rows: list[tuple[str, int]], width: int) -> None:
    """Print a bar for each name and count; `width`: characters of a name."""
    most = max((count for _, count in rows), default=1)
    for name, count in rows:
        print(f"  {name:>{width}} {'█' * round(40 * count / most):<40} {count:,}")


def shorten(text: str, most: int = 80) -> str:
    """Cut a text to `most` characters and escape those that are not printable."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: most + 1])
    return shown if len(shown) <= most else shown[:most] + "…"
