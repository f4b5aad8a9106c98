"""`qkv classify`: label texts, pairs of texts or images."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption
from qkv.commands.describe import answers
from qkv.commands.lines import Line, check_file, chunks, print_answers
from qkv.commands.tables import columns_to_read
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api import Model
    from qkv.tasks.classifier import Classification

FILE = typer.Argument(
    metavar="[FILE]",
    help="A file with one text per line, or a table; for an image classifier, image files. Default, or -: standard input."
)  # fmt: skip
TOP = typer.Option("--top-k", min=1, help="Number of labels, most likely first: label TAB probability TAB label ...")
PAIRS = typer.Option(
    "--pairs/--no-pairs",
    help="Each line is a pair of texts, separated by a tab. Default: as the model was trained."
)  # fmt: skip


def run(
    folder: Folder,
    files: Annotated[list[str] | None, FILE] = None,
    pairs: Annotated[bool | None, PAIRS] = None,
    top_k: Annotated[int, TOP] = 1,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Classify texts or images: one line each, label TAB probability; for a regression the score.

    Lines keep their order; an empty line gives an empty line. A text longer than
    the model's context is cut, and standard error reports how many were. A line
    that cannot be read gives an empty line and a message on standard error, and
    the exit code is 1.

    [dim]echo "What a lovely film!" | qkv classify my-model[/]
    [dim]qkv classify my-model pairs.tsv --pairs --json[/]
    [dim]qkv classify my-vision-model cat.png dog.png --top-k 3[/]
    """
    from qkv.api import load

    model = load(folder, device.value, precision)
    model.classify([])  # a model that has no classes says so before anything is read
    if model.config.image_size is not None:
        show = lambda path, one, problem: format_answer(one, problem, as_json, top_k, path)  # noqa: E731
        return print_answers(answers(model, files, model.classify, show))
    if files and len(files) > 1:
        raise QkvError(f"a text classifier reads one file, given {len(files)}: run it once per file")
    file = check_file(files[0] if files else None)
    pairs = bool(model.usage.pairs) if pairs is None else pairs
    columns = columns_to_read(file, "classification", count=2 if pairs else 1)
    return print_answers(classify_lines(model, file, columns, pairs, as_json, top_k), "classified")


def classify_lines(model: Model, file: Path | None, columns: Sequence[int | str], pairs: bool, as_json: bool,
                   top_k: int) -> Iterator[list[tuple[str, str]]]:  # fmt: skip
    """Classify all lines; yield the answers and problems of each chunk, and report at the end how many texts were cut."""
    done = cut = 0
    for chunk in chunks(file, columns):
        lines = [split_pair(line, pairs) for line in chunk]
        found = iter(model.classify([text for text, problem in lines if text and not problem]))
        answers = [(next(found) if text and not problem else None, problem) for text, problem in lines]
        done, cut = done + len(lines), cut + sum(one is not None and one.cut for one, _ in answers)
        yield [(format_answer(one, problem, as_json, top_k), problem) for one, problem in answers]
    if cut:
        print(f"{cut:,} of {done:,} texts were cut to {model.config.max_length} tokens", file=sys.stderr)


def split_pair(line: Line, pairs: bool) -> tuple[Any, str]:
    """Return the text, or pair of texts, of a line (None for an empty one), and what is wrong with it."""
    text, problem = line
    if problem or text is None or not text.strip():
        return None, problem
    if not pairs:
        return text, ""
    parts = text.split("\t")
    return tuple(parts), "" if len(parts) == 2 else f"a pair is two texts separated by a tab, given {len(parts)}"


def format_answer(one: Classification | None, problem: str, as_json: bool, top_k: int, picture: str = "") -> str:
    """Format one answer as a line."""
    if as_json:
        given = {"picture": picture} if picture else {}
        said: dict[str, Any] = {"label": None} if one is None else one.to_json()
        if top_k > 1 and one is not None and one.probabilities:
            said["probabilities"] = dict(list(one.probabilities.items())[:top_k])
        return json.dumps(given | said | ({"problem": problem} if problem else {}), ensure_ascii=False)
    if one is None:
        return ""
    if one.score is not None:
        return f"{one.score:.4f}"
    return "\t".join(f"{label}\t{p:.4f}" for label, p in list(one.probabilities.items())[:top_k])
