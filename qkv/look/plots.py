"""Draw pictures (heatmaps, bar charts) with plotly.

    look.attention(layer=1).figure().show()

In a notebook a result displays its picture. `qkv look` writes its report without plotly (report.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from qkv.errors import QkvError
from qkv.look.pictures import BarChart, Heatmap, Picture

SEQUENTIAL, DIVERGING = "Blues", "RdBu"
"""Colour scales of values from 0, and of values on both sides of it."""
FONT_SIZE, SLANT = 13, 50
"""Pixels of the text in cells, and the angle of names that are wider than their columns."""
LONGEST_NAME = 42
"""Characters of a name; the rest is cut off."""
LARGEST = 12_000
"""Pixels, of a picture of very many tokens."""
NO_TOOLBAR = {"displayModeBar": False}
"""The toolbar would cover the title. Drag to zoom, double-click to zoom out."""


def plotly() -> Any:
    """Import plotly, or say how to install it."""
    try:
        import plotly.graph_objects as graph_objects
    except ImportError:
        raise QkvError('pictures need plotly: pip install "qkv[look]"') from None
    return graph_objects


def figure(picture: Picture) -> Any:
    """Draw a picture as a plotly Figure."""
    return bars(picture) if isinstance(picture, BarChart) else heatmap(picture)


def html(picture: Picture) -> str:
    """Return a picture as an HTML fragment with plotly itself in it."""
    return figure(picture).to_html(full_html=False, include_plotlyjs=True, config=NO_TOOLBAR)  # type: ignore[no-any-return]


def heatmap(picture: Heatmap) -> Any:
    """Draw one heatmap per panel; a menu selects the visible one."""
    figure, words, panels = plotly().Figure(), picture.words, picture.panels
    for number, values in enumerate(panels.values()):
        figure.add_heatmap(
            z=values.float().tolist(), visible=number == 0, colorscale=DIVERGING if picture.diverging else SEQUENTIAL,
            zmid=0 if picture.diverging else None, xgap=1, ygap=1, hovertemplate="%{y} · %{x}: %{z:.4f}<extra></extra>",
        )  # fmt: skip
    if words is not None:
        figure.update_traces(
            text=[labels(map(shorten, row)) for row in words], texttemplate="%{text}", textfont={"size": FONT_SIZE},
            customdata=[labels(row) for row in words], hovertemplate="%{y} · %{x}: %{customdata} %{z:.4f}<extra></extra>",
        )  # fmt: skip
    # names may occur twice: ticks are at numbers, names are their text
    names, rows = [shorten(name) for name in picture.columns], [shorten(row) for row in picture.rows]
    cell = cell_width(names, words)
    flat = text_width(longest(names)) <= cell
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=labels(names), side="top", title=picture.x_title,
                        tickangle=0 if flat else -SLANT)  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=labels(rows), autorange="reversed", title=picture.y_title
    )
    above = (30 if flat else 20 + round(0.8 * text_width(longest(names)))) + (30 if picture.x_title else 0)
    left = 20 + text_width(longest(rows)) + (30 if picture.y_title else 0)
    right = max([100, *(round(0.7 * text_width(name)) - cell * (len(names) - 1 - i) for i, name in enumerate(names))])
    width = max(left + cell * len(names) + right, left + text_width(longest(panels)) + 60, 480)
    if len(panels) > 1:
        above = add_menu(figure, list(panels), above)
    height = max(26 * min(len(rows), LARGEST // 26), 80)
    margin = {"t": above, "l": left, "r": width - left - cell * len(names), "b": 30}
    return lay_out(figure, picture.title, width, height, margin)


def bars(picture: BarChart) -> Any:
    """Draw horizontal bars, the first on top, with their values behind them."""
    figure, names, values = plotly().Figure(), picture.names, picture.values.tolist()
    figure.add_bar(
        x=values, y=list(range(len(names))), orientation="h", text=[f"{value:.3g}" for value in values],
        textposition="outside", cliponaxis=False, width=0.7, hovertemplate="%{x:.4f}<extra></extra>",
    )  # fmt: skip
    low, high = min([0.0, *values]), max([0.0, *values])
    room = 0.15 * ((high - low) or 1.0)  # for the values
    figure.update_xaxes(range=[low - room if low else 0.0, high + room])
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=labels(map(shorten, names)), autorange="reversed")
    left = 20 + text_width(longest([shorten(name) for name in names]))
    return lay_out(figure, picture.title, left + 500, 28 * len(names) + 10, {"t": 10, "l": left, "r": 40, "b": 40})


def add_menu(figure: Any, names: Sequence[str], above: int) -> int:
    """Add a menu of the panels over the column names, which take `above` pixels; return the height of both."""
    buttons = [{"label": name, "method": "update", "args": [{"visible": [i == j for j in range(len(names))]}]}
               for i, name in enumerate(labels(names))]  # fmt: skip
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": above}}
    figure.update_layout(updatemenus=[{"buttons": buttons, "showactive": True, **place}])
    return above + 45


def lay_out(figure: Any, title: str, width: int, height: int, margin: Mapping[str, int]) -> Any:
    """Set the title, the size and the margins around a drawing of `height`; a picture is at least as wide as its title."""
    wide, top = max(width, 30 + 9 * len(title)), 44
    heading = {
        "text": escape(title, quote=False), "font": {"size": 16}, "xref": "container", "x": 15 / wide, "xanchor": "left",
        "yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 10},
    }  # fmt: skip
    around = {**margin, "t": top + margin["t"], "r": margin["r"] + wide - width}
    size = {"width": wide, "height": top + margin["t"] + height + margin["b"]}
    return figure.update_layout(title=heading, template="plotly_white", margin=around, **size)


def cell_width(columns: Sequence[str], words: Sequence[Sequence[str]] | None) -> int:
    """Return pixels that leave the words of cells readable and slanted names apart; a page may be wider than a screen."""
    if words is not None:
        wanted = max(text_width(longest(columns)), *(text_width(longest(map(shorten, row))) for row in words))
    else:
        wanted = max(34 if len(columns) <= 40 else 18, 34 * 6 // max(len(columns), 1))
    return max(1, min(wanted, LARGEST // max(len(columns), 1)))


def text_width(text: str) -> int:
    """Estimate the pixels of a text."""
    return 16 + 8 * len(text)


def longest(names: Iterable[str]) -> str:
    return max(names, key=len, default="")


def shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def labels(names: Iterable[str]) -> list[str]:
    """Escape tags for plotly, which interprets some HTML but no quotes."""
    return [escape(name, quote=False) for name in names]
