"""`qkv fill`: predict masked words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption
from qkv.commands.lines import Line, check_file, chunks, print_answers

if TYPE_CHECKING:
    from qkv.tasks.fill import Filled

TEXT = typer.Argument(help="A text with [MASK] in place of missing words. Default: the lines of --file.")
FILE = typer.Option("--file", help="A file with one text per line. Default, or -: standard input.")
TOP_K = typer.Option("--top-k", min=1, help="Number of words per mask.")


def run(
    folder: Folder,
    text: Annotated[str | None, TEXT] = None,
    file: Annotated[Path | None, FILE] = None,
    top_k: Annotated[int, TOP_K] = 5,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Predict masked words: probability TAB word, most likely first, a blank line after each text.

    In a text with several masks, each line begins with the number of its mask. A line without [MASK], or longer than the
    model's context, gives a message on standard error, and the exit code is 1.

    [dim]qkv fill my-bert "The capital of France is [MASK]."[/]
    [dim]qkv fill my-bert --file gaps.txt --top-k 3 --json[/]
    """
    from qkv.api import load
    from qkv.errors import QkvError

    if text is not None and file is not None:
        raise QkvError("give either a text or --file, not both")
    file = check_file(file)
    model = load(folder, device.value, precision)
    model.fill([])  # report an unsuitable model before reading

    def answer(chunk: list[Line]) -> Iterator[tuple[str, str]]:
        found = model.fill([text or "" for text, _ in chunk], top_k)
        for filled, (_, problem) in zip(found, chunk, strict=True):
            yield format_gaps(filled, problem or filled.problem, as_json), problem or filled.problem

    print_answers(map(answer, chunks(file if text is None else [text])), "filled")


def format_gaps(filled: Filled, problem: str, as_json: bool) -> str:
    """Format lines of probability TAB word, with the number of the gap before them if there are several gaps; or JSON."""
    if as_json:
        return json.dumps(filled.to_json() | ({"problem": problem} if problem else {}), ensure_ascii=False)
    numbers = [f"{number}\t" for number in range(1, len(filled.gaps) + 1)] if len(filled.gaps) > 1 else [""]
    return "".join(
        f"{number}{guess.probability:.4f}\t{guess.word}\n"
        for number, gap in zip(numbers, filled.gaps, strict=False)
        for guess in gap
    )
