"""Heatmap and BarChart: how a result is drawn, as plain data. plots.py draws them with plotly, report.py as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Heatmap:
    """Numbers (rows, columns) as colours. Several panels share the axes, and a menu selects one."""

    title: str
    panels: Mapping[str, Tensor]
    rows: Sequence[str]
    columns: Sequence[str]
    diverging: bool = False
    """Whether numbers below and above 0 have different colours."""
    words: Sequence[Sequence[str]] | None = None
    """Text of the cells."""
    x_title: str = ""
    y_title: str = ""


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars with their names, the first on top."""

    title: str
    names: Sequence[str]
    values: Tensor


Picture = Heatmap | BarChart
ATTENTION_TYPES = {
    "self": "self-attention",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
SUBLAYERS = {"cross": "cross-attention", "feedforward": "feed-forward", "hidden": "state"}
"""Names in titles and rows, by the short names of the API."""


def quote(token: str) -> str:
    """Quote a token in a title, without the mark of the space before it unless there is nothing else."""
    return f"'{token.strip('␣') or token}'"


def point_names(points: Sequence[str]) -> list[str]:
    """Return points of the residual stream as they are shown: "1 cross" becomes "1 cross-attention"."""
    return [" ".join(SUBLAYERS.get(word, word) for word in point.split(" ")) for point in points]


def head_heatmap(title: str, panels: Mapping[str, Tensor], layers: Sequence[int], diverging: bool = False) -> Heatmap:
    """Return a heatmap of values (layers, heads)."""
    heads = [str(i) for i in range(next(iter(panels.values())).size(1))]
    return Heatmap(title, panels, [str(layer) for layer in layers], heads, diverging, x_title="head", y_title="layer")
