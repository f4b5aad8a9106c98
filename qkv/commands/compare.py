"""`qkv compare`: compare systems on a test set, with significance tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.ablate import Samples
from qkv.commands.common import Device, DeviceOption, Json, align_columns, parse_columns, to_stderr
from qkv.commands.evaluate import Columns, Data, Lower, References, Tokenize, no_tables, of_run
from qkv.errors import ConfigError

if TYPE_CHECKING:
    from qkv.evaluate.significance import Comparison, RunScores

SYSTEMS = typer.Argument(
    metavar="A B ...",
    help="Runs or models of one task, or files of translations; A is the baseline. Separate several runs (seeds) of one "
    "system with commas.",
)
METRICS = typer.Option(
    help="Translations and captions: comma-separated list of bleu, chrf, ter. Default: bleu,chrf; for captions bleu."
)
PAIRED = typer.Option(
    "--paired", help="With several runs per system: paired t-test, which pairs the runs of A and B in the order given."
)


def run(
    systems: Annotated[list[str], SYSTEMS],
    data: Data = None,
    columns: Columns = None,
    references: References = None,
    metrics: Annotated[str | None, METRICS] = None,
    samples: Samples = 1000,
    paired: Annotated[bool, PAIRED] = False,
    tokenize: Tokenize = "13a",
    lower: Lower = False,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Compare models of one task on the same test set, with significance tests.

    p is the probability of a difference at least as large as this one if the
    systems were equally good. Accuracy: McNemar's test. F1, ROUGE, correlations, losses:
    approximate randomisation. BLEU, chrF2, TER: paired bootstrap (Koehn 2004).
    Several runs (seeds) of each: mean, standard deviation, Welch's t-test.

    Runs with the same test set are compared by their stored predictions. With
    --data all of them are evaluated on that file first.

    [dim]qkv compare runs/a runs/b                  # two runs with the same test set[/]
    [dim]qkv compare runs/a runs/b --data new.tsv --columns text,label[/]
    [dim]qkv compare runs/a-1,runs/a-2,runs/a-3 runs/b-1,runs/b-2,runs/b-3[/]
    [dim]qkv compare baseline.txt new.txt --references test.de[/]
    """
    groups = [members(system) for system in systems]
    paths = [path for group in groups for path in group]
    check_systems(groups, paths)
    names, how = metrics.split(",") if metrics else [], {"tokenize": tokenize, "lowercase": lower}
    if references or not all(path.is_dir() for path in paths):
        if data or len(paths) > len(groups):
            raise ConfigError(
                "--data and comma-separated groups need runs; compare files of translations with --references FILE"
            )
        return show(translations(paths, references, names, samples, how), as_json)
    from qkv.train.compare import compare_runs, compare_seeds

    files, cells = data or [], parse_columns(columns)
    if columns and not data:
        raise ConfigError("--columns selects columns of a table: give the table with --data FILE")
    if len(paths) > len(groups):
        return show_groups(compare_seeds(groups, to_stderr, files, cells, paired, device.value), as_json)
    if paired:
        raise ConfigError("--paired is for several runs of each system: runs/a-1,runs/a-2 runs/b-1,runs/b-2")
    return show(compare_runs(paths, to_stderr, files, cells, samples, names, how, device.value), as_json)


def check_systems(groups: list[list[Path]], paths: list[Path]) -> None:
    """Refuse fewer than two systems, one that is given twice, and one that does not exist."""
    if len(groups) < 2 or len(set(paths)) < len(paths):
        raise ConfigError("compare takes at least two files, runs or groups of runs, each given once")
    if absent := [path for path in paths if not path.exists()]:
        raise ConfigError(f"{absent[0]} does not exist: give existing runs, models or files of translations")


def members(system: str) -> list[Path]:
    """Return the runs of one argument; a comma in the name of an existing file is part of the name."""
    if Path(system).exists() or "," not in system:
        return [Path(system)]
    return [Path(name) for name in system.split(",") if name]


def translations(paths: list[Path], references: list[Path] | None, metrics: list[str], samples: int, how: dict[str, Any]
                 ) -> list[Comparison]:  # fmt: skip
    """Compare files of translations, and runs among them, on the same references."""
    from qkv.evaluate.scores import read_sentences
    from qkv.evaluate.significance import compare

    if not references:
        raise ConfigError(
            f"{next(p for p in paths if not p.is_dir())} is not a run: give the correct translations with --references FILE"
        )
    no_tables(*paths, *references)
    texts = {str(path): read_sentences(of_run(path, "hyp") if path.is_dir() else path) for path in paths}
    return compare(texts, [read_sentences(path) for path in references], metrics or ("bleu", "chrf"), samples, **how)


def show(rows: list[Comparison], as_json: bool) -> None:
    """Print one line per system and metric."""
    from qkv.train.report import digits

    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=2, ensure_ascii=False))
        return
    drawn = ["mean ± 95 %"] if any(row.mean is not None for row in rows) else []
    cells = []
    for row in rows:
        spread = "" if row.mean is None or row.interval is None else f"{row.mean:.1f} ± {row.interval:.1f}"
        score = [digits(row.value), spread] if drawn else [digits(row.value)]
        cells.append([row.system, row.metric, *score, *verdict(row, row.value)])
    table(["system", "metric", "score", *drawn, "difference", "p", ""], cells)
    for name, signature in {row.metric: row.signature for row in rows}.items():
        print(f"  {name}|{signature}")


def show_groups(rows: list[RunScores], as_json: bool) -> None:
    """Print one line per system and metric, over its runs."""
    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=2, ensure_ascii=False))
        return
    cells = []
    for row in rows:
        name = f"{row.system.partition(',')[0]}, ..."
        places = 2 if abs(row.mean) >= 10 else 4
        spread = f"{row.mean:.{places}f} ± {row.deviation:.{places}f}"
        cells.append([name, row.metric, str(len(row.values)), spread, *verdict(row, row.mean)])
    table(["system", "metric", "runs", "mean ± sd", "difference", "p", ""], cells)
    print(f"  {rows[0].test}; sd = standard deviation over runs")


def verdict(row: Comparison | RunScores, score: float) -> list[str]:
    """The difference from the baseline, with as many digits as the score has, its p, and what that means."""
    if row.p is None:
        return ["", "", "baseline"]
    difference = f"{row.difference:+.2f}" if abs(score) >= 10 else f"{row.difference:+.4f}"
    return [difference, f"{row.p:.4f}", "significant" if row.significant else "not significant"]


def table(titles: list[str], rows: list[list[str]]) -> None:
    left = [at for at, title in enumerate(titles) if title in ("system", "metric", "")]
    print("\n".join(align_columns([titles, *rows], left)))
