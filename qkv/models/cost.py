"""Cost of a network by part: parameters, and operations of a forward pass and of an update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from qkv.config import ModelConfig
from qkv.models.build import skeleton
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.models.flops import Shape, walk
from qkv.models.products import PassShape
from qkv.parts.attention import Attention
from qkv.parts.block import Block, ParallelBlock
from qkv.parts.compressed import Compressed
from qkv.parts.disentangled import Disentangled
from qkv.parts.embed import PatchEmbed, TokenEmbed
from qkv.parts.experts import Experts
from qkv.parts.feedforward import FeedForward
from qkv.parts.heads import Classes, MaskedNext, MaskedWord, Pooler, Replaced, Span, Tags, Vocabulary
from qkv.parts.linear_attention import GatedSum, Linear
from qkv.parts.mixers import Linformer, Window
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.position_candidates import LearnedRotary, Unitary
from qkv.parts.positions import Learned, Relative, T5Bias
from qkv.parts.recurrent import RecurrentStack, StepAttention
from qkv.parts.softmax import Softmax
from qkv.parts.state_space import Selective, StateSpace

PARTS: dict[type[nn.Module], str] = {
    TokenEmbed: "embeddings",
    PatchEmbed: "embeddings",
    **dict.fromkeys((Learned, Unitary, LearnedRotary, Relative, Disentangled, T5Bias), "positions"),
    Attention: "attention projections",
    **dict.fromkeys((Softmax, Window, Linformer, Compressed, Linear, GatedSum), "attention scores"),
    StateSpace: "state space",
    Selective: "state space",
    RecurrentStack: "recurrent cells",
    StepAttention: "attention",
    FeedForward: "feed-forward",
    Experts: "experts",
    LayerNorm: "norms",
    RMSNorm: "norms",
    **dict.fromkeys((Block, ParallelBlock), "residual stream"),
    **dict.fromkeys((Vocabulary, MaskedWord, MaskedNext, Classes, Pooler, Tags, Span, Replaced), "head"),
}
"""Type of module -> part that it belongs to with all of its children, unless their own type has a part."""
ORDER = tuple(dict.fromkeys(PARTS.values()))
"""Order of the parts in a table."""
ONCE = ("embeddings", "experts", "head")
"""Parts that include all modules inside them, whatever their type: the norm of the embeddings, the feed-forward layers of the
experts, the projection of a head."""


@dataclass(frozen=True)
class PartCost:
    """Cost of one part, in all layers together."""

    side: str
    """encoder or decoder; empty where there is one stack."""
    part: str
    parameters: int = 0
    """Shared parameters count once, where they come first: tied output matrices under embeddings."""
    forward: int = 0
    """Operations of a forward pass."""
    training: int = 0
    """Operations of an update: forward and backward pass."""

    def __add__(self, other: PartCost) -> PartCost:
        return replace(self, parameters=self.parameters + other.parameters, forward=self.forward + other.forward,
                       training=self.training + other.training)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Cost of a network on a batch."""

    shape: Shape
    targets: int | None
    """Positions of the batch whose logits are computed in training; None = all."""
    parts: list[PartCost]

    @property
    def total(self) -> PartCost:
        return sum(self.parts, PartCost("", "total"))

    def as_json(self) -> dict[str, Any]:
        rows, tokens, source = self.shape
        shape = {"rows": rows, "tokens": tokens, "source_tokens": source, "targets": self.targets}
        return {"batch": shape, "total": asdict(self.total), "parts": [asdict(part) for part in self.parts]}


def cost(c: ModelConfig, shape: Shape, targets: int | None = None) -> Cost:
    """Count parameters and operations by part for batches of this shape.

    `targets` is the number of positions whose logits over the vocabulary are computed in training: the masked ones of BERT.
    """
    network = skeleton(c)
    table = dict[tuple[str, str], PartCost]()

    def add(side: str, part: str, **numbers: int) -> None:
        table[side, part] = table.get((side, part), PartCost(side, part)) + PartCost(side, part, **numbers)

    for side, part, weights in parameters(network):
        add(side, part, parameters=weights)
    for path, at, one in walk(network, PassShape(*shape)):
        add(at.side, part_of(path), forward=2 * one.forward)
    for path, at, one in walk(network, PassShape(*shape, training=True, targets=targets)):
        add(at.side, part_of(path), training=2 * (one.forward + one.backward))
    return Cost(shape, targets, in_order(table.values()))


def in_order(parts: Iterable[PartCost]) -> list[PartCost]:
    """Sort by side, then in the order of PARTS; cross-attention after self-attention."""
    sides = ("", "encoder", "decoder")

    def key(one: PartCost) -> tuple[int, int, bool]:
        part = one.part.removeprefix("cross-")
        return sides.index(one.side), ORDER.index(part), part != one.part

    return sorted(parts, key=key)


def part_of(path: Sequence[nn.Module]) -> str:
    """Return the part of the last module of a path: that of the nearest module around it whose type is in PARTS."""
    found = [(module, PARTS[kind]) for module in path for kind in type(module).__mro__[:-2] if kind in PARTS]
    if not found:
        return "residual stream"
    part = next((part for _, part in found if part in ONCE), found[-1][1])
    part = "positions" if found[-1][1] == "positions" else part
    crosses = any(isinstance(module, Attention) and module.cross for module, _ in found)
    return f"cross-{part}" if crosses else part


def parameters(network: nn.Module) -> Iterator[tuple[str, str, int]]:
    """Yield side, part and number of parameters of each module, shared ones once."""
    seen = set[int]()

    def visit(module: nn.Module, path: tuple[nn.Module, ...], side: str) -> Iterator[tuple[str, str, int]]:
        path = (*path, module)
        own = [weight for weight in module.parameters(recurse=False) if id(weight) not in seen]
        seen.update(map(id, own))
        if own:
            yield side, part_of(path), sum(weight.numel() for weight in own)
        for name, child in module.named_children():
            yield from visit(child, path, side_of(module, name) or side)

    return visit(network, (), "")


def side_of(module: nn.Module, child: str) -> str:
    """Return the side that a child of an encoder-decoder belongs to."""
    if not isinstance(module, EncoderDecoder):
        return ""
    return "encoder" if child in ("source", "encoder") else "decoder"
