"""Matrix products of each type of module: networks, maps of single tokens, recurrent networks. A new part adds a function.

mixer_products.py has those of attention and of what replaces it; flops.py adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import NamedTuple

from torch import nn

from qkv.models.decoder import Decoder
from qkv.models.encoder import Encoder
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.parts.attention import Attention
from qkv.parts.block import Block, Residual
from qkv.parts.embed import PatchEmbed
from qkv.parts.experts import Experts
from qkv.parts.heads import Classes, ClassesWords, MaskedNext, MaskedWord, Pooler, Vocabulary
from qkv.parts.pointer import PointerGenerator
from qkv.parts.recurrent import RecurrentStack, StepAttention
from qkv.parts.stack import Stack


@dataclass(frozen=True)
class PassShape:
    """Shapes of one pass: B rows of T tokens; S keys and values per query in attention."""

    rows: int
    tokens: int
    source: int = 0
    """Tokens of the source, which cross-attention reads."""
    side: str = ""
    """Encoder-decoder: encoder or decoder."""
    causal: bool = False
    position: nn.Module | None = None
    """Position scheme inside the stack."""
    attention: Attention | None = None
    """Attention layer around a mixer: its heads and their widths."""
    training: bool = False
    targets: int | None = None
    """Positions of the batch, all rows together, whose logits over the vocabulary are computed; None = all."""

    @property
    def keys(self) -> int:
        return self.source if self.attention is not None and self.attention.cross else self.tokens


class Product(NamedTuple):
    """Multiply-adds of a matrix product, and of its gradients: one product for each factor that is not constant."""

    forward: int
    backward: int


Item = Product | tuple[nn.Module, PassShape]


def product(*sizes: int, gradients: int = 2) -> Product:
    """Return the cost of a matrix product with these sizes; `gradients` is how many of its two factors need one."""
    total = math.prod(sizes)
    return Product(total, gradients * total)


@singledispatch
def products(module: nn.Module, at: PassShape) -> Iterator[Item]:
    """Yield the products of a module itself, and its children with their shapes; by default no product, and the same shapes."""
    for child in module.children():
        yield child, at


# --- networks


@products.register
def _(module: Encoder, at: PassShape) -> Iterator[Item]:
    at = replace(at, tokens=1 + module.n_patches if module.n_patches else at.tokens, causal=module.causal)
    for part in (module.embed, module.stack, module.head):
        yield part, at


@products.register
def _(module: Decoder, at: PassShape) -> Iterator[Item]:
    for part in (module.embed, module.stack, module.head):
        yield part, replace(at, causal=module.causal)


@products.register
def _(module: EncoderDecoder, at: PassShape) -> Iterator[Item]:
    length = 1 + module.n_patches if module.n_patches else at.source
    for part in (module.source, module.encoder):
        yield part, replace(at, tokens=length, source=0, side="encoder")
    for part in (module.target, module.decoder, module.head):
        yield part, replace(at, source=length, side="decoder", causal=module.causal)


@products.register
def _(module: Stack, at: PassShape) -> Iterator[Item]:
    for scheme in module.positions:
        yield scheme, at
    schemes: list[nn.Module | None] = [*module.positions] or [None]
    for index, block in enumerate(module.blocks):  # a block that is used several times is counted each time
        yield block, replace(at, position=schemes[index % len(schemes)])


@products.register
def _(module: Block, at: PassShape) -> Iterator[Item]:
    for part in (module.attention, module.cross, module.feedforward):
        if part is not None:
            yield part, at


@products.register
def _(module: Residual, at: PassShape) -> Iterator[Item]:
    yield module.layer, at


# --- maps of single tokens


@products.register
def _(module: nn.Linear, at: PassShape) -> Iterator[Item]:
    yield product(at.rows, at.tokens, module.in_features, module.out_features)


@products.register
def _(module: Experts, at: PassShape) -> Iterator[Item]:
    yield module.router, at
    yield module.experts[0], replace(at, tokens=at.tokens * module.per_token)  # all experts have the same size


@products.register
def _(module: PatchEmbed, at: PassShape) -> Iterator[Item]:
    kernel = module.patches.weight.numel()
    yield product(at.rows, at.tokens - 1, kernel, gradients=1)  # an image needs no gradient


@products.register
def _(module: Vocabulary, at: PassShape) -> Iterator[Item]:
    at = at if at.targets is None else replace(at, rows=1, tokens=at.targets)
    if module.project is not None:
        yield module.project, at
    yield product(at.rows, at.tokens, module.weight.numel())


@products.register
def _(module: PointerGenerator, at: PassShape) -> Iterator[Item]:
    for part in (module.query, module.gate):
        yield part, at
    for _ in ("scores", "context"):
        yield product(at.rows, at.tokens, at.source, module.query.out_features)
    yield from products.dispatch(Vocabulary)(module, replace(at, targets=None))


@products.register
def _(module: MaskedWord, at: PassShape) -> Iterator[Item]:
    yield module.dense, at if at.targets is None else replace(at, rows=1, tokens=at.targets)
    yield module.words, at


@products.register
def _(module: Pooler, at: PassShape) -> Iterator[Item]:
    yield module.dense, replace(at, tokens=1)


@products.register
def _(module: Classes, at: PassShape) -> Iterator[Item]:
    yield module.pooler, at
    yield module.output, replace(at, tokens=1)


@products.register
def _(module: ClassesWords, at: PassShape) -> Iterator[Item]:
    yield from products.dispatch(Classes)(module, at)
    if at.training:  # the auxiliary loss
        yield module.words, at


@products.register
def _(module: MaskedNext, at: PassShape) -> Iterator[Item]:
    yield module.words, at
    if at.training:
        yield module.next, at


# --- recurrent networks


@products.register
def _(module: RecurrentStack, at: PassShape) -> Iterator[Item]:
    for name, weight in module.cells.named_parameters():
        if weight.dim() == 2:
            forward = at.rows * at.tokens * weight.numel()
            zeros = name.startswith("weight_hh") and not module.starts_from_memory
            fed = weight.size(0) * module.d_model if name == "weight_ih_l0" and module.feed is not None else 0
            # the first step's state (or fed vector) is constant zeros, which need no gradient
            yield Product(forward, 2 * forward - at.rows * (weight.numel() if zeros else fed))
    for bridge in module.bridge or ():
        yield bridge, replace(at, tokens=1)
    if module.attention is not None:
        yield module.attention, at
    if module.feed is not None:
        yield module.feed, at


@products.register
def _(module: StepAttention, at: PassShape) -> Iterator[Item]:
    yield module.query, at
    yield module.key, replace(at, tokens=at.source)
    yield module.score, at
    keys = module.d_memory if isinstance(module.key, nn.Identity) else module.d_model
    yield product(at.rows, at.tokens, at.source, keys + module.d_memory)
