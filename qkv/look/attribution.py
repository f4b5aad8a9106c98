"""Attribution: how much each token of the input contributed to one number f of the output.

Three methods, applied to the embeddings x of the input and those of a blank baseline b (padding in place of every token; a blank
image):

    input x gradient       x_i . df/dx_i: the effect of a small change of token i
    integrated gradients   (x_i - b_i) . integral of df/dx_i from b to x (Sundararajan et al. 2017): sums to f(x) - f(b)
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
from qkv.look.patch import activations, patch_each
from qkv.look.pictures import Heatmap, Picture, quote
from qkv.look.residual_stream import side_modules
from qkv.look.result import LookResult, plain
from qkv.look.target import Target, check_single_input, repeat
from qkv.parts.tap import edit

METHODS = ("gradient", "integrated", "occlusion")
NODES, MOST_NODES = 16, 2048
"""Points of the path in one panel (Gauss-Legendre), and the maximum over all panels."""
CLOSE = 0.005
"""Relative tolerance: integrated gradients are refined until their sum is this close to the difference."""
ROWS = 64
"""Points of the path that are computed as one batch."""


@dataclass(frozen=True)
class Attribution(LookResult):
    """A score for each token of the input, for each explained answer."""

    EXPLANATION: ClassVar[str] = (
        "Blue tokens (columns) raise the score of the prediction in that row, orange tokens lower it."
    )
    METHOD: ClassVar[dict[str, str]] = {
        "gradient": "Input × gradient is a local approximation: the attributions need not sum to the output.",
        "occlusion": "Occlusion measures the change when the token is masked.",
    }

    method: str
    answers: list[str]
    """The explained answers: the rows."""
    tokens: list[str]
    """The columns: of an encoder-decoder first the source, then the decoder's input."""
    n_source: int
    """The number of source tokens among them."""
    scores: Tensor
    """(answers, tokens)."""
    difference: Tensor
    """(answers,): f of the input minus f of the baseline."""

    @property
    def gap(self) -> Tensor:
        """(answers,): the sum of the scores minus the difference. For integrated gradients it is the error of the numerical
        integral (completeness); the other methods do not have this property."""
        return self.scores.double().sum(1) - self.difference.double()

    def gaps(self) -> list[tuple[float, float]]:
        """Return the gap and the difference of each answer."""
        return list(zip(self.gap.tolist(), self.difference.tolist(), strict=True))

    @property
    def converged(self) -> list[bool] | None:
        """Whether the scores of each answer add up to the difference; None for other methods than integrated gradients."""
        return [is_complete(gap, whole) for gap, whole in self.gaps()] if self.method == "integrated" else None

    @property
    def note(self) -> str:
        """The answers whose scores have not converged, as a message; "" where all have."""
        found = zip(self.answers, self.converged or [], self.gaps(), strict=False)
        late = [f"{answer!r}: the scores add up to {gap + whole:.4g}, the difference is {whole:.4g}"
                for answer, done, (gap, whole) in found if not done]  # fmt: skip
        return f"integrated gradients not converged after {MOST_NODES:,} steps: {'; '.join(late)}" if late else ""

    def explain(self) -> str:
        return f"{self.EXPLANATION} {self.METHOD.get(self.method) or self.completeness()}"

    def completeness(self) -> str:
        """Say how far integrated gradients add up to the difference that they explain."""
        gap, difference = max(self.gaps(), key=lambda pair: abs(pair[0]))
        return (
            "Integrated gradients sum to the difference from a blank input; here the largest gap is "
            f"{abs(gap):.2g} of {abs(difference):.3g}."
        )

    def picture(self) -> Picture:
        answer = quote(self.answers[0]) if len(self.answers) == 1 else "each prediction"
        title = f"attribution ({self.method}): contribution of each token to {answer}"
        return Heatmap(title, {"": self.scores}, self.answers, self.tokens, diverging=True)

    def to_json(self) -> dict[str, Any]:
        """Add the completeness gap, whether each answer's scores have converged, and the note."""
        return super().to_json() | plain({"gap": self.gap, "converged": self.converged, "note": self.note})


def is_complete(gap: float, difference: float) -> bool:
    """Return whether the scores add up to the difference within the tolerance."""
    return abs(gap) <= CLOSE * abs(difference) + 1e-6


def input_modules(network: Any) -> list[str]:
    """Return the names of the modules whose outputs are the embeddings of the input."""
    both = hasattr(network, "encoder")
    return [side_modules(network, source=True)[0], side_modules(network)[0]] if both else [side_modules(network)[0]]


def blank(batch: Batch, token: int) -> Batch:
    """Return the baseline input: one token everywhere, an image of zeros (grey, as images are normalised)."""
    inputs, source = (None if ids is None else torch.full_like(ids, token) for ids in (batch.inputs, batch.source))
    images = None if batch.images is None else torch.zeros_like(batch.images)
    return replace(batch, inputs=inputs, source=source, images=images)


def attribute(network: Any, batch: Batch, targets: Sequence[Target], method: str, token: int) -> tuple[Tensor, Tensor]:
    """Return scores (targets, tokens) and differences f(x) - f(baseline) (targets,); `token` fills the baseline text."""
    if method not in METHODS:
        raise QkvError(f"unknown attribution method {method!r}: choose one of {', '.join(METHODS)}")
    check_single_input(batch)
    names, nothing = input_modules(network), blank(batch, token)
    x, b = activations(network, batch, names), activations(network, nothing, names)
    found, differences = [], []
    for target in targets:
        with torch.no_grad():
            whole, none = float(target(network(batch))[0]), float(target(network(nothing))[0])
        differences.append(whole - none)
        if method == "gradient":
            slopes = gradients(network, batch, target, {name: x[name] for name in names})
            scores = [(x[name] * slopes[name]).sum(-1)[0] for name in names]
        elif method == "integrated":
            scores = integrated_gradients(network, batch, target, x, b, whole - none)
        else:
            with torch.no_grad():
                scores = [whole - patch_each(network, batch, target, name, b[name]) for name in names]
        found.append(torch.cat([score.float().cpu() for score in scores]))
    return torch.stack(found), torch.tensor(differences)


def gradients(network: Any, batch: Batch, target: Target, entering: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return df/dx at embeddings (N, T, C) that replace the input's own, N runs at once."""
    leaves = {name: x.detach().requires_grad_() for name, x in entering.items()}
    rows = next(iter(leaves.values())).size(0)
    with torch.enable_grad(), edit(network, {name: lambda _, leaf=leaf: leaf for name, leaf in leaves.items()}):  # type: ignore[misc]
        total = target(network(repeat(batch, rows))).sum()
        slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {name: torch.zeros_like(leaves[name]) if g is None else g for name, g in zip(leaves, slopes, strict=True)}


def integrated_gradients(network: Any, batch: Batch, target: Target, x: dict[str, Tensor], b: dict[str, Tensor], difference: float
               ) -> list[Tensor]:  # fmt: skip
    """Return scores (T,) for each input module; double the panels of the path until the scores add up, or the limit is reached."""
    panels = 1
    while True:
        means = path_mean(network, batch, target, x, b, *nodes(panels))
        scores = [((x[name] - b[name]) * means[name]).sum(-1)[0] for name in x]
        gap = sum(float(score.double().sum()) for score in scores) - difference
        if is_complete(gap, difference) or 2 * panels * NODES > MOST_NODES:
            return scores
        panels *= 2


def nodes(panels: int) -> tuple[Tensor, Tensor]:
    """Return points on (0, 1) and their weights: Gauss-Legendre quadrature in each of some equal panels."""
    at, weight = np.polynomial.legendre.leggauss(NODES)
    starts = np.arange(panels)[:, None]
    points = (starts + (at + 1) / 2) / panels  # (panels, NODES)
    weights = np.broadcast_to(weight / 2 / panels, points.shape)
    return torch.from_numpy(points.ravel()), torch.from_numpy(weights.ravel().copy())


def path_mean(network: Any, batch: Batch, target: Target, x: dict[str, Tensor], b: dict[str, Tensor], points: Tensor,
              weights: Tensor) -> dict[str, Tensor]:  # fmt: skip
    """Return the mean gradient on the path from b to x for each input module: (1, T, C)."""
    total = {name: torch.zeros_like(x[name]) for name in x}
    for some, weight in zip(points.split(ROWS), weights.split(ROWS), strict=True):
        entering = {}
        for name in x:
            share = some.to(x[name])[:, None, None]  # (N, 1, 1)
            entering[name] = b[name] + share * (x[name] - b[name])  # (N, T, C)
        slopes = gradients(network, batch, target, entering)
        for name in x:
            total[name] += (slopes[name] * weight.to(x[name])[:, None, None]).sum(0, keepdim=True)
    return total
