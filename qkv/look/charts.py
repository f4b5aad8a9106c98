"""Line charts as SVG, without a plotting library: `lines` draws one panel, `curves` several over one x axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.look.figures import GRID, svg, text

COLOURS = ("#0b6bcb", "#d1495b", "#2f8f53", "#8a4fbf", "#b8720a", "#12a5b8", "#5b6773", "#c2348f")
DASHES = ("", "7 4", "2 3")
"""When the colours are used y_axis they are repeated, dashed."""
Points = Sequence[tuple[float, float]]
Series = Mapping[str, Points]
"""name -> [(x, y), ...]; values that are not finite are left out."""
FEW = 40
"""Lines of at most so many points also have dots."""
WIDTH, LEFT, RIGHT = 760, 70, 730
"""Width of the drawing, left and right end of the panels."""


def lines(series: Series, title: str, x: str, y: str, log_x: bool = False, log_y: bool = False) -> str:
    """Draw one panel with the lines {name: [(x, y), ...]}; `x` and `y` are the axis titles."""
    return curves({y: series}, title, x, log_x, log_y, height=440)


def curves(panels: Mapping[str, Series], title: str, across: str, log_x: bool = False, log_y: bool = False,
           height: int = 230) -> str:  # fmt: skip
    """Draw panels {name: its lines} below each other over one x axis with title `across`; a line has one colour in all."""
    panels = {name: {label: real(line) for label, line in series.items()} for name, series in panels.items()}
    xs = [x for series in panels.values() for line in series.values() for x, _ in line] or [1.0]
    x_axis = axis(across, xs, (LEFT, RIGHT), log_x)
    styles = {label: style(i) for i, label in enumerate(dict.fromkeys(n for s in panels.values() for n in s))}
    parts, top = heading(title, styles)
    for name, series in panels.items():
        parts.append(panel(name, series, x_axis, (top + 22, top + height - 40), log_y, styles))
        top += height
    return svg(WIDTH, top, parts)


# --- axes


@dataclass(frozen=True)
class Axis:
    """Map values to pixels: `ticks[0]` is at `start`, `ticks[-1]` at `end`."""

    label: str
    ticks: list[float]
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.ticks[0], self.ticks[-1], value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def axis(label: str, values: Sequence[float], ends: tuple[float, float], log: bool = False) -> Axis:
    """Return a linear axis, or a logarithmic one for values above 0."""
    if log and min(values) <= 0:
        raise QkvError(
            f"{label}: {min(values):g} cannot be drawn on a logarithmic axis: leave it out, or use a linear one"
        )
    return Axis(label, log_ticks(values) if log else ticks(values), *ends, log)


def ticks(values: Sequence[float], about: int = 5) -> list[float]:
    """Return round numbers that span the values."""
    low, high = min(values), max(values)
    size = max(abs(low), abs(high))
    if high - low < max(1e-9 * size, 1e-200):  # too close for distinct ticks
        room = max(0.5, 1e-6 * size)
        low, high = low - room, high + room
    raw = (high - low) / about
    exponent = math.floor(math.log10(raw))
    step = next(m * 10.0**exponent for m in (1, 2, 5, 10) if m * 10.0**exponent >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(k * step, 2 - exponent) for k in range(first, last + 1)]


def log_ticks(values: Sequence[float], about: int = 8) -> list[float]:
    """Return powers of two where all values are (16, 32, 64 ...), else of ten, in at most `about` steps that span the values;
    within two decades also 2 and 5 times them."""
    base = 2 if all(math.frexp(v)[0] == 0.5 for v in values) else 10
    first, last = (math.log(v, base) for v in (min(values), max(values)))
    low, high = math.floor(first + 1e-9), math.ceil(last - 1e-9)  # the logarithm of 1000 is 2.9999999999999996
    high = max(high, low + 1)
    if base == 10 and high - low <= 2:
        fine = [m * 10.0**k for k in range(low, high) for m in (1, 2, 5)] + [10.0**high]
        start = max(i for i, tick in enumerate(fine) if tick <= min(values) * (1 + 1e-9))
        end = min(i for i, tick in enumerate(fine) if tick >= max(values) * (1 - 1e-9))
        return fine[start : max(end, start + 1) + 1]
    step = math.ceil((high - low) / about)
    return [float(base) ** (low + k * step) for k in range(math.ceil((high - low) / step) + 1)]


def grid(y_axis: Axis) -> list[str]:
    """Draw horizontal lines at the ticks of the y axis, with their labels."""
    parts = [text(LEFT, y_axis.end - 8, y_axis.label, 13, bold=True)]
    for y in y_axis.ticks:
        at = f"{y_axis.place(y):.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}" stroke="{GRID}"/>')
        parts.append(text(LEFT - 8, y_axis.place(y) + 4, number(y), 11, "end"))
    return parts


def number(value: float) -> str:
    """Format a number briefly: 0.25, 4,096, 10⁻⁶."""
    size = abs(value)
    if size and not 1e-3 <= size < 1e6 and f"{size:e}".startswith("1.000000e"):
        return ("-" if value < 0 else "") + "10" + str(round(math.log10(size))).translate(RAISED)
    return f"{value:,.0f}" if size >= 1000 else f"{value:g}"


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


# --- drawing


@dataclass(frozen=True)
class Style:
    """Colour and dashes of the lines of one name."""

    colour: str
    dash: str


def style(index: int) -> Style:
    return Style(COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)])


def heading(title: str, styles: Mapping[str, Style]) -> tuple[list[str], float]:
    """Draw the title and below it the legend, in rows; return them and the height they take."""
    parts, x, y = [text(WIDTH / 2, 26, title, 17, "middle", bold=True)], float(LEFT), 52.0
    for name, look in styles.items():
        room = 7 * len(name) + 50  # the usual width of the characters
        if x + room > WIDTH and x > LEFT:
            x, y = LEFT, y + 18
        parts.append(stroke(f"{x:.1f},{y - 4:.1f} {x + 22:.1f},{y - 4:.1f}", look, 3.0))
        parts.append(text(x + 28, y, name, 12))
        x += room
    return parts, y + 14


def panel(
    name: str, series: Series, x_axis: Axis, ends: tuple[float, float], log_y: bool, styles: Mapping[str, Style]
) -> str:
    """Draw the lines between the heights `ends` = (top, bottom) over the shared x axis; few points are also dots."""
    top, bottom = ends
    ys = [y for line in series.values() for _, y in line]
    if not ys:
        return text(LEFT, top + 20, f"{name}: no data yet", 13)
    y_axis = axis(name, ys, (bottom, top), log_y)
    parts = grid(y_axis)
    parts += [text(x_axis.place(x), bottom + 17, number(x), 11, "middle") for x in x_axis.ticks]
    parts.append(text(RIGHT, bottom + 34, x_axis.label, 11, "end"))
    for label, line in series.items():
        look, places = styles[label], [(x_axis.place(x), y_axis.place(y)) for x, y in line]
        parts.append(stroke(" ".join(f"{x:.1f},{y:.1f}" for x, y in places), look))
        if len(places) <= FEW:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{look.colour}"/>' for x, y in places]
    return "".join(parts)


def stroke(path: str, look: Style, width: float = 1.8) -> str:
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{look.colour}" stroke-width="{width}"{dash}/>'


def real(line: Points) -> Points:
    return [(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)]
