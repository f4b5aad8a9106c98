"""`qkv look`: see inside a model while it reads one input."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, writing
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.look.result import Result
    from qkv.look.view import Look


class What(StrEnum):
    attention = "attention"
    lens = "lens"
    attribution = "attribution"
    answers = "answers"
    effect = "effect"
    heads = "heads"
    rollout = "rollout"
    positions = "positions"
    residual = "residual"
    walk = "walk"
    patch = "patch"
    neighbours = "neighbours"


EVERY = (What.attention, What.lens, What.attribution, What.answers)
"""What is shown where nothing is said, as far as the model has it."""
GIVEN = typer.Argument(metavar="TEXT", help="What it reads: a text, or the file of a picture.", show_default=False)
WHAT = typer.Option(
    "--what", "-w", help="What to look at; may be repeated. patch needs --other, neighbours takes a word."
)
PAIR = typer.Option(metavar="TEXT", help="The second text of a model that compares two; the question about a text.")
TARGET = typer.Option(metavar="TEXT", help="Encoder-decoder: what it writes; default: its own translation.")
LAYER = typer.Option(help="attention, walk: which layer, 0 = the lowest; -1 = the last.")
HEAD = typer.Option(help="attention: one head, default: all, with a menu; walk: which, default: 0.", show_default=False)
POSITION = typer.Option(
    help="answers, attribution, effect: the token at which is asked, 0 = the first; default: the gap, or the last.",
    show_default=False,
)
KIND = typer.Option(help="Attention of an encoder-decoder: encoder, decoder or cross.", show_default=False)
OTHER = typer.Option(metavar="TEXT", help="patch: the text of as many tokens that the patches come from.")
METHOD = typer.Option(help="attribution: gradient, integrated or occlusion.")
OUT = typer.Option("--out", "-o", metavar="FILE", help="The HTML file, which needs nothing else.")
PNG = typer.Option(
    "--png", metavar="FILE", help="Also a PNG, taken by a browser (chromium or chrome).", show_default=False
)


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
    method: Annotated[str, METHOD] = "gradient",
    out: Annotated[Path, OUT] = Path("look.html"),
    png: Annotated[Path | None, PNG] = None,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """See inside a model while it reads one input: attention of every head, lens, attribution, patching.

    Writes one HTML file with pictures that can be hovered and switched (needs the extra qkv\\[look]);
    with --json prints the numbers instead.

    [dim]qkv look runs/demo "I ate an apple."[/]
    [dim]qkv look my-gpt "The old man" --what lens --what heads --out lens.html[/]
    """
    from qkv.api import load

    if out.suffix not in (".html", ".htm"):
        raise QkvError(f"pictures are written to an HTML file, given {out}: let its name end in .html")
    model = load(folder, device=device.value)
    found: dict[str, Result] = {}
    look = model.look(given, target, pair) if what != [What.neighbours] else None
    for one in what or EVERY:
        try:
            if one is What.neighbours:
                found[one.value] = model.neighbours(given)
            elif one is What.patch:
                if other is None:
                    raise QkvError("patch needs a second text: give it with --other")
                assert look is not None
                found[one.value] = look.patch(model.look(other, target, pair))
            else:
                assert look is not None
                found[one.value] = seen(look, one, layer, head, kind, method, position)
        except QkvError:
            if what is not None:
                raise
    if not found:
        raise QkvError("there is nothing to show of this model without being told what: give --what")
    if as_json:
        with writing():
            print(json.dumps({name: one.to_json() for name, one in found.items()}, ensure_ascii=False))
        return
    write(found, given, out, png)


def seen(look: Look, what: What, layer: int, head: int | None, kind: str | None, method: str, position: int | None
         ) -> Result:  # fmt: skip
    """One of the methods of a Look."""
    if what is What.attention:
        return look.attention(layer, head, kind)
    if what is What.walk:
        return look.walk(layer, head or 0, kind)
    if what is What.answers:
        every_token = position is None and look.config.head in ("tags", "replaced")
        return look.everywhere() if every_token else look.answers(position)
    if what is What.attribution:
        every = range(len(look.tokens)) if look.source else None  # of a translation, each of its words
        return look.attribution(method, every if position is None else [position])
    if what is What.effect:
        return look.effect_of_heads(look.question(position), kind)
    if what in (What.heads, What.rollout):
        return getattr(look, what.value)(kind)  # type: ignore[no-any-return]
    return getattr(look, what.value)()  # type: ignore[no-any-return]


def write(found: dict[str, Result], title: str, out: Path, png: Path | None) -> None:
    from qkv.convert.files import write_text
    from qkv.look import plots

    html = plots.page(title if len(title) <= 80 else title[:79] + "…", found)
    write_text(out, html)
    print(f"wrote {out}: {', '.join(found)}")
    if png is not None:
        plots.png(html, png, *plots.room(found))
        print(f"wrote {png}")
