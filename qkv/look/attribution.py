"""Attribution: how much each token of the input did for one number of the output.

Three answers to one question, each about the vectors x that enter the stacks, against those of a blank input b (padding in
place of every word; a blank image):

    input x gradient       x_i . df/dx_i: what a small change of token i would do
    integrated gradients   (x_i - b_i) . integral of df/dx_i from b to x (Sundararajan et al. 2017): adds up to f(x) - f(b)
    occlusion              f(x) - f(x with b_i in place of x_i): what is lost without token i (Zeiler and Fergus 2014)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.patch import activations, one_at_a_time
from qkv.look.pictures import Heatmap, Picture, quote
from qkv.look.residual_stream import halves
from qkv.look.result import LookResult, plain
from qkv.look.target import Question, one_input, repeated
from qkv.parts.tap import edit

METHODS = ("gradient", "integrated", "occlusion")
NODES, MOST_NODES = 16, 2048
"""Points of the path in one panel (Gauss-Legendre), and in all of them at most."""
CLOSE = 0.005
"""Integrated gradients are refined until their sum is this close to the difference."""
ROWS = 64
"""Points of the path that are done as one batch."""


@dataclass(frozen=True)
class Attribution(LookResult):
    """A score for each token of the input, for each answer asked about."""

    EXPLANATION: ClassVar[str] = (
        "Blue tokens (columns) raise the score of the prediction in that row, orange tokens lower it."
    )
    METHOD: ClassVar[dict[str, str]] = {
        "gradient": "Input × gradient is a local approximation: the attributions need not sum to the output.",
        "occlusion": "Occlusion measures the change when the token is masked.",
    }

    method: str
    answers: list[str]
    """What was asked about: the rows."""
    tokens: list[str]
    """The columns: of an encoder-decoder first the source, then what was written before."""
    n_source: int
    """How many of them are the source's."""
    scores: Tensor
    """(answers, tokens)."""
    difference: Tensor
    """(answers,): f of the input minus f of the blank one."""

    @property
    def gap(self) -> Tensor:
        """(answers,): the sum of the scores minus the difference. Integrated gradients are complete: 0 but for the error of
        the integral. The other methods promise nothing of the kind."""
        return self.scores.double().sum(1) - self.difference.double()

    @property
    def converged(self) -> list[bool] | None:
        """Of integrated gradients, whether the scores of each answer add up to the difference; None of the others."""
        pairs = zip(self.gap.tolist(), self.difference.tolist(), strict=True)
        return [complete(gap, whole) for gap, whole in pairs] if self.method == "integrated" else None

    @property
    def note(self) -> str:
        """Which answers' scores have not converged; "" where there is nothing to say."""
        found = zip(self.answers, self.converged or [], self.gap.tolist(), self.difference.tolist(), strict=False)
        late = [f"{answer!r}: the scores add up to {gap + whole:.4g}, the difference is {whole:.4g}"
                for answer, done, gap, whole in found if not done]  # fmt: skip
        return f"integrated gradients not converged after {MOST_NODES:,} steps: {'; '.join(late)}" if late else ""

    def explain(self) -> str:
        return f"{self.EXPLANATION} {self.METHOD.get(self.method) or self.completeness()}"

    def completeness(self) -> str:
        """Say how far integrated gradients add up to the difference that they explain."""
        gap, difference = max(
            zip(self.gap.tolist(), self.difference.tolist(), strict=True), key=lambda pair: abs(pair[0])
        )
        return (
            "Integrated gradients sum to the difference from a blank input; here the largest gap is "
            f"{abs(gap):.2g} of {abs(difference):.3g}."
        )

    def picture(self) -> Picture:
        answer = quote(self.answers[0]) if len(self.answers) == 1 else "each prediction"
        title = f"attribution ({self.method}): contribution of each token to {answer}"
        return Heatmap(title, {"": self.scores}, self.answers, self.tokens, diverging=True)

    def to_json(self) -> dict[str, Any]:
        """With the completeness gap, whether each answer's scores have converged, and the note."""
        told = {"gap": self.gap, "converged": self.converged, "note": self.note}
        return super().to_json() | {name: plain(value) for name, value in told.items()}


def complete(gap: float, difference: float) -> bool:
    """Whether the scores add up to the difference, as far as is asked for."""
    return abs(gap) <= CLOSE * abs(difference) + 1e-6


def entrances(network: Any) -> list[str]:
    """The modules whose output enters the stacks."""
    both = hasattr(network, "encoder")
    return [halves(network, source=True)[0], halves(network)[0]] if both else [halves(network)[0]]


def blank(batch: Batch, token: int) -> Batch:
    """The input that says nothing: one token everywhere, an image of zeros (grey, as images are normalised)."""
    words = {
        name: torch.full_like(ids, token) for name in ("inputs", "source") if (ids := getattr(batch, name)) is not None
    }
    images = None if batch.images is None else torch.zeros_like(batch.images)
    return replace(batch, images=images, **words)


def attribute(network: Any, batch: Batch, asked: Sequence[Question], method: str, token: int) -> tuple[Tensor, Tensor]:
    """(questions, tokens) scores and (questions,) f(x) - f(blank); `token` is what stands in a blank text."""
    if method not in METHODS:
        raise QkvError(f"a method of attribution is one of {', '.join(METHODS)}, given {method!r}")
    one_input(batch)
    names, nothing = entrances(network), blank(batch, token)
    x, b = activations(network, batch, names), activations(network, nothing, names)
    found, differences = [], []
    for ask in asked:
        with torch.no_grad():
            whole, none = float(ask(network(batch))[0]), float(ask(network(nothing))[0])
        differences.append(whole - none)
        if method == "gradient":
            slopes = gradients(network, batch, ask, {name: x[name] for name in names})
            scores = [(x[name] * slopes[name]).sum(-1)[0] for name in names]
        elif method == "integrated":
            scores = integrated(network, batch, ask, x, b, whole - none)
        else:
            with torch.no_grad():
                scores = [whole - one_at_a_time(network, batch, ask, name, b[name]) for name in names]
        found.append(torch.cat([score.float().cpu() for score in scores]))
    return torch.stack(found), torch.tensor(differences)


def gradients(network: Any, batch: Batch, ask: Question, entering: dict[str, Tensor]) -> dict[str, Tensor]:
    """df/dx for vectors (N, T, C) that enter in place of the input's own, N runs at once."""
    leaves = {name: x.detach().requires_grad_() for name, x in entering.items()}
    rows = next(iter(leaves.values())).size(0)
    with torch.enable_grad(), edit(network, {name: lambda _, leaf=leaf: leaf for name, leaf in leaves.items()}):  # type: ignore[misc]
        total = ask(network(repeated(batch, rows))).sum()
        slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {name: torch.zeros_like(leaves[name]) if g is None else g for name, g in zip(leaves, slopes, strict=True)}


def integrated(network: Any, batch: Batch, ask: Question, x: dict[str, Tensor], b: dict[str, Tensor], difference: float
               ) -> list[Tensor]:  # fmt: skip
    """(T,) for each entrance: the path in ever more panels, until the scores add up to the difference, or there are enough."""
    panels = 1
    while True:
        means = path_mean(network, batch, ask, x, b, *nodes(panels))
        scores = [((x[name] - b[name]) * means[name]).sum(-1)[0] for name in x]
        gap = sum(float(score.double().sum()) for score in scores) - difference
        if complete(gap, difference) or 2 * panels * NODES > MOST_NODES:
            return scores
        panels *= 2


def nodes(panels: int) -> tuple[Tensor, Tensor]:
    """Points on (0, 1) and their weights, by the rule of Gauss and Legendre in each of some equal panels."""
    at, weight = np.polynomial.legendre.leggauss(NODES)
    starts = np.arange(panels)[:, None]
    points = (starts + (at + 1) / 2) / panels  # (panels, NODES)
    weights = np.broadcast_to(weight / 2 / panels, points.shape)
    return torch.from_numpy(points.ravel()), torch.from_numpy(weights.ravel().copy())


def path_mean(network: Any, batch: Batch, ask: Question, x: dict[str, Tensor], b: dict[str, Tensor], points: Tensor,
              weights: Tensor) -> dict[str, Tensor]:  # fmt: skip
    """(1, T, C) for each entrance: the mean gradient between b and x."""
    total = {name: torch.zeros_like(x[name]) for name in x}
    for some, weight in zip(points.split(ROWS), weights.split(ROWS), strict=True):
        entering = {}
        for name in x:
            share = some.to(x[name])[:, None, None]  # (N, 1, 1)
            entering[name] = b[name] + share * (x[name] - b[name])  # (N, T, C)
        slopes = gradients(network, batch, ask, entering)
        for name in x:
            total[name] += (slopes[name] * weight.to(x[name])[:, None, None]).sum(0, keepdim=True)
    return total
