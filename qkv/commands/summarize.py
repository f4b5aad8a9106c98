"""`qkv summarize`: summarise texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption
from qkv.commands.lines import Line, check_file, chunks, print_answers
from qkv.commands.translate import Beam

FILE = typer.Argument(metavar="[FILE]", help="A file with one text per line. Default, or -: standard input.")
MAX_LENGTH = typer.Option(min=1, help="Longest summary in tokens. Default: the model's own, else 64.")
WHOLE = typer.Option("--whole", help="Treat the whole file as one text.")


def run(
    folder: Folder,
    file: Annotated[Path | None, FILE] = None,
    whole: Annotated[bool, WHOLE] = False,
    beam: Beam = None,
    max_length: Annotated[int | None, MAX_LENGTH] = None,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Summarise texts: one line each, in order.

    A text longer than the model's context is cut at its end. A line that cannot be
    read gives an empty line and a message on standard error, and the exit code is 1.

    [dim]qkv summarize my-model mails.txt > subjects.txt[/]
    [dim]qkv summarize my-model report.txt --whole --json[/]
    """
    from qkv.api import load
    from qkv.data.lines import read_whole

    file = check_file(file)
    model = load(folder, device.value, precision)
    search: dict[str, Any] = {"beam": beam, "max_length": max_length}
    model.summarize([], **search)  # report an unsuitable model before reading

    def answer(chunk: list[Line]) -> Iterator[tuple[str, str]]:
        found = model.summarize([text or "" for text, _ in chunk], **search)
        for one, (text, reason) in zip(found, chunk, strict=True):
            problem = reason or one.problem or ("" if (text or "").strip() or not whole else "the file is empty")
            fields = {"summary": one.text, "score": one.score} | ({"problem": problem} if problem else {})
            yield json.dumps(fields, ensure_ascii=False) if as_json else " ".join(one.text.split()), problem

    print_answers(map(answer, chunks([read_whole(file or "-")] if whole else file)), "summarised")
