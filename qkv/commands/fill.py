"""`qkv fill`: predict masked words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, writing
from qkv.commands.translate import chunks

if TYPE_CHECKING:
    from qkv.tasks.fill import Filled

TEXT = typer.Argument(
    help="A text with [MASK] in place of missing words. Default: the lines of --file.", show_default=False
)
FILE = typer.Option("--file", help="A file with one text per line. Default, or -: standard input.", show_default=False)
TOP_K = typer.Option("--top-k", min=1, help="Number of words per mask.")


def run(
    folder: Folder,
    text: Annotated[str | None, TEXT] = None,
    file: Annotated[Path | None, FILE] = None,
    top_k: Annotated[int, TOP_K] = 5,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Predict masked words: probability TAB word, most likely first, a blank line after each text.

    With several masks in a text, their number comes first. A line without [MASK], or longer than the model's
    context, gives a message on standard error, and the exit code is 1.

    [dim]qkv fill my-bert "The capital of France is [MASK]."[/]
    [dim]qkv fill my-bert --file gaps.txt --top-k 3 --json[/]
    """
    from qkv.api import load
    from qkv.data.lines import open_binary
    from qkv.errors import QkvError

    if text is not None and file is not None:
        raise QkvError("give either a text or --file, not both")
    file = None if str(file) == "-" else file
    if file is not None:
        open_binary(file).close()  # report a wrong path before loading the model
    model = load(folder, device=device.value)
    model.fill([])  # and an unsuitable model before reading
    done = problems = 0
    with writing():
        for texts, wrong in [([text], [""])] if text is not None else lines(file):
            for problem, filled in zip(wrong, model.fill(texts, top_k), strict=True):
                done += 1
                if problem := problem or filled.problem:
                    problems += 1
                    print(f"line {done} is not filled: {problem}", file=sys.stderr)
                fields = filled.to_json() | ({"problem": problem} if problem else {})
                print(json.dumps(fields, ensure_ascii=False) if as_json else format_gaps(filled))
            sys.stdout.flush()
    if problems:
        raise typer.Exit(1)


def lines(file: Path | None) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Yield texts, and what is wrong with each line."""
    for chunk in chunks(file):
        yield [text or "" for text, _ in chunk], [problem for _, problem in chunk]


def format_gaps(filled: Filled) -> str:
    """Format lines of probability TAB word, with the number of the gap before them if there are several gaps."""
    numbers = [f"{number}\t" for number in range(1, len(filled.gaps) + 1)] if len(filled.gaps) > 1 else [""]
    return "".join(
        f"{number}{guess.probability:.4f}\t{guess.word}\n"
        for number, gap in zip(numbers, filled.gaps, strict=False)
        for guess in gap
    )
