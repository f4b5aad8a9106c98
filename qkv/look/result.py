"""Result: what a look inside gives: names and plain tensors, as JSON where a page or a file wants them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Result:
    """The base of all results: frozen records of strings, numbers, lists and tensors."""

    def to_json(self) -> dict[str, Any]:
        """The same in lists, strings and numbers; what is not finite is null."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    def figure(self) -> Any:
        """Its picture, a plotly Figure."""
        from qkv.look.plots import figure

        return figure(self)

    def _repr_html_(self) -> str | None:
        """In a notebook: the picture, where there is one and plotly is installed."""
        from qkv.errors import QkvError
        from qkv.look.plots import fragment

        try:
            return fragment(self)
        except QkvError:
            return None


def plain(value: Any) -> Any:
    """Tensors as nested lists, records as objects."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value
