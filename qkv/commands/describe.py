"""`qkv describe`: write captions for images."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption
from qkv.commands.lines import print_answers
from qkv.commands.translate import Beam
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api import Model

PICTURES = typer.Argument(
    metavar="IMAGE", help="Image files (PNG, JPEG ...). Default, or -: paths on standard input, one per line."
)
MAX_LENGTH = typer.Option(min=1, help="Longest caption in tokens. Default: the model's own.")
CHUNK = 64
"""Images per chunk."""


def run(
    folder: Folder,
    pictures: Annotated[list[str] | None, PICTURES] = None,
    beam: Beam = None,
    max_length: Annotated[int | None, MAX_LENGTH] = None,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Write a caption for each image: one line each, in order.

    A file that is not an image gives an empty line and a message on standard
    error, and the exit code is 1.

    [dim]qkv describe my-model holiday.jpg cat.png[/]
    [dim]ls pictures/*.png | qkv describe my-model --json[/]
    """
    from qkv.api import load

    model = load(folder, device.value, precision)
    search: dict[str, Any] = {"beam": beam, "max_length": max_length}
    model.describe([], **search)  # report an unsuitable model before reading

    def show(path: str, one: Any, problem: str) -> str:
        if not as_json:
            return one.text if one else ""
        said = {"text": one.text, "score": one.score} if one else {"text": "", "problem": problem}
        return json.dumps({"picture": path, **said}, ensure_ascii=False)

    print_answers(answers(model, pictures, lambda some: model.describe(some, **search), show))


def answers(model: Model, paths: Sequence[str] | None, ask: Callable[[list[Any]], list[Any]],
            show: Callable[[str, Any, str], str]) -> Iterator[list[tuple[str, str]]]:  # fmt: skip
    """Yield for each image of a chunk `show(path, answer or None, problem)`, and the problem: why it could not be read, or ""."""
    from qkv.data.images import pixels

    for chunk in chunks(paths):
        tables, problems = [], [""] * len(chunk)
        for number, path in enumerate(chunk):
            try:
                tables.append(pixels(Path(path), model.config.image_size or 0, model.config.n_channels))
            except QkvError as error:
                problems[number] = str(error)
        found = iter(ask(tables))
        rows = zip(chunk, problems, strict=True)
        yield [(show(path, None if problem else next(found), problem), problem) for path, problem in rows]


def chunks(paths: Sequence[str] | None) -> Iterator[list[str]]:
    """Yield chunks of paths, from the command line or standard input."""
    given = sys.stdin if not paths or list(paths) == ["-"] else paths
    if given is None:
        raise QkvError("no image given and no standard input: name an image file")
    lines = (line for path in given if (line := path.strip("\r\n")))
    while some := list(islice(lines, CHUNK)):
        yield some
