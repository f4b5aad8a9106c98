"""Line and bar charts as SVG: `lines` and `bars` of one panel, `curves` of several over one axis. No plotting library needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.look.figures import GRID, svg, text

COLOURS = ("#0b6bcb", "#d1495b", "#2f8f53", "#8a4fbf", "#b8720a", "#12a5b8", "#5b6773", "#c2348f")
DASHES = ("", "7 4", "2 3")
"""Lines beyond the colours have the same ones again, dashed."""
Points = Sequence[tuple[float, float]]
Series = Mapping[str, Points]
"""name -> [(x, y), ...]; what is not finite is left out."""
FEW = 40
"""Points that are drawn one by one; a single one makes no line."""
WIDTH, LEFT, RIGHT = 760, 70, 730
"""Of the paper, and where the panels begin and end on it."""


def lines(series: Series, title: str, x: str, y: str, log_x: bool = False, log_y: bool = False) -> str:
    """One panel with the lines {name: [(x, y), ...]}; `x` and `y` say what the axes measure."""
    return curves({y: series}, title, x, log_x, log_y, height=440)


def curves(panels: Mapping[str, Series], title: str, across: str, log_x: bool = False, log_y: bool = False,
           height: int = 230) -> str:  # fmt: skip
    """One panel below the other, each {name: its lines}, over the same x axis `across`. A line has one colour in all."""
    panels = {name: {label: real(line) for label, line in series.items()} for name, series in panels.items()}
    xs = [x for series in panels.values() for line in series.values() for x, _ in line] or [1.0]
    flat = axis(across, xs, (LEFT, RIGHT), log_x)
    styles = {label: style(i) for i, label in enumerate(dict.fromkeys(n for s in panels.values() for n in s))}
    parts, top = heading(title, styles)
    for name, series in panels.items():
        parts.append(panel(name, series, flat, (top + 22, top + height - 40), log_y, styles))
        top += height
    return svg(WIDTH, top, parts)


def bars(series: Mapping[str, Mapping[str, float]], title: str, x: str, y: str) -> str:
    """Groups of bars side by side, {name: {group: height}}; bars stand on 0."""
    groups = list(dict.fromkeys(group for heights in series.values() for group in heights))
    styles = {name: style(i) for i, name in enumerate(series)}
    parts, top = heading(title, styles)
    up = axis(y, [0.0, *(h for heights in series.values() for h in heights.values())], (top + 362, top + 22))
    parts += grid(up)
    room = (RIGHT - LEFT) / max(len(groups), 1)
    for i, group in enumerate(groups):
        wide = 0.8 * room / len(series)
        parts.append(text(LEFT + (i + 0.5) * room, up.start + 17, group, 11, "middle"))
        for j, (name, heights) in enumerate(series.items()):
            if group in heights:
                ends = sorted((up.place(heights[group]), up.place(0.0)))
                parts.append(
                    f'<rect x="{LEFT + (i + 0.1) * room + j * wide:.1f}" y="{ends[0]:.1f}" width="{wide - 1:.1f}" '
                    f'height="{ends[1] - ends[0]:.1f}" fill="{styles[name].colour}"/>'
                )
    parts.append(text(RIGHT, up.start + 34, x, 11, "end"))
    return svg(WIDTH, top + 410, parts)


# --- axes


@dataclass(frozen=True)
class Axis:
    """Which value stands where on the paper: `ticks[0]` at `start`, `ticks[-1]` at `end`."""

    label: str
    ticks: list[float]
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.ticks[0], self.ticks[-1], value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def axis(label: str, values: Sequence[float], ends: tuple[float, float], log: bool = False) -> Axis:
    """Linear, or logarithmic for values above 0."""
    if log and min(values) <= 0:
        raise QkvError(
            f"{label}: a logarithmic axis has no place for {min(values):g}; leave it out or take a linear one"
        )
    return Axis(label, log_ticks(values) if log else ticks(values), *ends, log)


def ticks(values: Sequence[float], about: int = 5) -> list[float]:
    """Round numbers that span the values."""
    low, high = min(values), max(values)
    size = max(abs(low), abs(high))
    if high - low < max(1e-9 * size, 1e-200):  # too near to each other to be told apart by their ticks
        room = max(0.5, 1e-6 * size)
        low, high = low - room, high + room
    raw = (high - low) / about
    exponent = math.floor(math.log10(raw))
    step = next(m * 10.0**exponent for m in (1, 2, 5, 10) if m * 10.0**exponent >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(k * step, 2 - exponent) for k in range(first, last + 1)]


def log_ticks(values: Sequence[float], about: int = 8) -> list[float]:
    """Powers of two where all values are (16, 32, 64 ...), else of ten, with at most `about` steps, that span the values;
    within two decades also 2 and 5."""
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


def grid(up: Axis) -> list[str]:
    """The lines across at the ticks of the upright axis, and what they stand for."""
    parts = [text(LEFT, up.end - 8, up.label, 13, bold=True)]
    for y in up.ticks:
        at = f"{up.place(y):.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}" stroke="{GRID}"/>')
        parts.append(text(LEFT - 8, up.place(y) + 4, number(y), 11, "end"))
    return parts


def number(value: float) -> str:
    """As short as it can be read: 0.25, 4,096, 10⁻⁶."""
    size = abs(value)
    if size and not 1e-3 <= size < 1e6 and f"{size:e}".startswith("1.000000e"):
        return ("-" if value < 0 else "") + "10" + str(round(math.log10(size))).translate(RAISED)
    return f"{value:,.0f}" if size >= 1000 else f"{value:g}"


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


# --- what is drawn


@dataclass(frozen=True)
class Style:
    """How the lines of one name look."""

    colour: str
    dash: str


def style(index: int) -> Style:
    return Style(COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)])


def heading(title: str, styles: Mapping[str, Style]) -> tuple[list[str], float]:
    """The title and, below it, what each colour stands for, in rows; and where the panels may begin."""
    parts, x, y = [text(WIDTH / 2, 26, title, 17, "middle", bold=True)], float(LEFT), 52.0
    for name, look in styles.items():
        room = 7 * len(name) + 50  # a letter of size 12 is at most so wide, nearly always
        if x + room > WIDTH and x > LEFT:
            x, y = LEFT, y + 18
        parts.append(stroke(f"{x:.1f},{y - 4:.1f} {x + 22:.1f},{y - 4:.1f}", look, 3.0))
        parts.append(text(x + 28, y, name, 12))
        x += room
    return parts, y + 14


def panel(
    name: str, series: Series, flat: Axis, ends: tuple[float, float], log_y: bool, styles: Mapping[str, Style]
) -> str:
    """The lines between the heights `ends` = (top, bottom), over the shared axis `flat`; few points are also dots."""
    top, bottom = ends
    ys = [y for line in series.values() for _, y in line]
    if not ys:
        return text(LEFT, top + 20, f"{name}: nothing yet", 13)
    up = axis(name, ys, (bottom, top), log_y)
    parts = grid(up)
    parts += [text(flat.place(x), bottom + 17, number(x), 11, "middle") for x in flat.ticks]
    parts.append(text(RIGHT, bottom + 34, flat.label, 11, "end"))
    for label, line in series.items():
        look, places = styles[label], [(flat.place(x), up.place(y)) for x, y in line]
        parts.append(stroke(" ".join(f"{x:.1f},{y:.1f}" for x, y in places), look))
        if len(places) <= FEW:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{look.colour}"/>' for x, y in places]
    return "".join(parts)


def stroke(path: str, look: Style, width: float = 1.8) -> str:
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{look.colour}" stroke-width="{width}"{dash}/>'


def real(line: Points) -> Points:
    return [(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)]
