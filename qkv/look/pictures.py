"""Pictures of what look/ finds, as plain data: a table of colours or a row of bars for each result, and a sentence that says
what to see. plots.py draws them with plotly, report.py as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.look.ablate import Effect
from qkv.look.alignment_error import AlignmentErrors
from qkv.look.attention import Map
from qkv.look.attribution import Attribution
from qkv.look.embedding_space import Neighbours, Positions
from qkv.look.heads import STATISTICS, HeadStatistics
from qkv.look.lens import Lens
from qkv.look.look import WHOLE, Answers, Everywhere, Pull
from qkv.look.patch import Sweep
from qkv.look.probe import Contexts, Probe
from qkv.look.residual_stream import Residual
from qkv.look.result import Result
from qkv.look.rollout import Rollout
from qkv.look.walk import Walk


@dataclass(frozen=True)
class Table:
    """Numbers (rows, columns) as colours; several panels share the place, and a menu says which is seen."""

    title: str
    panels: Mapping[str, Tensor]
    rows: Sequence[str]
    columns: Sequence[str]
    two_ways: bool = False
    """Numbers on both sides of 0 have two colours."""
    words: Sequence[Sequence[str]] | None = None
    """What stands in the cells."""
    across: str = ""
    down: str = ""
    """What columns and rows are."""


@dataclass(frozen=True)
class Bars:
    """Numbers beside their names, the first on top."""

    title: str
    names: Sequence[str]
    values: Tensor


Picture = Table | Bars


def quoted(name: str) -> str:
    """In a title: a token without the space before it, unless there is nothing else."""
    return f"'{name.strip('␣') or name}'"


# --- one for each result


@singledispatch
def picture(result: Result) -> Picture:
    """The picture of a result."""
    raise QkvError(f"there is no picture of {type(result).__name__}: print it, or take its to_json()")


@picture.register
def _(result: Map) -> Picture:
    panels = {f"head {head}": weights for head, weights in zip(result.heads, result.weights, strict=True)}
    if len(panels) > 1:
        panels = {"mean of heads": result.weights.mean(0), **panels}
    name = "attention" if result.kind == "self" else f"attention ({result.kind})"
    return Table(f"{name}, layer {result.layer}", panels, result.rows, result.columns)


@picture.register
def _(result: Lens) -> Picture:
    if result.measure == "score":
        words = [[f"{value:.2f}" for value in row] for row in result.final.tolist()]
        return Table("lens: the score at each layer", {"": result.final}, result.points, result.tokens,
                     words=words)  # fmt: skip
    words = [[tops[0] for tops in row] for row in result.words]
    title = "logit lens: the prediction at each layer and its probability"
    return Table(title, {"": result.probabilities[..., 0]}, result.points, result.tokens, words=words)


@picture.register
def _(result: Attribution) -> Picture:
    answer = quoted(result.answers[0]) if len(result.answers) == 1 else "each answer"
    title = f"attribution ({result.method}): the contribution of each token to {answer}"
    return Table(title, {"": result.scores}, result.answers, result.tokens, two_ways=True)


@picture.register
def _(result: Sweep) -> Picture:
    across = "head" if result.what == "heads" else ""
    title = f"patching {result.what}: how far the output follows the other input"
    return Table(title, {"": result.carried}, result.places, result.columns, True, across=across, down="layer")


@picture.register
def _(result: Effect) -> Picture:
    name = f" of {quoted(result.word)}" if result.word and result.measure == "logit" else ""
    title = f"what the {result.measure}{name} loses without each head"
    return by_head(title, {"": result.whole - result.alone}, result.layers, True)


@picture.register
def _(result: HeadStatistics) -> Picture:
    panels = {f"{name}: {STATISTICS[name]}": values for name, values in result.statistics.items()}
    return by_head("attention patterns of the heads", panels, result.layers)


@picture.register
def _(result: AlignmentErrors) -> Picture:
    return by_head("alignment error rate", {"": result.rates}, result.layers)


@picture.register
def _(result: Rollout) -> Picture:
    if result.grid is None:
        return Table("attention rollout", {"": result.weights}, result.tokens, result.tokens)
    sides = [str(i) for i in range(len(result.grid))]
    return Table("attention rollout: from the [class] vector to the patches", {"": result.grid}, sides, sides)


@picture.register
def _(result: Positions) -> Picture:
    places = [str(i) for i in range(len(result.similarity))]
    return Table(f"positions ({result.scheme}): similarity", {"": result.similarity}, places, places, True)


@picture.register
def _(result: Contexts) -> Picture:
    numbers = torch.cat([result.cosines, result.static[:, None]], 1)  # (texts, texts + 1)
    rows = [f"{number}: {text}" for number, text in enumerate(result.texts, 1)]
    columns = [*(str(number) for number in range(1, len(rows) + 1)), "without context"]
    words = [[f"{value:.2f}" for value in row] for row in numbers.tolist()]
    title = f"'{result.word}' in context: cosine similarity of its vectors"
    return Table(title, {"": numbers}, rows, columns, True, words)


@picture.register
def _(result: Pull) -> Picture:
    panels = {f"{result.token} → {other}": result.weights[..., i] for i, other in enumerate(result.others)}
    return by_head(f"attention weights of {quoted(result.token)}", panels, result.layers)


@picture.register
def _(result: Walk) -> Picture:
    """Its tables: weights, mask, position bias, scores."""
    parts = {"scores": result.scores, "position bias": result.bias, "mask (1 = allowed)": result.allowed,
             "weights": result.weights}  # fmt: skip
    panels = {name: part for name, part in reversed(parts.items()) if part is not None}
    rows, columns = (
        names or [str(i) for i in range(size)]
        for names, size in zip((result.rows, result.columns), result.scores.shape, strict=True)
    )
    return Table(
        f"head {result.head} of layer {result.layer} ({result.kind}), step by step", panels, rows, columns, True
    )


@picture.register
def _(result: Residual) -> Picture:
    panels = {"length of the vector": result.norms, "cosine with the vector before": result.turned}
    return Table("the residual stream", panels, result.points, result.tokens)


@picture.register
def _(result: Everywhere) -> Picture:
    rows = [f"{number + 1}." for number in range(result.probabilities.size(1))]
    words = [list(row) for row in zip(*result.words, strict=True)]
    return Table("answers at every token", {"": result.probabilities.T}, rows, result.tokens, words=words)


@picture.register
def _(result: Probe) -> Picture:
    title = f"a probe tells {', '.join(result.labels)} apart"
    return Bars(title, ["accuracy", "chance"], torch.tensor([result.accuracy, result.chance]))


@picture.register
def _(result: Neighbours) -> Picture:
    made = f", which is made of {' + '.join(result.pieces)}" if len(result.pieces) > 1 else ""
    return Bars(f"nearest to '{result.word}'{made} (cosine)", result.words, result.cosines)


@picture.register
def _(result: Answers) -> Picture:
    if result.measure == "score":
        return Bars(f"score: {float(result.probabilities[0]):.3f}", result.words, result.probabilities)
    at = "for the whole input" if result.at == WHOLE else f"at {quoted(result.at)}"
    return Bars(f"answers {at} and their probabilities", result.words, result.probabilities)


def by_head(title: str, panels: Mapping[str, Tensor], layers: Sequence[int], two_ways: bool = False) -> Picture:
    heads = [str(i) for i in range(next(iter(panels.values())).size(1))]
    return Table(title, panels, [str(layer) for layer in layers], heads, two_ways, across="head", down="layer")


# --- what to see

SAID: dict[type[Result], str] = {
    Map: "Each row is a query and adds up to 1: the stronger a cell's colour, the larger the weight of that column's value. "
    "A diagonal is a head that attends to neighbours; a coloured first column (an attention sink), one that adds little here.",
    Lens: "The output head applied at every layer: rows go from the embedding to the last layer, the colour is the "
    "probability of the word in the cell. See at which layer the final answer appears.",
    Attribution: "Blue tokens (columns) raised the model's score of the row's answer, orange ones lowered it.",
    Sweep: "Each cell replaces one activation by that of the other text: 1 = the answer follows the other text, 0 = nothing "
    "changes. Coloured cells hold the information that decides the answer.",
    Effect: "What is lost when one head is switched off: blue heads support the answer, orange ones work against it, pale ones do "
    "not matter here.",
    HeadStatistics: "How much each head attends, on average over this text, to simple targets; the menu chooses the target. A "
    "strong colour shows what the head specialises in.",
    AlignmentErrors: "How often each cross-attention head links the wrong words: 0 = all links are right.",
    Rollout: "Attention through all layers together: how much of each input (column, or patch) is in each final vector (row).",
    Positions: "Similarity of two positions: a band along the diagonal means that near positions have similar vectors.",
    Contexts: "Cosine similarity of one word's vectors in different texts: the lower, the more the model separates the meanings. "
    "Its embedding is the same in all.",
    Pull: "How much one token attends to another, in every layer (row) and head (column); the menu chooses the other token.",
    Walk: "One head step by step; the menu chooses the table. Weights are the softmax of the scores where the mask allows them.",
    Residual: "The vector of each token from layer to layer: its length, and its cosine with the vector before (near 1 = hardly changed).",
    Everywhere: "The most probable labels of every token, best first; the colour is the probability.",
    Probe: "How well a linear classifier reads the labels from the vectors, beside guessing.",
    Neighbours: "The words whose embeddings point most nearly in the same direction.",
    Answers: "The most probable answers. One long bar means a confident prediction; many short ones, an uncertain one.",
}
METHODS = {
    "gradient": "Input × gradient is a local estimate: the scores need not add up.",
    "occlusion": "Occlusion measures what is lost when the token is blanked.",
}


def explain(result: Result) -> str:
    """What to see in the picture of a result."""
    said = SAID.get(type(result), "")
    if isinstance(result, Attribution):
        return f"{said} {METHODS.get(result.method) or completeness(result)}"
    if getattr(result, "measure", "") == "score":
        return SCORES.get(type(result), said)
    return said


SCORES: dict[type[Result], str] = {
    Answers: "The number that the model gives this input.",
    Lens: "The score that the output head gives at every layer: rows go from the embedding to the last layer.",
    Effect: "What the score loses when one head is switched off: blue heads raise it, orange ones lower it.",
}


def completeness(result: Attribution) -> str:
    """How far integrated gradients add up to what they explain."""
    largest = max(zip(result.gap.tolist(), result.difference.tolist(), strict=True), key=lambda pair: abs(pair[0]))
    return (
        "Integrated gradients add up to the difference from a blank input; here the largest gap is "
        f"{abs(largest[0]):.2g} of {abs(largest[1]):.3g}."
    )
