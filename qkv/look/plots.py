"""Pictures of what look/ finds, drawn by plotly.

    look.attention(layer=1).figure().show()

In a notebook results show themselves. `qkv look` writes its report without plotly (report.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from torch import Tensor

from qkv.errors import QkvError
from qkv.look.pictures import Bars, picture
from qkv.look.result import Result

PLAIN, TWO_WAYS = "Blues", "RdBu"
"""Colours of weights from 0, and of numbers on both sides of it."""
LETTERS, SLANT = 13, 50
"""The size of the words in cells, in pixels, and the angle of names that are wider than their columns."""
LONGEST = 42
"""Letters of a name; the rest is cut off."""
LARGEST = 12_000
"""Pixels, of a picture of very many tokens."""
QUIET = {"displayModeBar": False}
"""No toolbar: it would lie over the title. Drag to enlarge, double-click to see all again."""


def plotly() -> Any:
    """The library, or how to get it."""
    try:
        import plotly.graph_objects as found
    except ImportError:
        raise QkvError('pictures need plotly: pip install "qkv[look]"') from None
    return found


def figure(result: Result) -> Any:
    """The picture of a result."""
    found = picture(result)
    if isinstance(found, Bars):
        return bars(found.title, found.names, found.values)
    return table(
        found.title, found.panels, found.rows, found.columns, found.two_ways, found.words, found.across, found.down
    )


def fragment(result: Result) -> str:
    """A picture as a piece of HTML, with plotly itself in it."""
    return figure(result).to_html(full_html=False, include_plotlyjs=True, config=QUIET)  # type: ignore[no-any-return]


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
    """Names as plotly shows them: < is no tag."""
    return [shown(name) for name in names]


def shown(text: str) -> str:
    return escape(text, quote=False)  # plotly has its own list of what it reads back, and quotes are not on it
