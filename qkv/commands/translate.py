"""`qkv translate`: lines of text in, their translations out."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Json, PrecisionOption, writing
from qkv.commands.lines import Line, Source, check_file, count_lines
from qkv.commands.tables import columns_to_read
from qkv.commands.workers import Workers, compute_chunks, source_of_worker, with_workers
from qkv.errors import FileError, QkvError

if TYPE_CHECKING:
    from qkv.api import Model
    from qkv.generate.translate import Translation

FIRST = typer.Argument(
    metavar="FOLDER",
    help="A model: a qkv run or model folder, a Hugging Face folder, a .gguf or .bin file. Default: the example model that "
    "ships with qkv."
)  # fmt: skip
SECOND = typer.Argument(
    metavar="FILE|TEXT",
    help="A file with one text per line, a table with a column of texts, or the text itself. Default: standard input."
)  # fmt: skip
MARKS = (".", "?", "!", "…", "。", "？", "！")
TEXTS = "a text to translate contains a space or ends in . ? or !; for a single word: echo WORD | qkv translate"
Beam = Annotated[int | None, typer.Option(min=1, help="Beam size; 1 = greedy. Default: the model's own, else 4.")]
LengthPenalty = Annotated[float | None, typer.Option(
    help="Divide scores by length to this power; larger = longer translations. Default: the model's own, else 1.")]  # fmt: skip
LengthFormula = Annotated[str | None, typer.Option(
    metavar="power|gnmt",
    help="Base of the length penalty: length, or (5 + length) / 6. Default: the model's own, else power.")]  # fmt: skip
NBest = Annotated[int, typer.Option(
    min=1, help="Number of translations per text, at most the beam size; printed as NUMBER ||| TEXT ||| SCORE.")]  # fmt: skip
Alignments = Annotated[bool, typer.Option("--alignments", help="Append word alignments (SOURCE-TARGET): ||| 0-0 1-2.")]
MaxLength = Annotated[int | None, typer.Option(
    min=1, help="Longest translation in tokens. Default: the model's own, else 2 * source + 20.")]  # fmt: skip
MinLength = Annotated[int | None, typer.Option(
    min=0, help="Shortest translation in tokens, end token included. Default: the model's own, else 0.")]  # fmt: skip
NoRepeat = Annotated[int | None, typer.Option(
    min=0, help="Forbid repeated n-grams of this size; 0 = allow them. Default: the model's own, else 0.")]  # fmt: skip
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1: penalise tokens that occurred before.")]
Groups = Annotated[int, typer.Option(min=1, help="Diverse beam search: number of groups that share the beam.")]
Diversity = Annotated[float, typer.Option(help="Diverse beam search: penalty for the tokens of earlier groups.")]
Prefix = Annotated[str | None, typer.Option(help="Text that every translation starts with.")]
Constraints = Annotated[bool, typer.Option(
    "--constraints", help="Each line is a text and, after tabs, words or phrases that its translation must contain.")]  # fmt: skip
BatchTokens = Annotated[int, typer.Option(min=1, help="Source tokens per batch; more take more memory.")]


@with_workers
def run(
    folder: Annotated[str | None, FIRST] = None,
    file: Annotated[str | None, SECOND] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    length_formula: LengthFormula = None,
    n_best: NBest = 1,
    alignments: Alignments = False,
    as_json: Json = False,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    no_repeat_ngram: NoRepeat = None,
    repetition_penalty: RepetitionPenalty = 1.0,
    groups: Groups = 1,
    diversity: Diversity = 0.5,
    prefix: Prefix = None,
    constraints: Constraints = False,
    batch_tokens: BatchTokens = 2048,
    workers: Workers = 1,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Translate text line by line, in order; an empty line gives an empty line.

    An argument is taken as text if no such file exists and it contains a space
    or ends in . ? or ! Without FOLDER, the example model translates English to
    German, with the vocabulary of a small grammar. A line that cannot be
    translated (not UTF-8, too long) gives an empty line and a message on standard
    error, and the exit code is 1. To sample translations, use qkv generate.

    [dim]qkv translate "I ate an apple."[/]
    [dim]qkv translate my-model "A man rides a bicycle."[/]
    [dim]echo "A man rides a bicycle." | qkv translate my-model[/]
    [dim]qkv translate my-model test.en --beam 5 --alignments > test.de[/]
    [dim]qkv translate my-model test.en --beam 8 --groups 4 --n-best 4[/]
    """
    path, source = arguments(folder, file)
    source = source_of_worker(source)
    model = open_model(path, source, device.value, precision)
    how = {
        "beam": beam, "length_penalty": length_penalty, "length_formula": length_formula, "n_best": n_best,
        "max_length": max_length, "prefix": prefix, "alignments": alignments, "scores": True, "batch_tokens": batch_tokens,
        "min_length": min_length, "no_repeat_ngram": no_repeat_ngram, "repetition_penalty": repetition_penalty,
        "groups": groups, "diversity": diversity,
    }  # fmt: skip
    printer = Printer(as_json, n_best > 1, alignments, source)
    translate_lines(model, source, how, constraints, printer)
    if printer.problems:
        raise typer.Exit(1)


def translate_lines(model: Model, source: Source, how: dict[str, Any], constraints: bool, printer: Printer) -> None:
    """Translate a source chunk by chunk and print it; a wrong setting is an error before anything is read."""
    table = source if isinstance(source, Path) and not constraints else None
    columns = columns_to_read(table, "translation", model.languages)
    model.translate([], **how)

    def compute(done: int, chunk: list[Line]) -> list[tuple[str, str]]:
        texts, wanted = split(chunk) if constraints else ([text or "" for text, _ in chunk], None)
        found = zip(model.translate(texts, **how, constraints=wanted), chunk, strict=True)
        return [printer.format(done + i, one, problem) for i, (one, (_, problem)) in enumerate(found)]

    with writing():
        compute_chunks(compute, printer.show, source, columns)
    printer.end()


def is_text(argument: str) -> bool:
    """Return whether an argument is a text, not a path: neither the path nor a folder or archive above it exists, and it contains
    a space or ends with a punctuation mark. A mistyped folder name is therefore not a text."""
    holders = [parent for parent in Path(argument).parents if parent != Path()]
    if os.path.exists(argument) or any(os.path.exists(parent) for parent in holders):
        return False
    return len(argument.split()) > 1 or argument.endswith(MARKS)


def arguments(first: str | None, second: str | None) -> tuple[Path, Source]:
    """Parse [FOLDER] [FILE|TEXT]: return the model and the source to translate."""
    from qkv.pretrained import ABOUT_EXAMPLE, EXAMPLE, find

    if second is not None and is_text(first or ""):
        raise QkvError(f"{first!r} is a text, not a model: give FOLDER, then a file or a text (FOLDER may be: example)")
    if first is None or is_text(first):
        print(ABOUT_EXAMPLE, file=sys.stderr)
        first, second = EXAMPLE, first
    if second is None or not is_text(second):
        return find(first), None if second is None else Path(second)
    second.encode()  # an argument that is not UTF-8 is an error here
    return find(first), second.removesuffix("\n").split("\n")


def open_model(folder: Path, source: Source, device: str, precision: str | None = None) -> Model:
    """Load the model; a wrong path of the text is an error before that."""
    from qkv.api import load

    try:
        if isinstance(source, Path):
            check_file(source)
        return load(folder, device, precision)
    except FileError as error:
        paths = [folder, *([source] if isinstance(source, Path) else [])]
        raise error if all(map(os.path.exists, paths)) else FileError(f"{error}; {TEXTS}") from None


def split(chunk: list[Line]) -> tuple[list[str], list[list[str]]]:
    """Split lines into texts and the phrases that the translation of each must contain."""
    parts = [(text or "").split("\t") for text, _ in chunk]
    return [text for text, *_ in parts], [words for _, *words in parts]


class Printer:
    """Print translations as text or JSON, and on a terminal the progress."""

    def __init__(self, as_json: bool, several: bool, alignments: bool, source: Source = None):
        self.as_json, self.several, self.alignments = as_json, several, alignments
        self.done, self.problems, self.start = 0, 0, time.monotonic()
        self.progress = sys.stderr.isatty() and not sys.stdout.isatty()
        self.total = count_lines(source) if self.progress and isinstance(source, Path) else 0
        """Lines of the source, 0 = not known."""

    def show(self, found: list[tuple[str, str]]) -> None:
        """Print the outputs of some lines and their problems."""
        for output, problem in found:
            self.done += 1
            if problem:
                self.problems += 1
                print(f"{self.clear()}line {self.done} is not translated: {problem}", file=sys.stderr)
            print(output)
        sys.stdout.flush()
        if self.progress:
            print(f"{self.clear()}{self.pace()}", end="", file=sys.stderr, flush=True)

    def pace(self) -> str:
        """Return how many lines are done, how fast, and the time that remains."""
        from qkv.text.wording import format_duration

        rate = self.done / (time.monotonic() - self.start)
        if not self.total:
            return f"{self.done:,} lines, {rate:,.1f} per second"
        left = format_duration(max(0, self.total - self.done) / rate)
        return f"{self.done:,} of {self.total:,} lines, {rate:,.1f} per second, {left} left"

    def format(self, number: int, one: Translation, problem: str) -> tuple[str, str]:
        """Return the output of an input line and its problem; n-best translations are several lines."""
        problem = problem or one.problem
        return "\n".join(self.lines(number, one, problem)), problem

    def lines(self, number: int, one: Translation, problem: str) -> list[str]:
        """Return one line per translation."""
        from qkv.generate.alignment import pharaoh

        if self.as_json:
            return [json.dumps(as_json(one, problem), ensure_ascii=False)]
        every = (one.n_best or [one]) if self.several else [one]
        parts = [
            ([str(number)] if self.several else [])
            + [" ".join(each.text.splitlines())]
            + ([f"{each.score:.4f}"] if self.several else [])
            + ([pharaoh(each.alignment or [])] if self.alignments else [])
            for each in every
        ]
        return [" ||| ".join(part) for part in parts]

    def clear(self) -> str:
        return "\r\033[K" if self.progress else ""

    def end(self) -> None:
        if self.progress:
            print(file=sys.stderr)
        if self.problems:
            print(f"{self.problems:,} of {self.done:,} lines are not translated", file=sys.stderr)


def as_json(one: Translation, problem: str) -> dict[str, Any]:
    from qkv.generate.alignment import pharaoh

    fields: dict[str, Any] = {"text": one.text, "score": one.score, "log_prob": one.log_prob, "tokens": one.tokens,
                              "token_log_probs": one.token_log_probs}  # fmt: skip
    if one.alignment is not None:
        fields["alignment"] = pharaoh(one.alignment)
    if len(one.n_best) > 1:
        fields["n_best"] = [as_json(each, "") for each in one.n_best]
    return fields | ({"problem": problem} if problem else {})
