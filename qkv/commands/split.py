"""`qkv split`: split a file or parallel files into train, valid and test sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Json, parse_columns
from qkv.errors import ConfigError

if TYPE_CHECKING:
    from qkv.data.raw_records import RawRecords
    from qkv.data.split import SplitPlan

SplitFormat = StrEnum("SplitFormat", "auto tsv csv jsonl conll lines blank")
FILES = typer.Argument(
    metavar="FILE",
    help="A table (.tsv .csv .jsonl), a CoNLL file (.conllu .conll), a text; or parallel text files. May be compressed."
)  # fmt: skip
SIZE = "set: a fraction (0.1 or 10%) or a number of records (500); 0 = none."
OUT = typer.Option(metavar="FOLDER", help="Output folder; default: that of the file.")
FORMAT = typer.Option(
    "--format", help="File format; auto: from the file extension. blank: documents separated by blank lines."
)
SHUFFLE = typer.Option(help="Shuffle before splitting; --no-shuffle holds out the end of the file.")
GROUP = typer.Option(metavar="COLUMN", help="Keep rows with the same value together: an author, a document.")
STRATIFY = typer.Option(metavar="COLUMN", help="Keep the label distribution of this column the same in every set.")
TEXT = typer.Option(
    metavar="COLUMNS", help="Columns used to find duplicates, such as text,title. Default: the text columns."
)
HEADER = typer.Option("--header/--no-header", help="Whether the first row is a header. Default: detect it.")


def run(
    files: Annotated[list[Path], FILES],
    valid: Annotated[str, typer.Option(metavar="SIZE", help=f"Size of the validation {SIZE}")] = "0.1",
    test: Annotated[str, typer.Option(metavar="SIZE", help=f"Size of the test {SIZE}")] = "0.1",
    out: Annotated[Path | None, OUT] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")] = 1,
    shuffle: Annotated[bool, SHUFFLE] = True,
    group: Annotated[str | None, GROUP] = None,
    stratify: Annotated[str | None, STRATIFY] = None,
    text: Annotated[str | None, TEXT] = None,
    given: Annotated[SplitFormat, FORMAT] = SplitFormat.auto,
    header: Annotated[bool | None, HEADER] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: Json = False,
) -> None:
    """Split a data set into train, valid and test files.

    Records with the same text (ignoring case and whitespace) go to the same set,
    so no text occurs in two sets; in parallel files an equal source or an equal
    target is enough. Records are copied unchanged, in file order; a header row is
    written to every file. Give columns by name, or by number from 0.

    [dim]qkv split reviews.csv --stratify label --out data[/]
    [dim]qkv split corpus.en corpus.de --valid 1000 --test 1000[/]
    [dim]qkv split posts.jsonl --group author --test 20%[/]
    [dim]qkv split treebank.conllu --seed 2[/]
    [dim]qkv split log.tsv.gz --no-shuffle          # the newest rows are the test set[/]
    """
    from qkv.data.raw_records import RawRecords
    from qkv.data.split import plan

    if "-" in map(str, files):
        raise ConfigError("standard input is read once, but splitting reads its input twice: give a file")
    kind = "" if given is SplitFormat.auto else given.value
    source = RawRecords(files, kind, parse_columns(text), column(group), column(stratify), header)
    folder = out or next(parent for parent in files[0].parents if not parent.is_file())
    names = choose_paths(source, folder, {"valid": valid, "test": test}, force)
    found = plan(source, valid, test, seed, shuffle)
    folder.mkdir(parents=True, exist_ok=True)
    copy(source, found, names)
    if as_json:
        print(json.dumps(as_fields(source, found, names), indent=2, ensure_ascii=False))
    else:
        print("\n".join([*summary(source, found, names), "", *recipe_lines(source, folder, names)]))


def column(name: str | None) -> int | str | None:
    return int(name) if name is not None and name.isdecimal() else name


# --- files


def choose_paths(source: RawRecords, folder: Path, sizes: dict[str, str], force: bool) -> dict[str, list[Path]]:
    """Return the files of each split; raise an error if one would overwrite an existing file or the input."""
    from qkv.data.split import SPLITS, file_names, size

    wanted = [name for name in SPLITS if name not in sizes or size(sizes[name], 1, name)]
    paths = {name: [folder / file for file in file_names(source, name)] for name in wanted}
    inputs = {Path(path).resolve() for path in source.paths}
    for path in (path for some in paths.values() for path in some):
        if path.resolve() in inputs:
            raise ConfigError(f"{path} is the input file: choose another folder with --out")
        if path.exists() and not force:
            raise ConfigError(f"{path} exists: choose another folder with --out, or overwrite it with --force")
    return paths


def copy(source: RawRecords, found: SplitPlan, names: dict[str, list[Path]]) -> None:
    """Write all files under temporary names, and rename them when all are complete."""
    from qkv.convert.files import atomically
    from qkv.data.split import write

    def write_all(temporary: dict[Path, str]) -> None:
        with ExitStack() as stack:
            files = {
                path: stack.enter_context(open(name, "w", encoding="utf-8", newline="\n"))
                for path, name in temporary.items()
            }
            write(source, found, {name: [files[path] for path in paths] for name, paths in names.items()})

    def nested(paths: Sequence[Path], temporary: dict[Path, str]) -> None:
        if not paths:
            write_all(temporary)
        else:
            atomically(paths[0], lambda name: nested(paths[1:], {**temporary, paths[0]: name}))

    nested([path for paths in names.values() for path in paths], {})


# --- what is printed


def summary(source: RawRecords, found: SplitPlan, names: dict[str, list[Path]]) -> list[str]:
    """Describe the split: sizes, groups that were kept together, records that were left out."""
    from qkv.text.wording import plural

    title = " + ".join(map(str, source.paths))
    if source.has_header:
        title += f" (the first row is a header: {', '.join(source.names)[:200]})"
    elif source.kind == "blank":
        title += " (documents between blank lines)"
    lines = [f"{plural(len(found.split), source.noun)} of {title}"]
    for name, paths in names.items():
        short = found.wanted.get(name, 0) - found.counts[name]
        lines.append(
            f"  {name:<6}{found.counts[name]:>10,}  {' '.join(map(str, paths))}"
            + (f"  ({short:,} fewer than requested: groups are not divided)" if short > 0 else "")
        )
    groups, members, largest = found.repeated()
    where = [f"column {c}" if isinstance(c, int) else c for c in source.text]
    same = "an equal source or target" if source.kind == "parallel" and len(source.paths) == 2 else "an equal text"
    same += f" in {' or '.join(where)}" if where else ""
    same += f" or the same {source.group}" if source.group is not None else ""
    if groups:
        lines.append(
            f"kept together: {plural(members, source.noun)} in {plural(groups, 'groups')} with {same}; the largest "
            f"has {largest:,}"
        )
    else:
        lines.append(f"no two {source.noun} have {same}")
    return lines + [f"left out: {count:,} {reason}" for reason, count in source.skipped.most_common()]


def as_fields(source: RawRecords, found: SplitPlan, names: dict[str, list[Path]]) -> dict[str, Any]:
    groups, members, largest = found.repeated()
    sets = {name: {"records": found.counts[name], "files": list(map(str, paths))} for name, paths in names.items()}
    kept = {"groups": groups, "records": members, "largest": largest, "columns": list(source.text)}
    return {"records": len(found.split), "header": list(source.names), "splits": sets, "together": kept,
            "left_out": dict(source.skipped)}  # fmt: skip


def recipe_lines(source: RawRecords, folder: Path, names: dict[str, list[Path]]) -> list[str]:
    """Return the [data] table of a recipe that reads these files."""
    from qkv.data.header import guess_columns, language

    lines = ["# in a recipe, for qkv train:", "[data]", f"root = {json.dumps(str(folder), ensure_ascii=False)}"]
    if source.kind == "parallel" and len(source.paths) == 2:
        spoken = [language(path.suffix.removeprefix(".").lower()) for path in names["train"]]
        lines += [f'{side} = "{code}"' for side, code in zip(("source", "target"), spoken, strict=True) if code]
    for name, paths in names.items():
        files = json.dumps([path.name for path in paths], ensure_ascii=False)
        if source.kind in ("tsv", "csv", "jsonl"):
            corpus = f"table = {files[1:-1]}"
        else:
            corpus = f"files = {files}"
            corpus += f', documents = "{source.kind}"' if source.kind in ("lines", "blank") else ""
        lines.append(f"{name} = [{{ {corpus} }}]" if name == "train" else f"{name} = {{ {corpus} }}")
    if "valid" not in names:
        lines.append("# a recipe needs a validation set: leave out --valid 0, or name another file")
    if source.names and not guess_columns(source.names):
        shown = json.dumps(source.names[:2], ensure_ascii=False)
        lines.append(f"# if the columns are not recognised, name them: {{ table = ..., columns = {shown} }}")
    return lines
