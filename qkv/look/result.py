"""LookResult: the base of everything that looking inside a model returns: plain tensors and names, JSON, a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from qkv.errors import QkvError
from qkv.look.pictures import Picture


@dataclass(frozen=True)
class LookResult:
    """Base class: a frozen record of strings, numbers, lists and tensors."""

    EXPLANATION: ClassVar[str] = ""
    """How to read the picture, in a sentence or two."""
    SCORE: ClassVar[str] = ""
    """The same for a regression, whose `measure` is "score"."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as lists, strings and numbers; values that are not finite become null."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    def picture(self) -> Picture:
        """Return the heatmap or bar chart of this result as plain data."""
        raise QkvError(f"{type(self).__name__} has no picture: print it, or use its to_json()")

    def explain(self) -> str:
        """Return a sentence that says how to read the picture."""
        return self.SCORE if getattr(self, "measure", "") == "score" else self.EXPLANATION

    def figure(self) -> Any:
        """Return the picture as a plotly Figure."""
        from qkv.look.plots import figure

        return figure(self.picture())

    def _repr_html_(self) -> str | None:
        """Show the picture in a notebook, where there is one and plotly is installed."""
        from qkv.look.plots import html

        try:
            return html(self.picture())
        except QkvError:
            return None


def plain(value: Any, shorten: Callable[[float], float] = float) -> Any:
    """Convert tensors to nested lists and results to dictionaries; numbers become `shorten(number)`, or None if not finite."""
    if isinstance(value, Tensor):
        return plain(value.tolist(), shorten)
    if isinstance(value, float):
        return shorten(value) if math.isfinite(value) else None
    if isinstance(value, LookResult):
        return plain(value.to_json(), shorten)
    if isinstance(value, dict):
        return {str(key): plain(one, shorten) for key, one in value.items()}
    return [plain(one, shorten) for one in value] if isinstance(value, list | tuple) else value
