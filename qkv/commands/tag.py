"""`qkv tag`: tag the words of sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption
from qkv.commands.lines import CHUNK, check_file, chunks, print_answers

if TYPE_CHECKING:
    from qkv.tasks.tagging import Tagged

FILE = typer.Argument(metavar="[FILE]", help="A file of sentences. Default, or -: standard input.")
TagFormat = StrEnum("TagFormat", "text conll")
FORMAT = typer.Option(
    "--format",
    help="text: one sentence per line. conll: one word per line (first column; CoNLL-U: second), blank line after each sentence.",
)


def run(
    folder: Folder,
    file: Annotated[Path | None, FILE] = None,
    given: Annotated[TagFormat, FORMAT] = TagFormat.text,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Tag the words of sentences: word TAB tag on each line, a blank line after each sentence.

    Text is split into words and punctuation; for text that is already split, use --format conll. A line that cannot be
    read gives an empty sentence and a message on standard error, and the exit code is 1.

    [dim]echo "The old man sleeps." | qkv tag my-tagger[/]
    [dim]qkv tag my-tagger test.conllu --format conll --json[/]
    """
    from qkv.api import load

    file = check_file(file)
    model = load(folder, device.value, precision)
    model.tag([])  # report an unsuitable model before reading

    def answer(chunk: Sequence[tuple[Any, str]]) -> Iterator[tuple[str, str]]:
        found = model.tag([sentence or "" for sentence, _ in chunk])
        for tagged, (_, problem) in zip(found, chunk, strict=True):
            yield format_tags(tagged, problem, as_json), problem

    print_answers(map(answer, chunks(file) if given is TagFormat.text else words(file)), "tagged")


def words(file: Path | None) -> Iterator[list[tuple[list[str], str]]]:
    """Yield sentences of a CoNLL file."""
    from qkv.data.tagged import ConllSource

    source = ConllSource(file or "-", tags=False).sentences()
    while some := list(islice(source, CHUNK)):
        yield [([word for word, _ in rows], "") for rows in some]


def format_tags(tagged: list[Tagged], problem: str, as_json: bool) -> str:
    """Format one sentence: word TAB tag on each line, or JSON."""
    if not as_json:
        return "".join(f"{one.word}\t{one.tag}\n" for one in tagged)  # print adds the blank line
    fields = {"words": [one.word for one in tagged], "tags": [one.tag for one in tagged],
              "probabilities": [round(one.probability, 6) for one in tagged]}  # fmt: skip
    return json.dumps(fields | ({"problem": problem} if problem else {}), ensure_ascii=False)
