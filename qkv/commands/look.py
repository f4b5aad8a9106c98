"""`qkv look`: inspect a model on one input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, writing
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.look.look import Look
    from qkv.look.result import LookResult
    from qkv.tasks.inspection import Looker

What = StrEnum(
    "What",
    "attention lens attribution answers effect heads rollout positions residual walk patch neighbours contexts",
)
OF_WORDS = {What.neighbours, What.contexts}
"""Analyses of a word, not of an input."""
EVERY = (What.attention, What.lens, What.attribution, What.answers)
"""Default analyses, as far as the model supports them."""
GIVEN = typer.Argument(metavar="TEXT", help="The input: a text, or the path of an image.")
WHAT = typer.Option(
    "--what", "-w", help="Analyses to run; may be repeated. patch needs --other, contexts --other and --word; neighbours "
    "takes a word as TEXT."
)  # fmt: skip
PAIR = typer.Option(
    metavar="TEXT", help="The second text, for models of text pairs; for question answering, the question."
)
TARGET = typer.Option(
    metavar="TEXT", help="The output to inspect (a translation, a summary); default: the model's own."
)
LAYER = typer.Option(help="attention, walk: the layer, 0 = the first; contexts: 0 = the embeddings; -1 = the last.")
HEAD = typer.Option(help="attention: one head (default: all, with a menu); walk: the head (default: 0).")
POSITION = typer.Option(
    help="answers, attribution, effect, patch: index of the token to inspect, 0 = the first; default: the mask, else the last."
)
KIND = typer.Option(help="Attention of an encoder-decoder: encoder, decoder or cross.")
OTHER = typer.Option(
    metavar="TEXT", help="patch: the text that activations are taken from, with as many tokens; contexts: the second text."
)  # fmt: skip
WORD = typer.Option(metavar="WORD", help="contexts: a word that occurs in both texts.")
METHOD = typer.Option(help="attribution: gradient, integrated or occlusion.")
OUT = typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write (self-contained).")
PNG = typer.Option("--png", metavar="FILE", help="Also write a PNG (needs chromium or chrome).")


def run(
    folder: Folder,
    given: Annotated[str, GIVEN],
    what: Annotated[list[What] | None, WHAT] = None,
    target: Annotated[str | None, TARGET] = None,
    layer: Annotated[int, LAYER] = -1,
    head: Annotated[int | None, HEAD] = None,
    kind: Annotated[str | None, KIND] = None,
    position: Annotated[int | None, POSITION] = None,
    pair: Annotated[str | None, PAIR] = None,
    other: Annotated[str | None, OTHER] = None,
    word: Annotated[str | None, WORD] = None,
    method: Annotated[str, METHOD] = "gradient",
    out: Annotated[Path, OUT] = Path("look.html"),
    png: Annotated[Path | None, PNG] = None,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Inspect a model on one input: attention of every head, logit lens, attribution, patching.

    Writes one self-contained HTML file that explains each figure; --json prints the numbers.

    [dim]qkv look example "I ate an apple."[/]
    [dim]qkv look my-gpt "The old man" --what lens --what heads --out lens.html[/]
    [dim]qkv look bert "I ate an apple" -w contexts --word apple --other "Apple Inc."[/]
    """
    from qkv.api import load

    check_arguments(given, out)
    model = load(folder, device.value)
    looker, summary = model.looker(), model.task == "summary"
    look = None if what and set(what) <= OF_WORDS else looker.look(given, target, pair, summary)

    def show(one: What) -> LookResult:
        if one in OF_WORDS:
            return among_words(looker, one, given, other, word, layer)
        assert look is not None
        if one is What.patch:
            if other is None:
                raise QkvError("patch needs a second text: give it with --other")
            return look.patch(looker.look(other, target, pair, summary), position=position)
        return analyse(look, one, layer, head, kind, method, position)

    found = {one.value: show(one) for one in what} if what else default_analyses(show)
    print_notes(found)
    if as_json:
        with writing():
            print(json.dumps({name: one.to_json() for name, one in found.items()}, ensure_ascii=False))
        return
    write(found, [given, *([] if pair is None else [pair]), *([] if other is None else [f"other: {other}"])], out, png)


def check_arguments(given: str, out: Path) -> None:
    """Refuse an empty input and an output that is not HTML, before the model is loaded."""
    if out.suffix not in (".html", ".htm"):
        raise QkvError(f"--out writes an HTML file, given {out}: use a name that ends in .html")
    if not given.strip():
        raise QkvError("the text is empty: give a text or the path of an image")


def print_notes(found: dict[str, LookResult]) -> None:
    """Print the notes of results on standard error."""
    for name, one in found.items():
        if note := getattr(one, "note", ""):
            print(f"{name}: {note}", file=sys.stderr)


def default_analyses(show: Callable[[What], LookResult]) -> dict[str, LookResult]:
    """Run the default analyses that this model supports; one line on standard error names those left out, and why."""
    found: dict[str, LookResult] = {}
    missing: dict[str, list[str]] = {}
    for one in EVERY:
        try:
            found[one.value] = show(one)
        except QkvError as problem:
            missing.setdefault(str(problem), []).append(one.value)
    if missing:
        parts = [f"{', '.join(names)} ({problem})" for problem, names in missing.items()]
        print(f"left out: {'; '.join(parts)}", file=sys.stderr)
    if not found:
        raise QkvError("this model supports none of the default analyses: choose others with --what")
    return found


def among_words(looker: Looker, what: What, given: str, other: str | None, word: str | None, layer: int) -> LookResult:
    """Return the neighbours of a word, or compare one word in two texts."""
    if what is What.neighbours:
        return looker.neighbours(given)
    if word is None or other is None:
        raise QkvError(
            "contexts compares one word in two texts: give the word with --word, the second text with --other"
        )
    return looker.contexts(word, [given, other], layer)


def analyse(look: Look, what: What, layer: int, head: int | None, kind: str | None, method: str, position: int | None
         ) -> LookResult:  # fmt: skip
    """Run one analysis of a Look; of a model that generates (a translation, a summary), the output is analysed."""
    written = range(look.first, len(look.tokens))
    if what is What.attention:
        return look.attention(layer, head, kind, written if look.first else None)
    if what is What.lens:
        return look.lens().since(look.first)
    if what is What.walk:
        return look.walk(layer, head or 0, kind)
    if what is What.answers:
        every_token = position is None and look.config.head in ("tags", "replaced")
        return look.token_answers() if every_token else look.answers(position)
    if what is What.attribution:
        every = written if look.source or look.first else None  # each of the words
        return look.attribution(method, every if position is None else [position])
    if what is What.effect:
        return look.effect_of_heads(look.target(position), kind)
    if what in (What.heads, What.rollout):
        return getattr(look, what.value)(kind)  # type: ignore[no-any-return]
    return getattr(look, what.value)()  # type: ignore[no-any-return]


def write(found: dict[str, LookResult], texts: list[str], out: Path, png: Path | None) -> None:
    from qkv.convert.files import write_text
    from qkv.look import report

    html = report.page(texts, found)
    write_text(out, html)
    print(f"wrote {out}: {', '.join(found)}")
    if png is not None:
        report.png(html, png)
        print(f"wrote {png}")
