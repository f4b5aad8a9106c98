"""The lectures' worked examples B1-B7 and small demonstrations D1-D12, computed by the parts of the package; nothing is pasted."""

from __future__ import annotations

from collections.abc import Callable

import torch

from qkv.lab.comparison_examples import d8, d9, d10, d11, d12
from qkv.lab.example_steps import ExampleTable, Step, heads, numbers
from qkv.lab.ladder_examples import d6
from qkv.lab.lookup_examples import d1, d2, d3
from qkv.lab.position_examples import d7
from qkv.lab.probability_examples import d4, d5
from qkv.models.params import count
from qkv.parts.attention import Attention
from qkv.parts.masks import Mask, causal
from qkv.parts.positions import sinusoids
from qkv.parts.scores import Dot, make_score
from qkv.parts.softmax import Softmax
from qkv.presets import PRESETS, preset


def b1() -> list[Step]:
    """Scaled scores and softmax (lecture 001): scores 112 and 96, d_k = 64"""
    query = heads([1.0] + [0.0] * 63)
    key = heads([112.0] + [0.0] * 63, [96.0] + [0.0] * 63)  # chosen so that the dot products are 112 and 96
    plain, scaled = Dot()(query, key), make_score("scaled-dot", 1, 64)(query, key)  # (1, 1, 1, 2)
    weights = Softmax(make_score("scaled-dot", 1, 64)).weights(query, key, Mask(1, length=2))
    saturated = Softmax(Dot()).weights(query, key, Mask(1, length=2))
    return [
        f"dot products q.k           {', '.join(numbers(plain, 0))}",
        f"divided by sqrt(64) = 8    {', '.join(numbers(scaled, 0))}",
        f"softmax                    {', '.join(numbers(weights, 2))}",
        f"without the division       {', '.join(numbers(saturated, 2))}: saturated",
    ]


def b2() -> list[Step]:
    """Attention by hand (lecture 002): the words flying and arrows"""
    words = torch.tensor([[[0, 1, 1, 1, 1, 0], [1, 1, 0, -1, -1, 1]]], dtype=torch.float32)  # (1, T=2, C=6)
    attention = Attention(6, 1, 1, 2, Softmax(make_score("scaled-dot", 1, 2)), bias="none")
    pick = torch.eye(6)
    with torch.no_grad():  # projections that pick dimensions; the output keeps the two that come back
        for linear, dimensions in (
            (attention.query, pick[:2]),
            (attention.key, pick[2:4]),
            (attention.value, pick[4:]),
            (attention.output, pick[:, :2]),
        ):
            linear.weight.copy_(dimensions)
        query, key = attention.split(attention.query(words)), attention.split(attention.key(words))  # (1, 1, 2, 2)
        scores = make_score("scaled-dot", 1, 2)(query, key)[0, 0, 0]
        weights = attention.mixer.weights(query, key, Mask(2))[0, 0, 0]  # type: ignore[operator]
        output, _ = attention(words, Mask(2))  # (1, 2, 6)
    return [
        "dimensions 1-2 are the query, 3-4 the key, 5-6 the value",
        f"query of flying            {', '.join(numbers(query[0, 0, 0], 0))}",
        f"scores / sqrt(2)           {', '.join(numbers(scores, 4))}  (flying, arrows)",
        f"softmax                    {', '.join(numbers(weights, 4))}",
        f"weighted sum of values     {', '.join(numbers(output[0, 0, :2], 4))}",
    ]


def b3() -> list[Step]:
    """Dot products grow with the width (lecture 000), hence 1/sqrt(d)"""
    pairs = [([1, 2], [2, 3]), ([1, 2, 1], [2, 3, 4]), ([1, 2, 1, 1], [2, 3, 4, 8])]
    rows = []
    for a, b in pairs:
        scores = [score(heads(a), heads(b)) for score in (Dot(), make_score("scaled-dot", 1, len(a)))]
        rows.append([f"{a} . {b}", *numbers(scores[0], 0), *numbers(scores[1], 2)])
    return [ExampleTable(["vectors", "dot", "dot / sqrt(d)"], rows)]


def b4() -> list[Step]:
    """GPT-3's weights (lecture 003): matrices only, one per head"""
    c = preset("gpt3-175b")
    counted = count(c)
    assert counted.lecture is not None
    rows = []
    for row in counted.rows:
        *_, part, kind = row.name.split(".")
        if kind == "weight" and len(row.shape) == 2:
            split = c.n_heads if part in ("query", "key", "value") else 1
            shape = f"{row.shape[0] // split:,} x {row.shape[1]:,}"
            rows.append([part, shape, f"{row.times * split:,}", f"{row.total:,}"])
    return [
        ExampleTable(["matrix", "shape", "times", "weights"], rows),
        "and the tokens' matrix once more, as the unembedding:",
        f"{counted.lecture.weights:,} weights in {counted.lecture.matrices:,} matrices",
        f"our full count (biases, norms, positions; the shared matrix once): {counted.parameters:,}",
    ]


def b5() -> list[Step]:
    """The sinusoid table (lecture 004): positions 0-4, d_model = 5"""
    table = sinusoids(torch.arange(5), 5)  # (T, C)
    rows = [[f"dim {i + 1}", *numbers(table[:, i], 3)] for i in range(5)]
    return [ExampleTable(["", *(f"t = {t}" for t in range(5))], rows)]


def b6() -> list[Step]:
    """The causal mask (lecture 004): row t sees 1 .. t"""
    words = ["<sos>", "Ich", "habe", "einen", "Apfel", "gegessen", "<eos>"]
    table = causal(7, 7).tolist()
    rows = [[word, *("x" if seen else "." for seen in row)] for word, row in zip(words, table, strict=True)]
    return [ExampleTable(["", *words], rows)]


def b7() -> list[Step]:
    """Sizes (lecture 000): the 2017 base and the eight of GPT-3"""
    names = ["transformer-base", *(name for name in PRESETS if name.startswith("gpt3-"))]
    rows = []
    for name in names:
        c = preset(name)
        sizes = (c.n_layers, c.d_model, c.d_ff, c.n_heads, c.head_width, count(c).parameters)
        rows.append([name, *(f"{n:,}" for n in sizes)])
    return [ExampleTable(["preset", "layers", "d_model", "d_ff", "heads", "d_head", "parameters"], rows)]


EXAMPLES: dict[str, Callable[..., list[Step]]] = {
    "B1": b1, "B2": b2, "B3": b3, "B4": b4, "B5": b5, "B6": b6, "B7": b7,
    "D1": d1, "D2": d2, "D3": d3, "D4": d4, "D5": d5, "D6": d6, "D7": d7, "D8": d8, "D9": d9, "D10": d10, "D11": d11, "D12": d12,
}  # fmt: skip
"""Each gives the steps that lead to its answer; those in WITH_MODEL take the path of a model, None = the one that ships with qkv."""
WITH_MODEL = ("D4", "D5")
