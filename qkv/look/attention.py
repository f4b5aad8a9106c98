"""Exact attention maps of any layer, head and rows, whichever kernel the network runs with.

The network runs once with its own kernel. A hook on each attention layer recomputes its mixer's `weights` from the queries and
keys of the forward pass, for the selected heads only and a few rows at a time: one head's rows of an 8,192-token text need no
(T, S) table. Linear attention forms no weights; they are derived from its formula. Layers that attend to a summary of the tokens
(`Site.weighs` is False) have no weights and are skipped where all layers are selected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.look.pictures import ATTENTION_TYPES, Heatmap, Picture
from qkv.look.result import LookResult
from qkv.parts.attention import Attention
from qkv.parts.linear_attention import Linear, wide
from qkv.parts.masks import Mask
from qkv.parts.mixers import Window
from qkv.parts.positions import PositionEncoding
from qkv.parts.recurrent import RecurrentStack, StepAttention
from qkv.parts.scores import Additive, of_heads
from qkv.parts.softmax import Softmax, repeat_heads
from qkv.parts.tap import Hook, attach_hooks

BUDGET = 2**22
"""Number of weights that are computed at a time: 16 MB."""
Use = Callable[["Site", Tensor, Tensor], None]
"""Callback (site, rows (r,), weights (B, h, r, S)) for the weights of some rows of one layer."""


@dataclass(frozen=True)
class Site:
    """One attention layer of a network."""

    name: str
    """Its name in the module tree: `decoder.blocks.2.cross.layer`."""
    kind: str
    """Attention type: "self"; in an encoder-decoder "encoder" or "decoder" (self-attention) or "cross" (output to input)."""
    layer: int
    heads: int
    weighs: bool = True
    """Whether it has a weight for each token; gated, compressed and Linformer's attention read a summary of them."""
    walks: bool = False
    """Whether walk.py supports it: a softmax over scores."""


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
    """Query tokens; in a decoder with a source also the predicted one, "after X, predicting Y"."""
    columns: list[str]
    weights: Tensor
    """(heads, rows, columns)."""
    after: list[str] = field(default_factory=list)
    """X of the rows that are named "after X, predicting Y"; otherwise empty."""
    predicting: list[str] = field(default_factory=list)
    """Y of these rows."""

    def picture(self) -> Picture:
        panels = {f"head {head}": weights for head, weights in zip(self.heads, self.weights, strict=True)}
        if len(panels) > 1:
            panels = {"mean of heads": self.weights.mean(0), **panels}
        return Heatmap(f"{ATTENTION_TYPES[self.kind]}, layer {self.layer}", panels, self.rows, self.columns)


# --- attention layers


def sites(network: nn.Module, kind: str | None = None) -> list[Site]:
    """Return all attention layers, or those of one kind, in the order of the network."""
    found = []
    for name, module in network.named_modules(remove_duplicate=False):
        parts = name.split(".")
        if isinstance(module, Attention):
            own = parts[0] if hasattr(network, "encoder") else "self"
            layer = int(parts[parts.index("blocks") + 1])
            weighs, plain = isinstance(module.mixer, Softmax | Window | Linear), type(module) is Attention
            walks = plain and isinstance(module.mixer, Softmax)
            found.append(Site(name, "cross" if module.cross else own, layer, module.n_heads, weighs, walks))
        elif isinstance(module, StepAttention):
            found.append(Site(name, "cross", 0, 1, walks=True))
    return [site for site in found if kind in (None, site.kind)]


def select_sites(
    network: nn.Module, layer: int | None = None, kind: str | None = None, weighs: bool = False
) -> list[Site]:
    """Return one attention layer or all of a kind (None = cross-attention where there is any); with `weighs` only those that have
    weights. Negative numbers count from the last."""
    there = sites(network)
    if not there:
        # packing wraps each mixer in a layer of its own
        packed = any(isinstance(part, Softmax | Window | Linear) for part in network.modules())
        raise QkvError(
            "a packed network cannot be inspected: use the plain one" if packed else "this model has no attention"
        )
    every = [site for site in there if site.weighs or not weighs]
    if not every:
        raise QkvError("this model has no attention weights: its attention reads a summary of the tokens")
    kinds = list(dict.fromkeys(site.kind for site in every))
    kind = kind or ("cross" if "cross" in kinds else kinds[0])
    if kind not in kinds:
        raise QkvError(f"no attention of kind {kind!r}: this model has {', '.join(kinds)}")
    own = [site for site in every if site.kind == kind]
    if layer is None:
        return own
    numbers = list(dict.fromkeys(site.layer for site in own))  # a bidirectional layer has two of the same number
    wanted = numbers[layer] if -len(numbers) <= layer < 0 else layer
    found = [site for site in own if site.layer == wanted]
    if not found:
        known = any(site.layer == layer and site.kind == kind for site in there)
        what = f"layer {layer} has no attention weights" if known else f"no attention of kind {kind} in layer {layer}"
        raise QkvError(f"{what}: choose one of {', '.join(str(site.layer) for site in own)}")
    return found


def queries_before_reading(network: Any) -> bool:
    """Return whether a recurrent decoder's query is its state before reading the last token (Bahdanau), not after it (Luong)."""
    stack = getattr(network, "decoder", None)
    return isinstance(stack, RecurrentStack) and stack.attention is not None and stack.feed is None


def to_index(given: Sequence[int] | Tensor | None, size: int, what: str) -> Tensor:
    """Return numbers of heads or rows as an index (n,): None = all of `size`; negative ones count from the end."""
    if given is None:
        return torch.arange(size)
    index = torch.as_tensor(given, dtype=torch.long).reshape(-1)
    if not len(index):
        raise QkvError(f"the list of {what}s is empty: give at least one number, or no list for all")
    wrong = index[(index < -size) | (index >= size)]
    if len(wrong):
        raise QkvError(f"there is no {what} {int(wrong[0])}: {what}s are numbered 0 to {size - 1}")
    return index % size


# --- attention weights


@torch.no_grad()
def visit(network: nn.Module, batch: Batch, where: Sequence[Site], use: Use, heads: Sequence[int] | None = None,
          rows: Sequence[int] | Tensor | None = None) -> None:  # fmt: skip
    """Run once; call `use` with the weights of each layer of `where`, some rows at a time, in order."""
    with attach_hooks(network, dict(weight_hook(network, site, use, heads, rows) for site in where)):
        network(batch)


def attention_maps(network: nn.Module, batch: Batch, layer: int, kind: str | None = None, heads: Sequence[int] | None = None,
         rows: Sequence[int] | Tensor | None = None) -> Tensor:  # fmt: skip
    """Return the weights of one layer, of some heads and rows (None = all): (B, h, r, S)."""
    parts: list[Tensor] = []
    own = select_sites(network, layer, kind, weighs=True)
    visit(network, batch, own, lambda site, some, weights: parts.append(weights), heads, rows)
    return torch.cat(parts, 2)


def weight_hook(network: nn.Module, site: Site, use: Use, heads: Sequence[int] | None, rows: Sequence[int] | Tensor | None
           ) -> tuple[str, Hook]:  # fmt: skip
    """Return the name of the module to hook, and the hook."""
    module = network.get_submodule(site.name)
    own = to_index(heads, site.heads, "head")
    if isinstance(module, StepAttention):  # forms its weights anyway, step by step

        def step_hook(inputs: Any, weights: Tensor) -> None:
            some = to_index(rows, weights.size(2), "row").to(weights.device)
            use(site, some, weights[:, own.to(weights.device)[:, None], some])

        return f"{site.name}.tap_weights", step_hook
    mixer: Any = module.mixer

    def mixer_hook(inputs: tuple[Any, ...], output: Any) -> None:
        query, key, _, mask, encoding = inputs  # a linear mixer's last input is its state, here None
        some = to_index(rows, query.size(2), "row").to(query.device)
        for part in some.split(rows_per_chunk(mixer, query, key, len(own))):
            use(site, part, weights_of(mixer, query, key, mask, encoding, own.to(query.device), part))

    return f"{site.name}.mixer", mixer_hook


def rows_per_chunk(mixer: Any, query: Tensor, key: Tensor, heads: int) -> int:
    """Return how many rows fit into the budget; the additive score has D numbers for each weight."""
    inside = query.size(-1) if isinstance(mixer, Softmax) and isinstance(mixer.score, Additive) else 1
    return max(1, BUDGET // (query.size(0) * heads * key.size(2) * inside))


def weights_of(mixer: Any, query: Tensor, key: Tensor, mask: Mask, encoding: PositionEncoding | None, heads: Tensor,
               rows: Tensor) -> Tensor:  # fmt: skip
    """Return the mixer's weights of some heads and rows, (B, h, r, S); query (B, H, T, D), key (B, H_kv, S, D)."""
    key = key[:, heads // (query.size(1) // key.size(1))]  # (B, h, S, D)
    query = query[:, heads[:, None], rows]  # (B, h, r, D)
    if isinstance(mixer, Linear):
        return implied_weights(mixer, query, key, mask.of(rows))
    few = Softmax(of_heads(mixer.score, heads)) if isinstance(mixer, Softmax) else mixer
    return few.weights(query, key, mask.of(rows), None if encoding is None else encoding.select(heads, rows))


def implied_weights(mixer: Linear, query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """Return the weights that linear attention implies, f(q_i) . f(k_j) over the sum of the row: (B, H, T, S)."""
    number = wide(query)
    features, sizes = mixer.key_features(repeat_heads(key, query.size(1)).to(number))  # (B, H, S, F), (B, H, S)
    products = mixer.query_features(query.to(number)) @ features.transpose(-1, -2)  # (B, H, T, S), all above 0
    scores = products.clamp(min=torch.finfo(number).tiny).log() + sizes[..., None, :]
    return scores.masked_fill(~mask.dense.to(query.device), float("-inf")).softmax(-1).to(query.dtype)


def weights_between(
    network: nn.Module, batch: Batch, row: int, columns: Sequence[int], kind: str | None = None
) -> Tensor:
    """Return the weights from token `row` to some others in every layer and head: (L, H, n)."""
    found: list[Tensor] = []
    own = select_sites(network, None, kind, weighs=True)
    visit(network, batch, own, lambda site, rows, w: found.append(w[0, :, 0, list(columns)]), None, [row])
    return torch.stack(found)
