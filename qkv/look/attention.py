"""Exact attention maps of any layer, head and rows, whichever kernel the network runs with.

The network runs once, as fast as ever. As each attention layer is passed, its mixer's own `weights` are computed again from
the queries and keys that came by, for the asked heads alone and a few rows at a time: one head's rows of an 8,192-token text
need no (T, S) table. The linear mixers form no weights; theirs are what their formula implies. Layers that read a summary of the
tokens (`Site.weighs` is False) have none, and are passed over where all layers are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.pictures import Heatmap, Picture
from qkv.look.result import LookResult
from qkv.parts.attention import Attention
from qkv.parts.linear_attention import Linear, wide
from qkv.parts.masks import Mask
from qkv.parts.mixers import Window
from qkv.parts.positions import Place
from qkv.parts.recurrent import RecurrentStack, StepAttention
from qkv.parts.scores import Additive, of_heads
from qkv.parts.softmax import Softmax, repeat_heads
from qkv.parts.tap import Hook, hooked

BUDGET = 2**22
"""Weights that are computed at a time: 16 MB."""
Use = Callable[["Site", Tensor, Tensor], None]
"""(site, rows (r,), weights (B, h, r, S)): what is done with the weights of some rows of one layer."""


@dataclass(frozen=True)
class Site:
    """One attention layer of a network."""

    name: str
    """In the module tree: `decoder.blocks.2.cross.layer`."""
    kind: str
    """Who looks at whom: "self"; in an encoder-decoder "encoder" or "decoder" (at themselves) or "cross" (at the source)."""
    layer: int
    heads: int
    weighs: bool = True
    """Whether it has a weight for each token; gated, compressed and Linformer's attention read a summary of them."""
    walks: bool = False
    """Whether walk.py can show its steps: a softmax over scores."""


@dataclass(frozen=True)
class AttentionMap(LookResult):
    """Attention weights of one layer: each row is a distribution over the columns."""

    EXPLANATION: ClassVar[str] = (
        "Attention weights: each row is a query, each column a key, and each row sums to 1. A diagonal is a head that attends to "
        "adjacent tokens; a strong first column (an attention sink) is a head that contributes little here."
    )

    kind: str
    layer: int
    heads: list[int]
    rows: list[str]
    """A query each: its token, in a decoder that reads a source also the one it predicts, "after X, predicting Y"."""
    columns: list[str]
    weights: Tensor
    """(heads, rows, columns)."""
    after: list[str] = field(default_factory=list)
    """X of the rows that are named "after X, predicting Y"; of others empty."""
    predicting: list[str] = field(default_factory=list)
    """Y."""

    def picture(self) -> Picture:
        panels = {f"head {head}": weights for head, weights in zip(self.heads, self.weights, strict=True)}
        if len(panels) > 1:
            panels = {"mean of heads": self.weights.mean(0), **panels}
        name = "attention" if self.kind == "self" else f"attention ({self.kind})"
        return Heatmap(f"{name}, layer {self.layer}", panels, self.rows, self.columns)


# --- which attention there is


def sites(network: nn.Module, kind: str | None = None) -> list[Site]:
    """All attention layers, or those of one kind, in the order of the network."""
    found = []
    for name, module in network.named_modules(remove_duplicate=False):
        parts = name.split(".")
        if isinstance(module, Attention):
            heads = module.query.out_features // module.d_key
            own = parts[0] if hasattr(network, "encoder") else "self"
            layer = int(parts[parts.index("blocks") + 1])
            weighs, plain = isinstance(module.mixer, Softmax | Window | Linear), type(module) is Attention
            walks = plain and isinstance(module.mixer, Softmax)
            found.append(Site(name, "cross" if module.cross else own, layer, heads, weighs, walks))
        elif isinstance(module, StepAttention):
            found.append(Site(name, "cross", 0, 1, walks=True))
    return [site for site in found if kind in (None, site.kind)]


def chosen(network: nn.Module, layer: int | None = None, kind: str | None = None, weighs: bool = False) -> list[Site]:
    """The layers asked for: of the kind (None = cross-attention where there is any), one of them or all; with `weighs` of
    those that have weights. A negative number counts from the last of them."""
    there = sites(network)
    if not there:
        # packing puts a layer of its own around each mixer
        packed = any(isinstance(part, Softmax | Window | Linear) for part in network.modules())
        raise QkvError(
            "a packed network is not looked into: take the plain one" if packed else "this model has no attention"
        )
    every = [site for site in there if site.weighs or not weighs]
    if not every:
        raise QkvError("the attention of this model weighs no tokens: it reads a summary of them")
    kinds = list(dict.fromkeys(site.kind for site in every))
    kind = kind or ("cross" if "cross" in kinds else kinds[0])
    if kind not in kinds:
        raise QkvError(f"this model has attention of kind {', '.join(kinds)}, given {kind!r}")
    own = [site for site in every if site.kind == kind]
    if layer is None:
        return own
    found = own[layer:][:1] if -len(own) <= layer < 0 else [site for site in own if site.layer == layer]
    if not found and any(site.layer == layer and site.kind == kind for site in there):
        raise QkvError(f"layer {layer} weighs no tokens, it reads a summary of them; layers that do: {numbers(own)}")
    if not found:
        raise QkvError(f"layers with attention of kind {kind}: {numbers(own)}; given {layer}")
    return found


def attends_before_reading(network: Any) -> bool:
    """Whether the query of a recurrent decoder is its state before the last token is read (Bahdanau), not behind it (Luong)."""
    stack = getattr(network, "decoder", None)
    return isinstance(stack, RecurrentStack) and stack.attention is not None and stack.feed is None


def numbers(own: Sequence[Site]) -> str:
    return ", ".join(str(site.layer) for site in own)


def whole_numbers(given: Sequence[int] | Tensor | None, size: int, what: str) -> Tensor:
    """Heads or rows as an index (n,): all of `size`, or those given; negative ones count from the end."""
    if given is None:
        return torch.arange(size)
    index = torch.as_tensor(given, dtype=torch.long).reshape(-1)
    if not len(index):
        raise QkvError(f"no {what} was asked for: name at least one, or leave the list out for all")
    wrong = index[(index < -size) | (index >= size)]
    if len(wrong):
        raise QkvError(f"there is no {what} {int(wrong[0])}: they go from 0 to {size - 1}")
    return index % size


# --- their weights


@torch.no_grad()
def visit(network: nn.Module, batch: Batch, where: Sequence[Site], use: Use, heads: Sequence[int] | None = None,
          rows: Sequence[int] | Tensor | None = None) -> None:  # fmt: skip
    """Run once; `use` is given the weights of each layer of `where`, some rows at a time, in order."""
    with hooked(network, dict(reader(network, site, use, heads, rows) for site in where)):
        network(batch)


def maps(network: nn.Module, batch: Batch, layer: int, kind: str | None = None, heads: Sequence[int] | None = None,
         rows: Sequence[int] | Tensor | None = None) -> Tensor:  # fmt: skip
    """(B, h, r, S): the weights of one layer, of the asked heads and rows (None = all)."""
    parts: list[Tensor] = []
    own = chosen(network, layer, kind, weighs=True)
    visit(network, batch, own, lambda site, some, weights: parts.append(weights), heads, rows)
    return torch.cat(parts, 2)


def reader(network: nn.Module, site: Site, use: Use, heads: Sequence[int] | None, rows: Sequence[int] | Tensor | None
           ) -> tuple[str, Hook]:  # fmt: skip
    """Which module to listen to, and what to do when it is passed."""
    module = network.get_submodule(site.name)
    own = whole_numbers(heads, site.heads, "head")
    if isinstance(module, StepAttention):  # step by step the weights are formed anyway

        def formed(inputs: Any, weights: Tensor) -> None:
            some = whole_numbers(rows, weights.size(2), "row").to(weights.device)
            use(site, some, weights[:, own.to(weights.device)[:, None], some])

        return f"{site.name}.tap_weights", formed
    mixer: Any = module.mixer

    def passed(inputs: tuple[Any, ...], output: Any) -> None:
        query, key, _, mask, place = inputs  # the last one, of a linear mixer, is its sum over what came before: none
        some = whole_numbers(rows, query.size(2), "row").to(query.device)
        for part in some.split(rows_at_once(mixer, query, key, len(own))):
            use(site, part, weights_of(mixer, query, key, mask, place, own.to(query.device), part))

    return f"{site.name}.mixer", passed


def rows_at_once(mixer: Any, query: Tensor, key: Tensor, heads: int) -> int:
    """How many rows fit into the budget; the additive score has D numbers for each weight."""
    inside = query.size(-1) if isinstance(mixer, Softmax) and isinstance(mixer.score, Additive) else 1
    return max(1, BUDGET // (query.size(0) * heads * key.size(2) * inside))


def weights_of(mixer: Any, query: Tensor, key: Tensor, mask: Mask, place: Place | None, heads: Tensor, rows: Tensor
               ) -> Tensor:  # fmt: skip
    """(B, h, r, S): the mixer's weights of some heads and rows; query (B, H, T, D), key (B, H_kv, S, D)."""
    key = key[:, heads // (query.size(1) // key.size(1))]  # (B, h, S, D)
    query = query[:, heads[:, None], rows]  # (B, h, r, D)
    if isinstance(mixer, Linear):
        return implied(mixer, query, key, mask.of(rows))
    assert place is not None
    few = Softmax(of_heads(mixer.score, heads)) if isinstance(mixer, Softmax) else mixer
    return few.weights(query, key, mask.of(rows), place.of(heads, rows))


def implied(mixer: Linear, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """What each key counts for in linear attention, f(q_i) . f(k_j) over the sum of its row: (B, H, T, S)."""
    number = wide(query)
    features, sizes = mixer.key_features(repeat_heads(key, query.size(1)).to(number))  # (B, H, S, F), (B, H, S)
    products = mixer.query_features(query.to(number)) @ features.transpose(-1, -2)  # (B, H, T, S), all above 0
    scores = products.clamp(min=torch.finfo(number).tiny).log() + sizes[..., None, :]
    return scores.masked_fill(~mask.dense.to(query.device), float("-inf")).softmax(-1).to(query.dtype)


def looks_at(network: nn.Module, batch: Batch, row: int, columns: Sequence[int], kind: str | None = None) -> Tensor:
    """(L, H, n): how much token `row` looks at each of some tokens, in every layer and head: what "it" means."""
    found: list[Tensor] = []
    own = chosen(network, None, kind, weighs=True)
    visit(network, batch, own, lambda site, rows, w: found.append(w[0, :, 0, list(columns)]), None, [row])
    return torch.stack(found)
