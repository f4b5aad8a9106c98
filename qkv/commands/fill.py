"""`qkv fill`: texts with gaps in, words for the gaps out."""

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

TEXT = typer.Argument(help="A text with [MASK] where words are missing; without it, --file.", show_default=False)
FILE = typer.Option("--file", help="A text per line; default, and -: standard input.", show_default=False)
TOP_K = typer.Option("--top-k", min=1, help="Words for each gap.")


def run(
    folder: Folder,
    text: Annotated[str | None, TEXT] = None,
    file: Annotated[Path | None, FILE] = None,
    top_k: Annotated[int, TOP_K] = 5,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Guess the words under [MASK]: for each gap its likeliest words and their probabilities, a blank line after each text.

    A line without a gap, or longer than the model reads, gives a message on standard error, and the exit code is 1.

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
        open_binary(file).close()  # a wrong path is said before the model is read
    model = load(folder, device=device.value)
    model.fill([])  # so is a model that cannot do it
    done = problems = 0
    with writing():
        for texts, wrong in [([text], [""])] if text is not None else lines(file):
            for problem, filled in zip(wrong, model.fill(texts, top_k), strict=True):
                done += 1
                if problem := problem or filled.problem:
                    problems += 1
                    print(f"line {done} is not filled: {problem}", file=sys.stderr)
                fields = filled.to_json() | ({"problem": problem} if problem else {})
                print(json.dumps(fields, ensure_ascii=False) if as_json else shown(filled))
            sys.stdout.flush()
    if problems:
        raise typer.Exit(1)


def lines(file: Path | None) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Lines of text, and what is wrong with each."""
    for chunk in chunks(file):
        yield [text or "" for text, _ in chunk], [problem for _, problem in chunk]


def shown(filled: Filled) -> str:
    """gap TAB probability TAB word, gaps numbered from 1 where there are several; print adds the blank line."""
    numbers = [f"{number}\t" for number in range(1, len(filled.gaps) + 1)] if len(filled.gaps) > 1 else [""]
    return "".join(
        f"{number}{guess.probability:.4f}\t{guess.word}\n"
        for number, gap in zip(numbers, filled.gaps, strict=False)
        for guess in gap
    )
