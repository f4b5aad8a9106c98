"""Walk: one head, step by step, with the numbers of one input: x -> q, k, v -> (rotation) -> scores -> mask -> softmax -> output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import Site, chosen, whole_numbers
from qkv.look.pictures import Heatmap, Picture
from qkv.look.result import LookResult
from qkv.parts.positions import Turned
from qkv.parts.recurrent import StepAttention
from qkv.parts.scores import Additive, Bilinear, Dot, LowRankBilinear
from qkv.parts.softmax import repeat_heads
from qkv.parts.tap import hooked

SCORES = {Dot: "dot", Bilinear: "bilinear", LowRankBilinear: "low-rank", Additive: "additive"}


@dataclass(frozen=True)
class Walk(LookResult):
    """Attention(Q, K, V) = softmax(score(Q, K) + bias) V + value_bias of one head, in its parts; T queries, S keys."""

    EXPLANATION: ClassVar[str] = (
        "One head step by step; the menu selects the table. The weights are the softmax of the unmasked scores."
    )

    kind: str
    layer: int
    head: int
    x: Tensor
    """(T, C): what the queries are made of: what enters the layer, behind the norm before it; the states of a recurrent decoder."""
    memory: Tensor
    """(S, C): what keys and values are made of: x itself, in cross-attention the source."""
    query: Tensor
    """(T, D): x W_Q (+ b_Q), before any rotation."""
    key: Tensor
    """(S, D): memory W_K (+ b_K), before any rotation."""
    value: Tensor
    """(S, D): memory W_V (+ b_V); the memory itself in a recurrent decoder."""
    scores: Tensor
    """(T, S), with what positions add to them, before the mask."""
    allowed: Tensor
    """(T, S): which key each query may attend to."""
    weights: Tensor
    """(T, S): softmax over the allowed ones; rows sum to 1."""
    mixed: Tensor
    """(T, D): the values, averaged by the weights, with what positions add to them."""
    output: Tensor
    """(T, C): what this head adds to the residual stream; all heads together, and the bias, are what the layer adds. Of a
    recurrent decoder, the vector that each of its steps gives."""
    residual: Tensor | None = None
    """(T, C): the residual stream that the layer reads, and adds to; None in a recurrent decoder, which has none."""
    biased: bool = False
    """Whether queries, keys and values have a learned vector b added to them."""
    into: str = "stream"
    """Where the mixed values go: to the residual "stream"; in a recurrent decoder into its "cell", beside the token (Bahdanau), or
    into its "output", beside the new state (Luong)."""
    shared: list[int] = field(default_factory=list)
    """The heads that have the same keys and values, this one among them (grouped-query attention); else this one alone."""
    angles: Tensor | None = None
    """(T, D/2): by how much rotary positions turn each pair of numbers, in radians; None = positions are not rotary."""
    pairs: str = ""
    """Which numbers are turned together: "interleaved" (2i, 2i + 1) or "halves" (i, i + D/2)."""
    rotated_query: Tensor | None = None
    """(T, D): the queries that are compared, where positions are rotary."""
    rotated_key: Tensor | None = None
    """(S, D)."""
    score: str = "dot"
    """How a query and a key are compared: dot (q . k * scale), bilinear, low-rank (both q W k) or additive (w . tanh(q + k))."""
    scale: float = 1.0
    """1 / sqrt(D) in the 2017 Transformer, 1 in T5."""
    score_weight: Tensor | None = None
    """W (D, D) or w (D,) of a score that has one."""
    bias: Tensor | None = None
    """(T, S): what positions add to the scores, which have it already (T5, ALiBi, Shaw); None = nothing."""
    value_bias: Tensor | None = None
    """(T, D): what positions add to the average of the values, which has it already (Shaw); None = nothing."""
    rows: list[str] = field(default_factory=list)
    """The names of the queries."""
    columns: list[str] = field(default_factory=list)
    """The names of the keys."""
    after: list[str] = field(default_factory=list)
    """Of the queries of a decoder that reads a source: the token that was read last."""
    predicting: list[str] = field(default_factory=list)
    """The token that is predicted from there."""

    def picture(self) -> Picture:
        parts = {
            "weights": self.weights,
            "mask (1 = allowed)": self.allowed,
            "position bias": self.bias,
            "scores": self.scores,
        }
        panels = {name: part for name, part in parts.items() if part is not None}
        rows, columns = (
            names or [str(i) for i in range(size)]
            for names, size in zip((self.rows, self.columns), self.scores.shape, strict=True)
        )
        title = f"head {self.head} of layer {self.layer} ({self.kind}), step by step"
        return Heatmap(title, panels, rows, columns, True)


@torch.no_grad()
def walk(network: Any, batch: Batch, layer: int = -1, head: int = 0, kind: str | None = None) -> Walk:
    """Of the first row of the batch."""
    (site,) = chosen(network, layer, kind, weighs=True)
    if not site.walks:
        raise QkvError("only a head with softmax can be walked through: this layer weighs its tokens in another way")
    number = int(whole_numbers([head], site.heads, "head"))
    recurrent = isinstance(network.get_submodule(site.name), StepAttention)
    found = of_steps(network, batch, site) if recurrent else of_head(network, batch, site, number)
    parts: dict[str, Any] = {name: part.cpu() if isinstance(part, Tensor) else part for name, part in found.items()}
    return Walk(site.kind, site.layer, number, **parts)


# --- a head of a Transformer


def of_head(network: Any, batch: Batch, site: Site, head: int) -> dict[str, Any]:
    """The parts of a Walk; the network's own tensors where it forms them."""
    kept = passed(network, batch, site)
    attention = network.get_submodule(site.name)
    query, key, value, mask, place = kept["given"]  # (B, H, T, D), (B, H_kv, S, D) twice, as they are compared
    each = query.size(1) // key.size(1)  # heads of one group
    group = head // each
    scores = attention.mixer.score(query, repeat_heads(key, query.size(1)))  # (B, H, T, S)
    bias = place.bias(query)
    scores = scores if bias is None else scores + bias
    weights = attention.mixer.weights(query, key, mask, place)  # (B, H, T, S)
    mixed = kept["mixed"][0, head]  # (T, D)
    columns = attention.output.weight[:, head * attention.d_head : (head + 1) * attention.d_head]  # (C, D)
    memory = kept["x"] if kept["memory"] is None else kept["memory"]
    found = {
        "x": kept["x"][0], "memory": memory[0], "value": value[0, group], "scores": scores[0, head],
        "query": attention.split(kept["query"], attention.d_key)[0, head],  # (T, D)
        "key": attention.split(kept["key"], attention.d_key)[0, group],  # (S, D)
        "allowed": mask.dense.expand(scores.size(0), 1, *scores.shape[2:])[0, 0], "weights": weights[0, head],
        "mixed": mixed, "output": mixed @ columns.T, "residual": kept["residual"][0],
        "shared": list(range(group * each, (group + 1) * each)), "biased": attention.query.bias is not None,
        "bias": None if bias is None else bias.expand_as(scores)[0, head],  # (T, S)
        "value_bias": place.of_values(weights)[0, head] if place.weighs_values else None,  # (T, D)
    }  # fmt: skip
    if isinstance(place, Turned):
        found |= {"angles": place.angles[0, 0], "pairs": "interleaved" if place.interleaved else "halves",
                  "rotated_query": query[0, head], "rotated_key": key[0, group]}  # fmt: skip
    return found | compared(attention.mixer.score, head)


def passed(network: Any, batch: Batch, site: Site) -> dict[str, Any]:
    """What comes by in one pass: the stream before the norm, x, memory, W_Q x, W_K memory, what is mixed and what comes of it."""
    kept: dict[str, Any] = {}
    # a block of sublayers in a row has a norm for each of them, one with sublayers side by side a norm for both
    residual, _, last = site.name.rpartition(".")
    norm = f"{residual}.before" if last == "layer" else f"{residual}.norm"
    hooks: dict[str, Callable[[Any, Any], Any]] = {
        norm: lambda given, _: kept.update(residual=given[0]),
        site.name: lambda given, _: kept.update(x=given[0], memory=given[3]),
        f"{site.name}.query": lambda _, made: kept.update(query=made),
        f"{site.name}.key": lambda _, made: kept.update(key=made),
        f"{site.name}.mixer": lambda given, mixed: kept.update(given=given, mixed=mixed),
    }
    with hooked(network, hooks):
        network(batch)
    return kept


# --- the attention of a recurrent decoder


def of_steps(network: Any, batch: Batch, site: Site) -> dict[str, Any]:
    """The same where a decoder attends step by step: one head, whose queries are its states and whose values are the memory."""
    steps: list[tuple[Tensor, ...]] = []
    queries: list[Tensor] = []
    last: list[Tensor] = []
    stack = site.name.rpartition(".")[0]
    hooks: dict[str, Callable[[Any, Any], Any]] = {
        site.name: lambda given, made: steps.append((*given, *made)),
        f"{site.name}.query": lambda _, made: queries.append(made),
        stack: lambda _, made: last.append(made[0]),
    }
    with hooked(network, hooks):
        network(batch)
    attention = network.get_submodule(site.name)
    states, keys, memories, masks, contexts, weights = zip(*steps, strict=True)
    query, key = torch.stack(queries, 1)[:1], keys[0][:1]  # (1, T, C), (1, 1, S, C)
    scores = attention.score(query[:, None], key)[0, 0]  # (T, S)
    found = {
        "x": torch.stack(states, 1)[0], "memory": memories[0][0], "query": query[0], "key": key[0, 0],
        "value": memories[0][0], "scores": scores, "allowed": masks[0][0, 0].expand_as(scores),
        "weights": torch.cat(weights, 2)[0, 0], "mixed": torch.stack(contexts, 1)[0], "output": last[0][0],
        "into": "cell" if network.get_submodule(stack).feed is None else "output", "shared": [0],
    }  # fmt: skip
    return found | compared(attention.score, 0)


# --- how they are compared


def compared(score: Any, head: int) -> dict[str, Any]:
    """The score's name, and its numbers for one head."""
    weight = None
    if isinstance(score, LowRankBilinear):
        weight = score.left[head] @ score.right[head]  # (D, r) @ (r, D)
    elif isinstance(score, Bilinear | Additive):
        weight = score.weight[head]  # (D, D) or (D,)
    return {"score": SCORES[type(score)], "scale": getattr(score, "scale", 1.0), "score_weight": weight}
