"""Pictures as SVG, which every browser shows: curves and tables of attention weights. No plotting library needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

INK, GRID = "#1f2933", "#d9dee4"
COLOURS = ("#0b6bcb", "#d1495b", "#3a9d5d", "#8a4fbf", "#c77d0a", "#138086")
Points = Sequence[tuple[float, float]]
FEW = 40
"""Points that are drawn one by one; a single one makes no line."""


def curves(panels: Mapping[str, Mapping[str, Points]], title: str, across: str) -> str:
    """One panel below the other, each a name and its lines {label: [(x, y), ...]}, over the same x axis `across`."""
    width, height, top = 760, 230, 50
    parts = [text(width / 2, 26, title, 17, "middle", bold=True)]
    xs = ticks([x for lines in panels.values() for line in lines.values() for x, _ in line] or [0.0])
    labels = dict.fromkeys(label for lines in panels.values() for label in lines)
    colours = {label: COLOURS[number % len(COLOURS)] for number, label in enumerate(labels)}  # alike in every panel
    for index, (name, lines) in enumerate(panels.items()):
        parts.append(panel(name, lines, xs, (70, top + index * height, width - 100, height - 60), across, colours))
    return svg(width, top + height * len(panels), parts)


def panel(name: str, lines: Mapping[str, Points], xs: Sequence[float], box: tuple[float, float, float, float], across: str,
          colours: Mapping[str, str]) -> str:  # fmt: skip
    """One panel in `box` (left, top, width, height), with the ticks `xs` of the shared axis; few points are also dots."""
    left, top, width, height = box
    points = [p for line in lines.values() for p in line if all(map(math.isfinite, p))]
    if not points:
        return text(left, top + 20, f"{name}: nothing yet", 13)
    ys = ticks([y for _, y in points])
    place_x = lambda x: left + (x - xs[0]) / (xs[-1] - xs[0]) * width  # noqa: E731
    place_y = lambda y: top + height - (y - ys[0]) / (ys[-1] - ys[0]) * height  # noqa: E731
    parts = []
    for y in ys:
        parts.append(
            f'<line x1="{left}" x2="{left + width}" y1="{place_y(y):.1f}" y2="{place_y(y):.1f}" stroke="{GRID}"/>'
        )
        parts.append(text(left - 8, place_y(y) + 4, f"{y:g}", 11, "end"))
    parts += [text(place_x(x), top + height + 17, f"{x:,.0f}", 11, "middle") for x in xs]
    parts.append(text(left + width, top + height + 34, across, 11, "end"))
    parts.append(text(left, top - 8, name, 13, bold=True))
    right = left + width
    for label, line in lines.items():
        colour, real = colours[label], [(place_x(x), place_y(y)) for x, y in line if math.isfinite(y)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in real)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(real) <= FEW:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in real]
        parts.append(text(right, top - 8, label, 12, "end", colour))
        right -= 7 * len(label) + 20  # a letter of size 12 is at most so wide, nearly always
    return "".join(parts)


def heatmap(rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]], title: str) -> str:
    """A table of weights between 0 and 1, dark = 1: which column (source word) each row (target word) looks at."""
    cell = 34
    left = 24 + 8 * max(map(len, rows))
    top = 60 + 7 * max(map(len, columns))
    parts = [text(20, 28, title, 16, bold=True)]
    for j, word in enumerate(columns):
        x = left + (j + 0.5) * cell
        parts.append(f'<g transform="rotate(-50 {x:.0f} {top - 8})">{text(x, top - 8, word, 13)}</g>')
    for i, word in enumerate(rows):
        parts.append(text(left - 8, top + (i + 0.62) * cell, word, 13, "end"))
        for j, weight in enumerate(weights[i]):
            parts.append(square(left + j * cell, top + i * cell, cell, weight, f"{word} - {columns[j]}: {weight:.2f}"))
    width = max(left + cell * len(columns) + 90, 40 + 10 * len(title))
    return svg(width, top + cell * len(rows) + 24, parts)


def square(x: float, y: float, size: float, weight: float, label: str) -> str:
    shade = f"rgba(11,107,203,{min(max(weight, 0.0), 1.0):.3f})"
    box = f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{shade}" stroke="{GRID}"><title>{escape(label)}</title></rect>'
    number = text(x + size / 2, y + size / 2 + 4, f"{weight:.1f}", 10, "middle", "#fff" if weight > 0.5 else INK)
    return box + (number if weight >= 0.05 else "")


def ticks(values: Sequence[float], about: int = 5) -> list[float]:
    """Round numbers that span the values."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / about
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(k * step, 10) for k in range(first, last + 1)]


def text(
    x: float, y: float, words: str, size: int, anchor: str = "start", colour: str = INK, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )
