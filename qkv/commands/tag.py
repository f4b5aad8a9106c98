"""`qkv tag`: sentences in, their words with a tag each out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, writing
from qkv.commands.translate import CHUNK, chunks

if TYPE_CHECKING:
    from qkv.tasks.tagging import Tagged

FILE = typer.Argument(metavar="[FILE]", help="Sentences; default, and -: standard input.", show_default=False)


class Format(StrEnum):
    """How sentences are given."""

    text = "text"
    conll = "conll"


FORMAT = typer.Option(
    "--format",
    help="text: a sentence per line. conll: a word per line, in the first column (of CoNLL-U: the second), blank line after each sentence.",
)


def run(
    folder: Folder,
    file: Annotated[Path | None, FILE] = None,
    given: Annotated[Format, FORMAT] = Format.text,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Tag the words of sentences: word TAB tag on each line, a blank line after each sentence.

    A line of text is cut into words and marks; words that are cut already come as --format conll. A line that is no
    text gives an empty sentence and a message on standard error, and the exit code is 1.

    [dim]echo "The old man sleeps." | qkv tag my-tagger[/]
    [dim]qkv tag my-tagger test.conllu --format conll --json[/]
    """
    from qkv.api import load
    from qkv.data.lines import open_binary

    file = None if str(file) == "-" else file
    if file is not None:
        open_binary(file).close()  # a wrong path is said before the model is read
    model = load(folder, device=device.value)
    model.tag([])  # so is a model that cannot tag
    done = problems = 0
    with writing():
        for sentences, wrong in texts(file) if given is Format.text else words(file):
            for problem, tagged in zip(wrong, model.tag(sentences), strict=True):
                done += 1
                if problem:
                    problems += 1
                    print(f"line {done} is not tagged: {problem}", file=sys.stderr)
                print(shown(tagged, problem, as_json))
            sys.stdout.flush()
    if problems:
        raise typer.Exit(1)


def texts(file: Path | None) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Lines of text, and what is wrong with each."""
    for chunk in chunks(file):
        yield [text or "" for text, _ in chunk], [problem for _, problem in chunk]


def words(file: Path | None) -> Iterator[tuple[Sequence[list[str]], list[str]]]:
    """Sentences of a column of words."""
    from qkv.data.tagged import Tagged

    source = Tagged(file or "-", tags=False).sentences()
    while some := list(islice(source, CHUNK)):
        yield [[word for word, _ in rows] for rows in some], [""] * len(some)


def shown(tagged: list[Tagged], problem: str, as_json: bool) -> str:
    if not as_json:
        return "".join(f"{one.word}\t{one.tag}\n" for one in tagged)  # print adds the blank line
    fields = {"words": [one.word for one in tagged], "tags": [one.tag for one in tagged],
              "probabilities": [round(one.probability, 6) for one in tagged]}  # fmt: skip
    return json.dumps(fields | ({"problem": problem} if problem else {}), ensure_ascii=False)
