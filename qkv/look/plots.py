"""Pictures of what look/ finds, drawn by plotly: one function per result, each a table of colours or a row of bars.

    look.attention(layer=1).figure().show()

In a notebook results show themselves. `page` puts several into one HTML file that needs nothing else, `png` takes its photograph.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import singledispatch
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.look.ablate import Effect
from qkv.look.aligned import AlignmentErrors
from qkv.look.attention import Map
from qkv.look.attribution import Attribution
from qkv.look.heads import STATISTICS, HeadStatistics
from qkv.look.lens import Lens
from qkv.look.patch import Sweep
from qkv.look.probe import Contexts, Probe
from qkv.look.result import Result
from qkv.look.rollout import Rollout
from qkv.look.space import Neighbours, Positions
from qkv.look.stream import Residual
from qkv.look.view import WHOLE, Answers, Everywhere, Pull
from qkv.look.walk import Walk

PLAIN, TWO_WAYS = "Blues", "RdBu"
"""Colours of weights from 0, and of numbers on both sides of it."""
LETTERS, SLANT = 13, 50
"""The size of the words in cells, in pixels, and the angle of names that are wider than their columns."""
LONGEST = 42
"""Letters of a name; the rest is cut off."""
LARGEST = 12_000
"""Pixels, of a picture of very many tokens: browsers photograph no page that is much larger."""
STYLE = (
    "<style>body{font-family:system-ui,sans-serif;margin:32px;color:#1f2933}h1{font-size:22px;line-height:30px;margin:0 0 10px}"
    "h2{font-size:18px;line-height:30px;margin:20px 0 0;border-top:1px solid #d9dee4}</style>"
)
QUIET = {"displayModeBar": False}
"""No toolbar: it would lie over the title, and be in the photograph. Drag to enlarge, double-click to see all again."""
SECONDS = 120
"""A browser that has taken no picture by then takes none."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")


def plotly() -> Any:
    """The library, or how to get it."""
    try:
        import plotly.graph_objects as found
    except ImportError:
        raise QkvError('pictures need plotly: pip install "qkv[look]"') from None
    return found


# --- the two kinds of picture


def table(title: str, panels: Mapping[str, Tensor], rows: Sequence[str], columns: Sequence[str], two_ways: bool = False,
          words: Sequence[Sequence[str]] | None = None, across: str = "", down: str = "") -> Any:  # fmt: skip
    """Numbers (rows, columns) as colours; several panels share the place, and a menu says which is seen."""
    figure = plotly().Figure()
    for number, values in enumerate(panels.values()):
        figure.add_heatmap(
            z=values.float().tolist(), visible=number == 0, colorscale=TWO_WAYS if two_ways else PLAIN,
            zmid=0 if two_ways else None, xgap=1, ygap=1, hovertemplate="%{y} · %{x}: %{z:.4f}<extra></extra>",
        )  # fmt: skip
    if words is not None:
        figure.update_traces(
            text=[marks(map(short, row)) for row in words], texttemplate="%{text}", textfont={"size": LETTERS},
            customdata=[marks(row) for row in words], hovertemplate="%{y} · %{x}: %{customdata} %{z:.4f}<extra></extra>",
        )  # fmt: skip
    # names may occur twice: places are numbers, names stand beside them
    names = [short(name) for name in columns]
    cell = cell_width(names, words)
    flat = room_of(longest(names)) <= cell
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=marks(names), side="top", title=across,
                        tickangle=0 if flat else -SLANT)  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=marks(map(short, rows)), autorange="reversed", title=down
    )
    above = (30 if flat else 20 + round(0.8 * room_of(longest(names)))) + (30 if across else 0)
    left = 20 + room_of(longest([short(row) for row in rows])) + (30 if down else 0)
    right = max([100, *(round(0.7 * room_of(name)) - cell * (len(names) - 1 - i) for i, name in enumerate(names))])
    width = max(left + cell * len(names) + right, left + room_of(longest(panels)) + 60, 480)
    if len(panels) > 1:
        above = menu(figure, list(panels), above)
    height = max(26 * min(len(rows), LARGEST // 26), 80)
    return titled(figure, title, width, height, {"t": above, "l": left, "r": width - left - cell * len(names), "b": 30})


def bars(title: str, names: Sequence[str], values: Tensor) -> Any:
    """Numbers beside their names, the first on top; each is also written behind its bar."""
    figure, numbers = plotly().Figure(), values.tolist()
    figure.add_bar(
        x=numbers, y=list(range(len(names))), orientation="h", text=[f"{value:.3g}" for value in numbers],
        textposition="outside", cliponaxis=False, width=0.7, hovertemplate="%{x:.4f}<extra></extra>",
    )  # fmt: skip
    low, high = min([0.0, *numbers]), max([0.0, *numbers])
    room = 0.15 * ((high - low) or 1.0)  # for the numbers
    figure.update_xaxes(range=[low - room if low else 0.0, high + room])
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=marks(map(short, names)), autorange="reversed")
    left = 20 + room_of(longest([short(name) for name in names]))
    return titled(figure, title, left + 500, 28 * len(names) + 10, {"t": 10, "l": left, "r": 40, "b": 40})


def menu(figure: Any, names: Sequence[str], above: int) -> int:
    """A menu of the panels over the names of the columns, which take `above`; how much both take."""
    seen = [{"label": shown(name), "method": "update", "args": [{"visible": [i == j for j in range(len(names))]}]}
            for i, name in enumerate(names)]  # fmt: skip
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": above}}
    figure.update_layout(updatemenus=[{"buttons": seen, "showactive": True, **place}])
    return above + 45


def titled(figure: Any, title: str, width: int, height: int, margin: Mapping[str, int]) -> Any:
    """The title over the drawing of `height` and what stands around it; a picture is at least as wide as its title."""
    wide, top = max(width, 30 + 9 * len(title)), 44
    heading = {
        "text": shown(title), "font": {"size": 16}, "xref": "container", "x": 15 / wide, "xanchor": "left",
        "yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 10},
    }  # fmt: skip
    around = {**margin, "t": top + margin["t"], "r": margin["r"] + wide - width}
    size = {"width": wide, "height": top + margin["t"] + height + margin["b"]}
    return figure.update_layout(title=heading, template="plotly_white", margin=around, **size)


def cell_width(columns: Sequence[str], words: Sequence[Sequence[str]] | None) -> int:
    """Pixels: words can be read in their cells, and without any slanted names stand apart; a page may be wider than a screen."""
    if words is not None:
        wanted = max(room_of(longest(columns)), *(room_of(longest(map(short, row))) for row in words))
    else:
        wanted = max(34 if len(columns) <= 40 else 18, 34 * 6 // max(len(columns), 1))
    return max(1, min(wanted, LARGEST // max(len(columns), 1)))


def room_of(name: str) -> int:
    """Pixels that a name takes, nearly always."""
    return 16 + 8 * len(name)


def longest(names: Iterable[str]) -> str:
    return max(names, key=len, default="")


def short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def marks(names: Iterable[str]) -> list[str]:
    """Names as plotly shows them: < is no tag, and a space before or behind a word can be seen."""
    return [shown(dotted(name)) for name in names]


def shown(text: str) -> str:
    return escape(text, quote=False)  # plotly has its own list of what it reads back, and quotes are not on it


def dotted(name: str) -> str:
    word = name.strip(" ")
    before, _, behind = name.partition(word) if word else (name or " ", "", "")
    return "·" * len(before) + word.replace("\n", "↵") + "·" * len(behind)


def quoted(name: str) -> str:
    """In a title: a token without the space before it, unless there is nothing else."""
    return f"'{name.strip() or dotted(name)}'"


# --- one for each result


@singledispatch
def figure(result: Result) -> Any:
    """The picture of a result."""
    raise QkvError(f"there is no picture of {type(result).__name__}: print it, or take its to_json()")


@figure.register
def _(result: Map) -> Any:
    panels = {f"head {head}": weights for head, weights in zip(result.heads, result.weights, strict=True)}
    if len(panels) > 1:
        panels = {"mean of heads": result.weights.mean(0), **panels}
    name = "attention" if result.kind == "self" else f"attention ({result.kind})"
    return table(f"{name}, layer {result.layer}", panels, result.rows, result.columns)


@figure.register
def _(result: Lens) -> Any:
    if result.measure == "score":
        words = [[f"{value:.2f}" for value in row] for row in result.final.tolist()]
        return table("lens: the score that would be given here", {"": result.final}, result.points, result.tokens,
                     words=words)  # fmt: skip
    words = [[tops[0] for tops in row] for row in result.words]
    title = "logit lens: what would be answered here, and how likely the final answer already is"
    return table(title, {"final": result.final}, result.points, result.tokens, words=words)


@figure.register
def _(result: Attribution) -> Any:
    answer = quoted(result.answers[0]) if len(result.answers) == 1 else "each answer"
    title = f"attribution ({result.method}): what each token did for {answer}"
    return table(title, {"": result.scores}, result.answers, result.tokens, two_ways=True)


@figure.register
def _(result: Sweep) -> Any:
    across = "head" if result.what == "heads" else ""
    title = f"patching {result.what}: how far the output follows the other input"
    return table(title, {"": result.carried}, result.places, result.columns, True, across=across, down="layer")


@figure.register
def _(result: Effect) -> Any:
    name = f" of {quoted(result.word)}" if result.word and result.measure == "logit" else ""
    title = f"what the {result.measure}{name} loses without each head"
    return by_head(title, {"": result.whole - result.alone}, result.layers, True)


@figure.register
def _(result: HeadStatistics) -> Any:
    panels = {f"{name}: {STATISTICS[name]}": values for name, values in result.statistics.items()}
    return by_head("where heads look", panels, result.layers)


@figure.register
def _(result: AlignmentErrors) -> Any:
    return by_head("alignment error rate", {"": result.rates}, result.layers)


@figure.register
def _(result: Rollout) -> Any:
    if result.grid is None:
        return table("attention rollout", {"": result.weights}, result.tokens, result.tokens)
    sides = [str(i) for i in range(len(result.grid))]
    return table("attention rollout: what the [class] vector looked at", {"": result.grid}, sides, sides)


@figure.register
def _(result: Positions) -> Any:
    places = [str(i) for i in range(len(result.similarity))]
    return table(f"positions ({result.scheme}): how alike they are", {"": result.similarity}, places, places, True)


@figure.register
def _(result: Contexts) -> Any:
    numbers = torch.cat([result.cosines, result.static[:, None]], 1)  # (texts, texts + 1)
    rows = [f"{number}: {text}" for number, text in enumerate(result.texts, 1)]
    columns = [*(str(number) for number in range(1, len(rows) + 1)), "without context"]
    words = [[f"{value:.2f}" for value in row] for row in numbers.tolist()]
    title = f"'{result.word}' in context: how alike its vectors are (cosine)"
    return table(title, {"": numbers}, rows, columns, True, words)


@figure.register
def _(result: Pull) -> Any:
    panels = {
        f"{result.token.strip()} → {other.strip()}": result.weights[..., i] for i, other in enumerate(result.others)
    }
    return by_head(f"what {quoted(result.token)} looks at", panels, result.layers)


@figure.register
def _(result: Walk) -> Any:
    """Its tables: what positions add, scores, who may look, weights."""
    parts = {"scores": result.scores, "what positions add": result.bias, "who may look": result.allowed,
             "weights": result.weights}  # fmt: skip
    panels = {name: part for name, part in reversed(parts.items()) if part is not None}
    rows, columns = (
        names or [str(i) for i in range(size)]
        for names, size in zip((result.rows, result.columns), result.scores.shape, strict=True)
    )
    return table(
        f"head {result.head} of layer {result.layer} ({result.kind}), step by step", panels, rows, columns, True
    )


@figure.register
def _(result: Residual) -> Any:
    panels = {"length of the vector": result.norms, "cosine with the vector before": result.turned}
    return table("the residual stream", panels, result.points, result.tokens)


@figure.register
def _(result: Everywhere) -> Any:
    rows = [f"{number + 1}." for number in range(result.probabilities.size(1))]
    words = [list(row) for row in zip(*result.words, strict=True)]
    return table("answers at every token", {"": result.probabilities.T}, rows, result.tokens, words=words)


@figure.register
def _(result: Probe) -> Any:
    title = f"a probe tells {', '.join(result.labels)} apart"
    return bars(title, ["accuracy", "chance"], torch.tensor([result.accuracy, result.chance]))


@figure.register
def _(result: Neighbours) -> Any:
    made = f", which is made of {' + '.join(map(dotted, result.pieces))}" if len(result.pieces) > 1 else ""
    return bars(f"nearest to '{result.word}'{made} (cosine)", result.words, result.cosines)


@figure.register
def _(result: Answers) -> Any:
    if result.measure == "score":
        return bars(f"score: {float(result.probabilities[0]):.3f}", result.words, result.probabilities)
    at = "about all of the input" if result.at == WHOLE else f"at {quoted(result.at)}"
    return bars(f"answers {at}, and how likely they are", result.words, result.probabilities)


def by_head(title: str, panels: Mapping[str, Tensor], layers: Sequence[int], two_ways: bool = False) -> Any:
    heads = [str(i) for i in range(next(iter(panels.values())).size(1))]
    return table(title, panels, [str(layer) for layer in layers], heads, two_ways, across="head", down="layer")


# --- files


def fragment(result: Result, library: bool) -> str:
    """A picture as a piece of HTML, with plotly itself in it or not."""
    return figure(result).to_html(full_html=False, include_plotlyjs=library, config=QUIET)


def page(texts: Sequence[str], results: Mapping[str, Result]) -> str:
    """One HTML file that needs nothing else: the texts that were read as its heading, and a picture for each result."""
    parts = [
        f"<h2>{escape(section(name, one))}</h2>{fragment(one, number == 0)}"
        for number, (name, one) in enumerate(results.items())
    ]
    title = texts[0] if len(texts[0]) <= 80 else texts[0][:79] + "…"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    headings = "".join(f"<h1>{escape(text)}</h1>" for text in texts)
    return f"<!doctype html><html><head>{head}{STYLE}</head><body>{headings}{''.join(parts)}</body></html>\n"


def section(name: str, result: Result) -> str:
    """What a picture is about: a regression gives no answers."""
    return "score" if isinstance(result, Answers) and result.measure == "score" else name


def room(texts: Sequence[str], results: Mapping[str, Result]) -> tuple[int, int]:
    """Width and height of the page, its headings and margins included; the sizes are those of STYLE."""
    sizes = [figure(one).layout for one in results.values()]
    width = max(800, *(size.width for size in sizes))
    lines = sum(1 + 14 * len(text) // width for text in texts)
    return width + 80, 80 + 40 * lines + sum(size.height + 50 for size in sizes)


def png(html: str, path: Path, width: int = 1400, height: int = 1000) -> None:
    """A photograph of a page by a browser without a window."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise QkvError("a PNG needs a browser (chromium or chrome), and none was found: install one, or take the HTML")
    with tempfile.TemporaryDirectory() as folder:
        source, shot = Path(folder) / "page.html", Path(folder) / "page.png"
        source.write_text(html, encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--screenshot={shot}",
                   f"--window-size={width},{height}", "--virtual-time-budget=8000", source.as_uri()]  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        if not shot.is_file():
            raise QkvError(f"{Path(browser).name} took no picture of the page: open the HTML instead")
        shutil.copyfile(shot, path)
