"""Pictures of what look/ finds, drawn by plotly: one function per result, each a table of colours or a row of bars.

    look.attention(layer=1).figure().show()

In a notebook results show themselves. `page` puts several into one HTML file that needs nothing else, `png` takes its photograph.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
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
from qkv.look.view import Answers, Everywhere, Pull
from qkv.look.walk import Walk

PLAIN, TWO_WAYS = "Blues", "RdBu"
"""Colours of weights from 0, and of numbers on both sides of it."""
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
    go = plotly()
    figure = go.Figure()
    for number, values in enumerate(panels.values()):
        figure.add_heatmap(
            z=values.float().tolist(), visible=number == 0, colorscale=TWO_WAYS if two_ways else PLAIN,
            zmid=0 if two_ways else None, text=[[escape(w) for w in row] for row in words] if words else None,
            texttemplate="%{text}" if words else None, hovertemplate="%{y} · %{x}: %{z:.4f}<extra></extra>",
            xgap=1, ygap=1,
        )  # fmt: skip
    # names may occur twice: places are numbers, names stand beside them
    figure.update_xaxes(
        tickvals=list(range(len(columns))), ticktext=marks(columns), tickangle=-50, side="top", title=across
    )
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=marks(rows), autorange="reversed", title=down)
    if len(panels) > 1:
        seen = [{"label": name, "method": "update", "args": [{"visible": [i == j for j in range(len(panels))]}]}
                for i, name in enumerate(panels)]  # fmt: skip
        figure.update_layout(
            updatemenus=[{"buttons": seen, "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "pad": {"b": 90}}]
        )
    size = {"width": min(1400, 260 + 34 * max(len(columns), 6)), "height": min(1400, 240 + 26 * max(len(rows), 4))}
    return figure.update_layout(
        title={"text": escape(title), "y": 0.98}, template="plotly_white", margin={"t": 150}, **size
    )


def bars(title: str, names: Sequence[str], values: Tensor) -> Any:
    """Numbers beside their names, the first on top."""
    figure = plotly().Figure()
    figure.add_bar(
        x=values.tolist(), y=list(range(len(names))), orientation="h", hovertemplate="%{x:.4f}<extra></extra>"
    )
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=marks(names), autorange="reversed")
    return figure.update_layout(title=escape(title), template="plotly_white", width=640, height=160 + 24 * len(names))


def marks(names: Sequence[str]) -> list[str]:
    """Names as plotly shows them: < is no tag, and a space can be seen."""
    return [escape(name.replace(" ", "·") if name.strip() else name.replace(" ", "·") or "·") for name in names]


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
    words = [[tops[0] for tops in row] for row in result.words]
    title = "logit lens: what would be answered here, and how likely the final answer already is"
    return table(title, {"final": result.final}, result.points, result.tokens, words=words)


@figure.register
def _(result: Attribution) -> Any:
    title = f"attribution ({result.method}): what each token did for the answer"
    return table(title, {"": result.scores}, result.answers, result.tokens, two_ways=True)


@figure.register
def _(result: Sweep) -> Any:
    across = "head" if result.what == "heads" else ""
    title = f"patching {result.what}: how far the answer follows the other input"
    return table(title, {"": result.carried}, result.places, result.columns, True, across=across, down="layer")


@figure.register
def _(result: Effect) -> Any:
    name = f" of '{result.word.strip()}'" if result.word else ""
    title = f"what the logit{name} loses without each head"
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
    short = [text if len(text) <= 40 else text[:39] + "…" for text in result.texts]
    return table(f"'{result.word}' in context: cosines", {"": result.cosines}, short, short, True)


@figure.register
def _(result: Pull) -> Any:
    panels = {
        f"{result.token.strip()} → {other.strip()}": result.weights[..., i] for i, other in enumerate(result.others)
    }
    return by_head(f"what '{result.token.strip()}' looks at", panels, result.layers)


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
    return bars(f"nearest to '{result.word}' (cosine)", result.words, result.cosines)


@figure.register
def _(result: Answers) -> Any:
    return bars(f"answers at '{result.at.strip()}'", result.words, result.probabilities)


def by_head(title: str, panels: Mapping[str, Tensor], layers: Sequence[int], two_ways: bool = False) -> Any:
    heads = [str(i) for i in range(next(iter(panels.values())).size(1))]
    return table(title, panels, [str(layer) for layer in layers], heads, two_ways, across="head", down="layer")


# --- files


def fragment(result: Result, library: bool) -> str:
    """A picture as a piece of HTML, with plotly itself in it or not."""
    return figure(result).to_html(full_html=False, include_plotlyjs=library, config={"displaylogo": False})


def page(title: str, results: Mapping[str, Result]) -> str:
    """One HTML file that needs nothing else: a heading and a picture for each result."""
    parts = [
        f"<h2>{escape(name)}</h2>{fragment(one, number == 0)}" for number, (name, one) in enumerate(results.items())
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    style = "<style>body{font-family:system-ui,sans-serif;margin:2em;color:#1f2933}</style>"
    return (
        f"<!doctype html><html><head>{head}{style}</head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def room(results: Mapping[str, Result]) -> tuple[int, int]:
    """Width and height of the page of these results, its headings and margins included."""
    sizes = [figure(one).layout for one in results.values()]
    return max(size.width for size in sizes) + 80, 120 + sum(size.height + 100 for size in sizes)


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
