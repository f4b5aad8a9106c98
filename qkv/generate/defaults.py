"""How a model writes unless the caller says otherwise: settings of a search that come with a model's folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Defaults:
    """Settings of a search that a folder names (generation_config.json); None where it names none."""

    beam: int | None = None
    """Hypotheses kept per text; 1 = greedy."""
    length_penalty: float | None = None
    """Scores are divided by length to this power."""
    length_formula: str | None = None
    """Base of the length penalty: "power" = length, "gnmt" = (5 + length) / 6."""
    max_length: int | None = None
    """Longest output in tokens, its end token counted."""
    min_length: int | None = None
    """Shortest output in tokens, its end token counted."""
    no_repeat_ngram: int | None = None
    """No n-gram of this size occurs twice."""
    early: bool | None = None
    """Stop as soon as `beam` texts have ended."""
    extra_length: int | None = None
    """Longest output: so many tokens more than the source."""
    forced_end: bool | None = None
    """A text that reaches max_length ends there with the end token, which costs nothing."""

    def chosen(self, **told: Any) -> dict[str, Any]:
        """Of each (setting told by the caller, value that applies where nobody says anything): what counts."""
        found = {}
        for name, (given, usual) in told.items():
            own = getattr(self, name)
            found[name] = given if given is not None else usual if own is None else own
        return found
