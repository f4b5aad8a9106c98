"""Charts as SVG, without a plotting library: lines (one panel), curves (several over one x axis), dot plots and bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from qkv.errors import QkvError
from qkv.look.figures import GRID, INK, svg, text

COLOURS = ("#0b6bcb", "#d1495b", "#2f8f53", "#8a4fbf", "#b8720a", "#12a5b8", "#5b6773", "#c2348f")
DASHES = ("", "7 4", "2 3")
"""When the colours are used y_axis they are repeated, dashed."""
Points = Sequence[tuple[float, float]]
Series = Mapping[str, Points]
"""name -> [(x, y), ...]; values that are not finite are left out."""
NONE: Mapping[str, Any] = {}
FEW = 40
"""Lines of at most so many points also have dots."""
WIDTH, LEFT, RIGHT = 760, 70, 730
"""Width of the drawing, left and right end of the panels."""


def lines(series: Series, title: str, x: str, y: str, log_x: bool = False, log_y: bool = False,
          points: Series = NONE) -> str:  # fmt: skip
    """Draw one panel with the lines {name: [(x, y), ...]}; `x` and `y` are the axis titles.

    points: dots without lines, in the colour of the line of the same name.
    """
    return curves({y: series}, title, x, log_x, log_y, height=440, points={y: points})


def curves(panels: Mapping[str, Series], title: str, across: str, log_x: bool = False, log_y: bool = False,
           height: int = 230, points: Mapping[str, Series] = NONE) -> str:  # fmt: skip
    """Draw panels {name: its lines} below each other over one x axis with title `across`; a line has one colour in all.

    points: the same for dots without lines.
    """
    panels = {name: {label: real(line) for label, line in series.items()} for name, series in panels.items()}
    points = {name: {label: real(line) for label, line in points.get(name, {}).items()} for name in panels}
    every = [series for both in (panels, points) for series in both.values()]
    xs = [x for series in every for line in series.values() for x, _ in line] or [1.0]
    x_axis = axis(across, xs, (LEFT, RIGHT), log_x)
    styles = {label: style(i) for i, label in enumerate(dict.fromkeys(n for s in every for n in s))}
    parts, top = heading(title, styles)
    for name, series in panels.items():
        parts.append(panel(name, series, points[name], x_axis, (top + 22, top + height - 40), log_y, styles))
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

    def pixels(self, values: Iterable[float]) -> list[float]:
        low, high, *inner = (math.log10(v) if self.log else v for v in (self.ticks[0], self.ticks[-1], *values))
        return [self.start + (v - low) / (high - low) * (self.end - self.start) for v in inner]

    def marks(self) -> list[tuple[str, float]]:
        """Return the label and the pixel of each tick."""
        return list(zip(map(number, self.ticks), self.pixels(self.ticks), strict=True))


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
    for label, at in y_axis.marks():
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="{GRID}"/>')
        parts.append(text(LEFT - 8, at + 4, label, 11, "end"))
    return parts


def vertical_grid(x_axis: Axis, top: float, bottom: float) -> list[str]:
    """Draw vertical lines at the ticks of the x axis, with their labels and its title below."""
    parts = [text(x_axis.end, bottom + 34, x_axis.label, 11, "end")]
    for label, at in x_axis.marks():
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{GRID}"/>')
        parts.append(text(at, bottom + 16, label, 11, "middle"))
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


def panel(name: str, series: Series, points: Series, x_axis: Axis, ends: tuple[float, float], log_y: bool,
          styles: Mapping[str, Style]) -> str:  # fmt: skip
    """Draw lines and points between the heights `ends` = (top, bottom) over the shared x axis; a line of few points has dots too."""
    top, bottom = ends
    ys = [y for line in (*series.values(), *points.values()) for _, y in line]
    if not ys:
        return text(LEFT, top + 20, f"{name}: no data yet", 13)
    y_axis = axis(name, ys, (bottom, top), log_y)
    parts = grid(y_axis)
    parts += [text(at, bottom + 17, label, 11, "middle") for label, at in x_axis.marks()]
    parts.append(text(RIGHT, bottom + 34, x_axis.label, 11, "end"))
    for label, line in series.items():
        places = list(zip(x_axis.pixels(x for x, _ in line), y_axis.pixels(y for _, y in line), strict=True))
        parts.append(stroke(" ".join(f"{x:.1f},{y:.1f}" for x, y in places), styles[label]))
        parts.append(circles(places, styles[label]) if len(places) <= FEW else "")
    for label, line in points.items():
        places = list(zip(x_axis.pixels(x for x, _ in line), y_axis.pixels(y for _, y in line), strict=True))
        parts.append(circles(places, styles[label], 4.5))
    return "".join(parts)


def circles(places: Points, look: Style, radius: float = 3) -> str:
    return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{look.colour}"/>' for x, y in places)


def stroke(path: str, look: Style, width: float = 1.8) -> str:
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{look.colour}" stroke-width="{width}"{dash}/>'


def real(line: Points) -> Points:
    return [(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)]


# --- intervals


@dataclass(frozen=True)
class DotRow:
    """One row of a dot plot: the single values, their mean and half the width of its interval."""

    name: str
    values: Sequence[float]
    mean: float
    half_width: float
    """Infinite where there is no interval."""


def dot_plot(rows: Sequence[DotRow], title: str, x: str, reference: float | None = None) -> str:
    """Draw one row per name: values as pale dots, the mean as a dark one, its interval as a line, which the
    border may cut; `reference` is a dashed line."""
    shown = [row for row in rows if math.isfinite(row.mean)]
    left = 24 + 7 * max((len(row.name) for row in shown), default=0)
    width, top, pitch = left + 480, 62, 30
    bottom = top + pitch * len(shown)
    x_axis = axis(x, dot_range(shown), (left, width - 40))
    parts = [text(20, 28, title, 16, bold=True), *vertical_grid(x_axis, top - 8, bottom)]
    if reference is not None:
        (at,) = x_axis.pixels([reference])
        parts.append(stroke(f"{at:.1f},{top - 8} {at:.1f},{bottom}", Style(COLOURS[6], DASHES[1]), 1.2))
    for place, row in enumerate(shown):
        y = top + pitch * (place + 0.4)
        parts.append(text(left - 12, y + 4, row.name, 12, "end"))
        parts.append(dots(row, x_axis, y))
    return svg(width, bottom + 48, parts)


def dot_range(rows: Sequence[DotRow]) -> list[float]:
    """Return numbers that the axis spans: all values, and the intervals as far as they are not much wider than the values."""
    values = [value for row in rows for value in row.values] + [row.mean for row in rows]
    if not values:
        return [0.0, 1.0]
    span = max(max(values) - min(values), 1e-3 * abs(values[0]))
    ends = [row.mean + sign * row.half_width for row in rows for sign in (-1, 1) if math.isfinite(row.half_width)]
    return [*values, *(min(max(end, min(values) - span), max(values) + span) for end in ends)]


def dots(row: DotRow, x_axis: Axis, y: float) -> str:
    """Draw the values, the interval and the mean of one row at height `y`."""
    at, *values = x_axis.pixels([row.mean, *row.values])
    parts = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[0]}" fill-opacity="0.3"/>' for x in values]
    if math.isfinite(row.half_width):
        places = x_axis.pixels(row.mean + sign * row.half_width for sign in (-1, 1))
        low, high = (min(max(place, x_axis.start), x_axis.end) for place in places)  # a wide one ends at the border
        parts.append(stroke(f"{low:.1f},{y:.1f} {high:.1f},{y:.1f}", Style(COLOURS[0], "")))
    mean = f"{row.name}: {row.mean:g}" + (f" ± {row.half_width:g}" if math.isfinite(row.half_width) else "")
    dot = f'<circle cx="{at:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[0]}">'
    return "".join(parts) + f"{dot}<title>{escape(mean)}</title></circle>"


# --- bars

BarValues = Mapping[str, tuple[float, float]]
"""name -> (value, half the width of its interval; 0 or infinite = no interval)."""
BAR, GAP = 15, 12
"""Height of a bar, and space between two groups."""


def bars(groups: Mapping[str, BarValues], title: str, across: str, limits: tuple[float, float] = (-math.inf, math.inf)
         ) -> str:  # fmt: skip
    """Draw horizontal bars {group: {series: (value, half width)}} from 0; a series has one colour in all groups. `limits`: least and
    largest possible values, at which the lines of intervals end."""
    values = [one for own in groups.values() for one in own.values() if math.isfinite(one[0])]
    ends = [end for value, half in values for end in interval(value, half, limits) if math.isfinite(half)]
    names = list(dict.fromkeys(name for own in groups.values() for name in own))
    styles = {name: style(i) for i, name in enumerate(names)}
    left = 24 + 7 * max((len(group) for group in groups), default=0)
    x_axis = axis(across, [0.0, *(v for v, _ in values), *ends], (left, RIGHT - 60))
    parts, top = heading(title, styles if len(names) > 1 else {})
    y = top
    for group, own in groups.items():
        parts.append(text(left - 8, y + GAP / 2 + BAR * len(own) / 2 + 4, group, 12, "end"))
        for i, (name, value) in enumerate(own.items()):
            parts.append(bar(x_axis, y + GAP / 2 + BAR * i, value, styles[name].colour, limits))
        y += BAR * len(own) + GAP
    return svg(WIDTH, y + 44, [*vertical_grid(x_axis, top, y), *parts])  # the bars over the grid


def interval(value: float, half: float, limits: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of value ± half, cut at the limits."""
    return max(value - half, limits[0]), min(value + half, limits[1])


def bar(x_axis: Axis, y: float, value: tuple[float, float], colour: str, limits: tuple[float, float]) -> str:
    """Draw one bar, a line for its interval, and its number; a value that is not finite is written only."""
    size, half = value
    if not math.isfinite(size):
        return text(x_axis.pixels([0])[0] + 6, y + 11, f"{size:g}", 11)
    low, high = sorted(x_axis.pixels([0, size]))
    parts = [
        f'<rect x="{low:.1f}" y="{y + 1:.1f}" width="{max(high - low, 1):.1f}" height="{BAR - 3}" fill="{colour}"/>'
    ]
    end = high
    if half and math.isfinite(half):
        ends = x_axis.pixels(interval(size, half, limits))
        middle, end = y + BAR / 2, max(high, *ends)
        parts.append(
            f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="{INK}"/>'
        )
    return "".join([*parts, text(end + 5, y + 11, f"{size:.4g}", 11)])
