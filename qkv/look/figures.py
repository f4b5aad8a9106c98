"""Heatmaps of attention weights and confusion matrices as SVG; text and frame, which charts.py uses too."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

INK, GRID = "#1f2933", "#d9dee4"
LONGEST = 24
"""Characters of a class name; the rest is cut off."""


def heatmap(rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]], title: str) -> str:
    """Draw attention weights between 0 and 1 (dark = 1) from each row (target word) to each column (source word)."""
    cells = [[f"{weight:.1f}" if weight >= 0.05 else "" for weight in row] for row in weights]
    return table(rows, columns, weights, cells, title)


def matrix(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str) -> str:
    """Draw a confusion matrix: rows are the correct classes, columns the predicted ones; the shade is the share of the row."""
    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    cells = [[f"{count:,}" if count else "" for count in row] for row in counts]
    names = [label if len(label) <= LONGEST else label[: LONGEST - 1] + "…" for label in labels]
    total = sum(count for row in counts for count in row)
    return table(names, names, shares, cells, title, f"rows: correct, columns: predicted; {total:,} examples")


def table(rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]], cells: Sequence[Sequence[str]],
          title: str, note: str = "") -> str:  # fmt: skip
    """Draw cells with shades from weights between 0 and 1, and the text `cells` in them."""
    cell = max(34, 12 + 7 * max((len(words) for row in cells for words in row), default=0))
    left = 24 + 8 * max(map(len, rows))
    top = 60 + 7 * max(map(len, columns))
    parts = [text(20, 28, title, 16, bold=True), text(20, 46, note, 11)]
    for j, word in enumerate(columns):
        x = left + (j + 0.5) * cell
        parts.append(f'<g transform="rotate(-50 {x:.0f} {top - 8})">{text(x, top - 8, word, 13)}</g>')
    for i, word in enumerate(rows):
        parts.append(text(left - 8, top + (i + 0.62) * cell, word, 13, "end"))
        for j, weight in enumerate(weights[i]):
            label = f"{word} - {columns[j]}: {weight:.2f}"
            parts.append(square(left + j * cell, top + i * cell, cell, weight, label, cells[i][j]))
    width = max(left + cell * len(columns) + 90, 40 + 10 * len(title))
    return svg(width, top + cell * len(rows) + 24, parts)


def square(x: float, y: float, size: float, weight: float, label: str, content: str) -> str:
    shade = f"rgba(11,107,203,{min(max(weight, 0.0), 1.0):.3f})"
    box = f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{shade}" stroke="{GRID}"><title>{escape(label)}</title></rect>'
    number = text(x + size / 2, y + size / 2 + 4, content, 10, "middle", "#fff" if weight > 0.5 else INK)
    return box + (number if content else "")


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
