"""Walk: one attention head step by step on one input: x -> q, k, v -> (rotation) -> scores -> mask -> softmax -> output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.attention import Site, select_sites, to_index
from qkv.look.pictures import ATTENTION_TYPES, Heatmap, Picture
from qkv.look.result import LookResult
from qkv.parts.positions import Rotation
from qkv.parts.recurrent import StepAttention
from qkv.parts.scores import Additive, Bilinear, Dot, LowRankBilinear
from qkv.parts.softmax import repeat_heads
from qkv.parts.tap import attach_hooks

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
    """(T, C): the input of the queries: that of the layer after its pre-norm; the states of a recurrent decoder."""
    memory: Tensor
    """(S, C): the input of keys and values: x itself, in cross-attention the encoder's output."""
    query: Tensor
    """(T, D): x W_Q (+ b_Q), before any rotation."""
    key: Tensor
    """(S, D): memory W_K (+ b_K), before any rotation."""
    value: Tensor
    """(S, D): memory W_V (+ b_V); in a recurrent decoder the memory itself."""
    scores: Tensor
    """(T, S): including the position bias, before the mask."""
    allowed: Tensor
    """(T, S): which keys each query may attend to."""
    weights: Tensor
    """(T, S): softmax over the allowed keys; rows sum to 1."""
    mixed: Tensor
    """(T, D): the weighted average of the values, including the value bias."""
    output: Tensor
    """(T, C): what this head adds to the residual stream; the layer adds the sum over its heads, and the bias. In a recurrent
    decoder the output of each step."""
    residual: Tensor | None = None
    """(T, C): the residual stream before the layer; None in a recurrent decoder, which has none."""
    biased: bool = False
    """Whether queries, keys and values have a learned bias."""
    into: str = "stream"
    """Where the mixed values go: to the residual "stream"; in a recurrent decoder to its "cell", with the token (Bahdanau), or to
    its "output", with the new state (Luong)."""
    shared: list[int] = field(default_factory=list)
    """The heads with the same keys and values, including this one (grouped-query attention)."""
    angles: Tensor | None = None
    """(T, D/2): the rotation of each pair of components, in radians; None where positions are not rotary."""
    pairs: str = ""
    """Which components are rotated together: "interleaved" (2i, 2i + 1) or "halves" (i, i + D/2)."""
    rotated_query: Tensor | None = None
    """(T, D): the queries after rotation, where positions are rotary."""
    rotated_key: Tensor | None = None
    """(S, D)."""
    score: str = "dot"
    """Score function: dot (q . k * scale), bilinear, low-rank (both q W k) or additive (w . tanh(q + k))."""
    scale: float = 1.0
    """1 / sqrt(D) in the 2017 Transformer, 1 in T5."""
    score_weight: Tensor | None = None
    """W (D, D) or w (D,) of a score function that has one."""
    bias: Tensor | None = None
    """(T, S): the position bias, already in the scores (T5, ALiBi, Shaw); None = no bias."""
    value_bias: Tensor | None = None
    """(T, D): the value bias, already in `mixed` (Shaw); None = no bias."""
    rows: list[str] = field(default_factory=list)
    """The names of the queries."""
    columns: list[str] = field(default_factory=list)
    """The names of the keys."""
    after: list[str] = field(default_factory=list)
    """For queries of a decoder with a source: the token that was read last."""
    predicting: list[str] = field(default_factory=list)
    """The token that is predicted next."""

    def picture(self) -> Picture:
        bias = {} if self.bias is None else {"position bias": self.bias}
        panels = {"weights": self.weights, "mask (1 = allowed)": self.allowed, **bias, "scores": self.scores}
        rows = self.rows or [str(i) for i in range(self.scores.size(0))]
        columns = self.columns or [str(i) for i in range(self.scores.size(1))]
        title = f"{ATTENTION_TYPES[self.kind]}, layer {self.layer}, head {self.head}: step by step"
        return Heatmap(title, panels, rows, columns, True)


@torch.no_grad()
def walk(network: Any, batch: Batch, layer: int = -1, head: int = 0, kind: str | None = None) -> Walk:
    """Return the steps of one head for the first row of the batch."""
    (site,) = select_sites(network, layer, kind, weighs=True)
    if not site.walks:
        raise QkvError(
            "the steps of a head are those of softmax attention: this layer computes its weights in another way"
        )
    number = int(to_index([head], site.heads, "head"))
    recurrent = isinstance(network.get_submodule(site.name), StepAttention)
    found = trace_steps(network, batch, site) if recurrent else trace_head(network, batch, site, number)
    parts: dict[str, Any] = {name: part.cpu() if isinstance(part, Tensor) else part for name, part in found.items()}
    return Walk(site.kind, site.layer, number, **parts)


# --- a head of a Transformer


def trace_head(network: Any, batch: Batch, site: Site, head: int) -> dict[str, Any]:
    """Return the fields of a Walk; the network's own tensors where it forms them."""
    kept = record_pass(network, batch, site)
    attention = network.get_submodule(site.name)
    query, key, value, mask, encoding = kept["given"]  # (B, H, T, D), (B, H_kv, S, D) twice, after any rotation
    each = query.size(1) // key.size(1)  # heads of one group
    group = head // each
    scores = attention.mixer.score(query, repeat_heads(key, query.size(1)))  # (B, H, T, S)
    bias = None if encoding is None else encoding.score_bias(query, key)
    scores = scores if bias is None else scores + bias
    weights = attention.mixer.weights(query, key, mask, encoding)  # (B, H, T, S)
    mixed = kept["mixed"][0, head]  # (T, D)
    own = slice(head * attention.d_head, (head + 1) * attention.d_head)
    projected = isinstance(attention.output, nn.Linear)
    output = attention.output.weight if projected else torch.eye(kept["x"].size(-1)).to(kept["x"])  # (C, H * D)
    memory = kept["x"] if kept["memory"] is None else kept["memory"]
    found = {
        "x": kept["x"][0], "memory": memory[0], "value": value[0, group], "scores": scores[0, head],
        "query": attention.split(kept["query"], attention.d_key)[0, head],  # (T, D)
        "key": attention.split(kept["key"], attention.d_key)[0, group],  # (S, D)
        "allowed": mask.dense.expand(scores.size(0), 1, *scores.shape[2:])[0, 0], "weights": weights[0, head],
        "mixed": mixed, "output": mixed @ output[:, own].T, "residual": kept["residual"][0],
        "shared": list(range(group * each, (group + 1) * each)), "biased": projected and attention.query.bias is not None,
        "bias": None if bias is None else bias.expand_as(scores)[0, head],  # (T, S)
        "value_bias": encoding.value_bias(weights)[0, head] if encoding is not None and encoding.weighs_values else None,  # (T, D)
    }  # fmt: skip
    if isinstance(encoding, Rotation):
        found |= {"angles": encoding.angles[0, 0], "pairs": "interleaved" if encoding.interleaved else "halves",
                  "rotated_query": query[0, head], "rotated_key": key[0, group]}  # fmt: skip
    return found | describe_score(attention.mixer.score, head)


def record_pass(network: Any, batch: Batch, site: Site) -> dict[str, Any]:
    """Record one forward pass: the stream before the norm, x, memory, W_Q x, W_K memory, inputs and output of the mixer."""
    kept: dict[str, Any] = {}
    # sequential sublayers have a norm each, parallel ones share one
    residual, _, last = site.name.rpartition(".")
    norm = f"{residual}.before" if last == "layer" else f"{residual}.norm"
    hooks: dict[str, Callable[[Any, Any], Any]] = {
        norm: lambda given, _: kept.update(residual=given[0]),
        site.name: lambda given, _: kept.update(x=given[0], memory=given[3]),
        f"{site.name}.query": lambda _, made: kept.update(query=made),
        f"{site.name}.key": lambda _, made: kept.update(key=made),
        f"{site.name}.mixer": lambda given, mixed: kept.update(given=given, mixed=mixed),
    }
    with attach_hooks(network, hooks):
        network(batch)
    return kept


# --- the attention of a recurrent decoder


def trace_steps(network: Any, batch: Batch, site: Site) -> dict[str, Any]:
    """Return the fields of a Walk for a recurrent decoder: one head, whose queries are the states and whose values are the memory."""
    steps: list[tuple[Tensor, ...]] = []
    queries: list[Tensor] = []
    last: list[Tensor] = []
    stack = site.name.rpartition(".")[0]
    hooks: dict[str, Callable[[Any, Any], Any]] = {
        site.name: lambda given, made: steps.append((*given, *made)),
        f"{site.name}.query": lambda _, made: queries.append(made),
        stack: lambda _, made: last.append(made[0]),
    }
    with attach_hooks(network, hooks):
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
    return found | describe_score(attention.score, 0)


# --- the score function


def describe_score(score: Any, head: int) -> dict[str, Any]:
    """Return the name of a score function, and its parameters for one head."""
    weight = None
    if isinstance(score, LowRankBilinear):
        weight = score.left[head] @ score.right[head]  # (D, r) @ (r, D)
    elif isinstance(score, Bilinear | Additive):
        weight = score.weight[head]  # (D, D) or (D,)
    return {"score": SCORES[type(score)], "scale": getattr(score, "scale", 1.0), "score_weight": weight}
