"""The answers of a network as results: at one token, at every token; and the attention of one token to some others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from qkv.look.pictures import BarChart, Heatmap, Picture, head_heatmap, quote
from qkv.look.result import LookResult

WHOLE = "(all)"
"""The position of an answer that is about the whole input."""


@dataclass(frozen=True)
class Answers(LookResult):
    """The most probable answers at one token, or for the whole input, best first."""

    EXPLANATION: ClassVar[str] = (
        "The most likely predictions. One long bar means a confident prediction; many short bars, an uncertain one."
    )
    SCORE: ClassVar[str] = "The score that the model predicts for this input."

    at: str
    words: list[str]
    probabilities: Tensor
    """(k,); of a regression its score."""
    measure: str = "probability"
    """What the numbers are: "score" for a regression."""

    def picture(self) -> Picture:
        if self.measure == "score":
            return BarChart(f"score: {float(self.probabilities[0]):.3f}", self.words, self.probabilities)
        at = "for the whole input" if self.at == WHOLE else f"at {quote(self.at)}"
        return BarChart(f"most likely predictions {at}", self.words, self.probabilities)


@dataclass(frozen=True)
class TokenAnswers(LookResult):
    """The most probable answers at each token (tags, original or replaced), best first."""

    EXPLANATION: ClassVar[str] = "The most likely labels of every token, best first; the colour is the probability."

    tokens: list[str]
    words: list[list[str]]
    """(tokens, k)."""
    probabilities: Tensor
    """(tokens, k)."""

    def picture(self) -> Picture:
        rows = [f"{number + 1}." for number in range(self.probabilities.size(1))]
        words = [list(row) for row in zip(*self.words, strict=True)]
        return Heatmap("predictions at every token", {"": self.probabilities.T}, rows, self.tokens, words=words)


@dataclass(frozen=True)
class AttentionTo(LookResult):
    """The attention weights from one token to some others, in every layer and head."""

    EXPLANATION: ClassVar[str] = (
        "Attention weight from one token to another in every layer (row) and head (column); the menu selects the key token."
    )

    token: str
    others: list[str]
    weights: Tensor
    """(layers, heads, others)."""
    layers: list[int]

    def picture(self) -> Picture:
        panels = {f"{self.token} → {other}": self.weights[..., i] for i, other in enumerate(self.others)}
        return head_heatmap(f"attention weights of {quote(self.token)}", panels, self.layers)
