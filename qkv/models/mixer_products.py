"""Matrix products of attention, its scores, mixers and positions, and of the state spaces that replace it (see products.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import singledispatch

from torch import Tensor, nn

from qkv.models.products import Item, PassShape, Product, product, products
from qkv.parts.attention import Attention
from qkv.parts.compressed import Compressed
from qkv.parts.disentangled import Disentangled
from qkv.parts.linear_attention import GatedLinear, GatedSum, Linear, Performer, Taylor
from qkv.parts.mixers import Linformer, Window
from qkv.parts.position_candidates import Unitary
from qkv.parts.positions import Relative
from qkv.parts.scores import Additive, Bilinear, Dot, LowRankBilinear
from qkv.parts.softmax import Softmax
from qkv.parts.state_space import Selective, StateSpace


@products.register
def _(module: Attention, at: PassShape) -> Iterator[Item]:
    at = replace(at, attention=module, causal=at.causal and not module.cross)
    yield module.query, at
    for part in (module.key, module.value):
        yield part, replace(at, tokens=at.keys)
    yield module.mixer, at
    yield module.output, at


@products.register
def _(module: GatedLinear, at: PassShape) -> Iterator[Item]:
    at = replace(at, attention=module)
    for part in (module.query, module.key, module.value, module.decay_down, module.decay_up, module.gate, module.mixer):
        yield part, at
    yield module.output, at


def heads_of(at: PassShape) -> tuple[int, int, int, int]:
    """Return rows times query heads, rows times key heads, width of keys, width of values."""
    assert at.attention is not None
    heads, d_key = at.attention.n_heads, at.attention.d_key
    projection = at.attention.key  # Identity where attention has no projections
    key_heads = projection.out_features // d_key if isinstance(projection, nn.Linear) else heads
    return at.rows * heads, at.rows * key_heads, d_key, at.attention.d_head


@products.register
def _(module: Softmax, at: PassShape) -> Iterator[Item]:
    heads, _, d_key, d_value = heads_of(at)
    yield module.score, at
    yield product(heads, at.tokens, at.keys, d_key)  # scores
    yield product(heads, at.tokens, at.keys, d_value)  # average
    if at.position is not None and at.attention is not None and not at.attention.cross:
        yield from score_products(at.position, at)


@singledispatch
def score_products(position: nn.Module, at: PassShape) -> Iterator[Product]:
    """Yield the products of a position scheme with the queries, keys and weights of a layer; by default none."""
    yield from ()


@score_products.register
def _(position: Relative, at: PassShape) -> Iterator[Product]:
    heads, _, d_key, d_value = heads_of(at)
    distances = position.keys.size(-2)
    yield product(heads, at.tokens, distances, d_key)
    yield product(heads, at.tokens, distances, d_value)


@score_products.register
def _(position: Disentangled, at: PassShape) -> Iterator[Product]:
    heads, _, d_key, _ = heads_of(at)
    yield product(heads, at.tokens + at.keys, number_of_distances(position, at), d_key)


@products.register
def _(module: Disentangled, at: PassShape) -> Iterator[Item]:
    for part in (module.key, module.query):  # of the distances, once for all rows
        yield part, replace(at, rows=1, tokens=number_of_distances(module, at))


@products.register
def _(module: Unitary, at: PassShape) -> Iterator[Item]:
    width, positions = module.generator.size(0), 1
    while positions < at.tokens:  # doubles the table, as `vectors` does; the matrix exponential is not counted
        yield product(positions, width, width)
        positions *= 2
        if positions < at.tokens:
            yield product(width, width, width)


def number_of_distances(module: Disentangled, at: PassShape) -> int:
    """Return how many distances occur in a pass, at most as many as have a vector."""
    return min(2 * at.tokens, module.vectors.size(0))


@products.register(Dot)
@products.register(Additive)
def _(module: nn.Module, at: PassShape) -> Iterator[Item]:
    yield from ()  # the products with every key are counted by the mixer


@products.register(Bilinear)
@products.register(LowRankBilinear)
def _(module: nn.Module, at: PassShape) -> Iterator[Item]:
    for weight in module.parameters():  # (H, D, D): the query is multiplied by it
        yield product(at.rows, at.tokens, weight.numel())


@products.register
def _(module: Window, at: PassShape) -> Iterator[Item]:
    heads, _, d_key, _ = heads_of(at)
    if at.tokens <= 3 * module.size:  # all pairs
        yield product(2, heads, at.tokens, at.keys, d_key)
        return
    blocks = -(-at.keys // module.size)
    yield product(2, heads, blocks * module.size, 3 * module.size, d_key)
    if module.n_global:
        yield product(2, heads, blocks * module.size, module.n_global, d_key)
        yield product(2, heads, module.n_global, at.keys, d_key)


@products.register
def _(module: Linformer, at: PassShape) -> Iterator[Item]:
    heads, key_heads, d_key, _ = heads_of(at)
    rank = module.project_key.size(0)
    yield product(2, key_heads, rank, at.keys, d_key)
    yield product(2, heads, at.tokens, rank, d_key)


@products.register
def _(module: Compressed, at: PassShape) -> Iterator[Item]:
    heads, key_heads, d_key, _ = heads_of(at)
    slots = -(-at.keys // module.stride)
    yield product(2, key_heads, slots, module.stride, d_key, d_key)  # convolutions of keys and values
    # with the causal mask each query also sees up to `stride` tokens, which the readable path computes elementwise: not counted
    yield product(2, heads, at.tokens, slots, d_key)


# --- linear attention: chunks of c tokens, F features


@products.register
def _(module: Linear, at: PassShape) -> Iterator[Item]:
    heads, _, d_key, d_value = heads_of(at)
    yield from linear_products(heads, at, d_key, d_value + 1, module.chunk)


@products.register
def _(module: Taylor, at: PassShape) -> Iterator[Item]:
    heads, _, d_key, d_value = heads_of(at)
    yield from linear_products(heads, at, 1 + d_key + d_key**2, d_value + 1, module.chunk)


@products.register
def _(module: Performer, at: PassShape) -> Iterator[Item]:
    heads, _, d_key, d_value = heads_of(at)
    projection: Tensor = module.projection  # type: ignore[assignment]  # random and fixed, without a gradient
    yield product(heads, at.tokens + at.keys, d_key, projection.size(0), gradients=1)
    yield from linear_products(heads, at, projection.size(0), d_value + 1, module.chunk)


def linear_products(heads: int, at: PassShape, features: int, width: int, chunk: int) -> Iterator[Item]:
    """Yield the products of the sum of f(k) v^T and of f(q) with it; causal: chunk by chunk, with all pairs inside a chunk."""
    if not at.causal:
        yield product(heads, at.keys, features, width)
        yield product(heads, at.tokens, features, width)
        return
    sizes = [min(chunk, at.tokens - start) for start in range(0, at.tokens, chunk)]
    pairs = sum(size**2 for size in sizes)
    yield product(heads, pairs, features)
    yield product(heads, pairs, width)
    yield product(heads, sizes[0], features, width, gradients=1)  # the sum before the first chunk is constant
    yield product(heads, at.tokens - sizes[0], features, width)
    yield product(heads, at.tokens - sizes[-1], features, width)
    yield product(heads, sizes[-1], features, width, gradients=0)  # the sum after the last chunk is not read


@products.register
def _(module: GatedSum, at: PassShape) -> Iterator[Item]:
    heads, _, d_key, d_value = heads_of(at)
    chunks = -(-at.tokens // module.chunk)
    tokens, several = chunks * module.chunk, chunks > 1
    yield product(heads, tokens, d_key, d_value, gradients=2 if several else 0)  # sum of each chunk
    yield product(heads, tokens, module.chunk, d_key)  # pairs within a chunk
    yield product(heads, tokens, module.chunk, d_value)
    yield product(heads, tokens, d_key, d_value, gradients=2 if several else 1)  # sum before each chunk


# --- state spaces


@products.register
def _(module: StateSpace, at: PassShape) -> Iterator[Item]:
    channels, half = module.log_decay.shape
    yield product(channels, half, at.tokens)  # the convolution's kernel, once for all rows; complex numbers
    yield module.output, at


@products.register
def _(module: Selective, at: PassShape) -> Iterator[Item]:
    yield module.enter, at
    yield module.select, at
    yield product(at.rows, at.tokens, module.step_weight.numel())
    yield product(at.rows, at.tokens, module.log_decay.numel())  # y_t = C_t x_t
    yield module.output, at
