"""Walk: one head, step by step, with the numbers of one input: x -> q, k, v -> scores -> mask -> softmax -> output."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import chosen, whole_numbers
from qkv.look.result import Result
from qkv.parts.scores import Additive, Bilinear, Dot, LowRankBilinear
from qkv.parts.softmax import repeat_heads
from qkv.parts.tap import hooked

SCORES = {Dot: "dot", Bilinear: "bilinear", LowRankBilinear: "low-rank", Additive: "additive"}


@dataclass(frozen=True)
class Walk(Result):
    """Attention(Q, K, V) = softmax(score(Q, K) + bias) V + value_bias of one head, in its parts; T tokens look at S."""

    kind: str
    layer: int
    head: int
    x: Tensor
    """(T, C): what enters the layer, behind the norm before it."""
    memory: Tensor
    """(S, C): what is looked at: x itself, in cross-attention the source."""
    query: Tensor
    """(T, D), turned where positions are rotary."""
    key: Tensor
    """(S, D)."""
    value: Tensor
    """(S, D)."""
    scores: Tensor
    """(T, S), with what positions add to them, before the mask."""
    allowed: Tensor
    """(T, S): who may look at whom."""
    weights: Tensor
    """(T, S): softmax over the allowed ones; rows sum to 1."""
    mixed: Tensor
    """(T, D): the values, averaged by the weights, with what positions add to them."""
    output: Tensor
    """(T, C): what this head adds to the residual stream; all heads together, and the bias, are what the layer adds."""
    score: str = "dot"
    """How a query and a key are compared: dot (q . k * scale), bilinear, low-rank (both q W k) or additive (v . tanh(q + k))."""
    scale: float = 1.0
    """1 / sqrt(D) in the 2017 Transformer, 1 in T5."""
    bias: Tensor | None = None
    """(T, S): what positions add to the scores, which have it already (T5, ALiBi, Shaw); None = nothing."""
    value_bias: Tensor | None = None
    """(T, D): what positions add to the average of the values, which has it already (Shaw); None = nothing."""
    rows: list[str] = field(default_factory=list)
    """The tokens that look, where they have names."""
    columns: list[str] = field(default_factory=list)
    """Those that are looked at."""


@torch.no_grad()
def walk(network: Any, batch: Batch, layer: int = -1, head: int = 0, kind: str | None = None) -> Walk:
    """Of the first row of the batch."""
    (site,) = chosen(network, layer, kind, weighs=True)
    attention = network.get_submodule(site.name)
    if not site.walks:
        raise QkvError("only a head with softmax can be walked through: this layer weighs its tokens in another way")
    number = int(whole_numbers([head], site.heads, "head"))
    kept: dict[str, Any] = {}
    hooks = {site.name: lambda given, _: kept.update(x=given[0], memory=given[3]),
             f"{site.name}.mixer": lambda given, mixed: kept.update(given=given, mixed=mixed)}  # fmt: skip
    with hooked(network, hooks):
        network(batch)
    query, key, value, mask, place = kept["given"]
    scores = attention.mixer.score(query, repeat_heads(key, query.size(1)))  # (B, H, T, S)
    bias = place.bias(query)
    scores = scores if bias is None else scores + bias
    weights = attention.mixer.weights(query, key, mask, place)  # (B, H, T, S)
    mixed, group = kept["mixed"][0, number], number // (query.size(1) // key.size(1))
    columns = attention.output.weight[:, number * attention.d_head : (number + 1) * attention.d_head]  # (C, D)
    memory = kept["x"] if kept["memory"] is None else kept["memory"]
    of_values = place.of_values(weights)[0, number].cpu() if place.weighs_values else None  # (T, D)
    of_scores = None if bias is None else bias.expand_as(scores)[0, number].cpu()  # (T, S)
    parts = (kept["x"][0], memory[0], query[0, number], key[0, group], value[0, group], scores[0, number],
             mask.dense.expand(scores.size(0), 1, *scores.shape[2:])[0, 0], weights[0, number], mixed, mixed @ columns.T)  # fmt: skip
    score = attention.mixer.score
    found = Walk(site.kind, site.layer, number, *(part.cpu() for part in parts))
    scale = getattr(score, "scale", 1.0)
    return replace(found, score=SCORES[type(score)], scale=scale, bias=of_scores, value_bias=of_values)
