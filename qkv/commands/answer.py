"""`qkv answer`: answer questions about a text with words of the text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption, writing
from qkv.errors import FileError, QkvError

QUESTION = typer.Argument(metavar="[QUESTION|FILE]",
                          help="A question, with --context; otherwise a file of JSON lines. Default, or -: standard input.")  # fmt: skip
CONTEXT = typer.Option(metavar="FILE", help="A file with the text that answers the question; - is standard input.")
NO_ANSWER = typer.Option("--no-answer", help="Allow an empty answer, for models trained on unanswerable questions.")
CHUNK = 64
"""Questions per chunk."""


def run(
    folder: Folder,
    question: Annotated[str | None, QUESTION] = None,
    context: Annotated[Path | None, CONTEXT] = None,
    no_answer: Annotated[bool, NO_ANSWER] = False,
    max_answer: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 30,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Answer a question about a text with words of the text.

    For many questions, give lines of JSON, {"question": "...", "context": "..."}; the output has one JSON object per
    line: the answer, its score (a probability) and its position in the context. An empty answer means that there is none.

    [dim]qkv answer my-reader "Who sleeps?" --context story.txt[/]
    [dim]qkv answer my-reader questions.jsonl > answers.jsonl[/]
    """
    from qkv.api import load
    from qkv.data.lines import open_binary, read_whole

    name = question or "-"
    text = None if context is None else read_whole(context).rstrip("\n")
    if text is not None and not text.strip():
        raise FileError(f"{context} is empty: give a file with the text that answers the question")
    if text is None and name != "-":
        if not Path(name).exists():
            raise FileError(
                f"{name!r} is not a file of questions; to answer it as a question, give the text with --context FILE"
            )
        open_binary(name).close()  # report a wrong path before loading the model
    model = load(folder, device.value, precision)
    if text is not None:
        if not (question or "").strip():
            raise QkvError('--context needs a question: qkv answer FOLDER "Who?" --context FILE')
        found = model.answer(str(question), text, no_answer=no_answer, max_answer=max_answer)
        with writing():
            print(json.dumps(found._asdict(), ensure_ascii=False) if as_json else " ".join(found.text.split()))
        return
    model.answer([], [])  # report an unsuitable model before reading
    with writing():
        rows = records(name)
        while some := list(islice(rows, CHUNK)):
            asked = [row["question"] for row in some], [row["context"] for row in some]
            for found in model.answer(*asked, no_answer=no_answer, max_answer=max_answer):
                print(json.dumps(found._asdict(), ensure_ascii=False))
            sys.stdout.flush()


def records(name: str) -> Iterator[dict[str, Any]]:
    """Read lines of JSON and check them."""
    from qkv.data.lines import MAX_ROW, Lines

    reader = Lines(name, longest=MAX_ROW)
    for text in reader:
        if text is not None and not text.strip():
            continue
        try:
            row = json.loads(text or "")
            good = isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("question", "context"))
        except (ValueError, RecursionError):
            good = False
        if not good:
            where = f"{'standard input' if name == '-' else name}, line {reader.number}"
            why = ", ".join(reader.skipped) or 'it is not {"question": "...", "context": "..."}'
            raise FileError(f"{where}: {why}; correct it")
        yield row
