"""NativeStack: a decoder's stack whose steps with a KV cache are one call of native.cpp."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from qkv.engine import native
from qkv.engine.kv_cache import KVCache
from qkv.engine.training_kernels import quick_gelu
from qkv.parts.block import Block, Residual
from qkv.parts.feedforward import ACTIVATIONS, FeedForward
from qkv.parts.masks import Mask
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.scores import Dot
from qkv.parts.softmax import Softmax
from qkv.parts.stack import Stack
from qkv.parts.state import EncoderOutput, State

NUMBERS = {ACTIVATIONS[name]: number for number, name in enumerate(("relu", "silu", "gelu", "gelu-tanh"))}
NUMBERS[quick_gelu] = NUMBERS[ACTIVATIONS["gelu-tanh"]]
"""Activation -> its number in native.cpp."""


class NativeStack(Stack):
    """A packed stack whose steps with a state run in native code.

    Without a state it does what Stack does. With one, it takes T more tokens in one call of native.cpp, and its only entry in the
    state is the KVCache of all layers together (and "memory_heads", the keys and values of the source).
    """

    def __init__(self, packed: Stack):
        super().__init__(list(packed.blocks), packed.norm)
        first: Any = packed.blocks[0]
        attention = first.attention.layer
        self.heads, self.key_heads = (width // attention.d_head for width in attention.widths[:2])
        self.d_head = attention.d_head
        blocks = (native.BlockStruct * len(self.blocks))(*map(block_of, self.blocks))
        self.structs = blocks, native.DecoderStruct(
            ctypes.addressof(blocks), len(blocks), first.feedforward.layer.down.shape[0], self.heads, self.key_heads,
            self.d_head, NUMBERS[first.feedforward.layer.activation], attention.mixer.score.scale, norm_of(self.norm),
        )  # fmt: skip

    def forward(self, x: Tensor, mask: Mask, memory: EncoderOutput | None = None, state: State | None = None
                ) -> tuple[Tensor, State | None]:  # fmt: skip
        """As Stack.forward."""
        if state is None:
            return super().forward(x, mask, memory)
        if mask.prefix is not None:
            return self.read_source(x, mask)
        kept = dict(state.layer(0))
        past = kept.pop("cache", None) or KVCache.empty(len(self.blocks), self.key_heads, self.d_head, like=x)
        if memory is not None and not kept:
            kept["memory_heads"] = self.heads_of(memory.vectors)
        cache = past.extend(x.size(0), x.size(1))
        x = self.decode(x, mask, memory, cache, kept.get("memory_heads"))
        return x, State(({"cache": cache, **kept},), mask.length, mask.keys, memory)

    def read_source(self, x: Tensor, mask: Mask) -> tuple[Tensor, State]:
        """Read the first tokens, (B, T, C), layer by layer: native.cpp has no prefix mask."""
        x, read = super().forward(x, mask, None, State())
        assert read is not None
        cache = KVCache.stack([layer["cache"] for layer in read.layers])
        return x, State(({"cache": cache},), mask.length, mask.keys)

    def decode(
        self, x: Tensor, mask: Mask, memory: EncoderOutput | None, cache: KVCache, heads: Tensor | None
    ) -> Tensor:
        """Run all layers on x (B, T, C); native.cpp also writes the new keys and values into the cache. `heads`: see heads_of."""
        x = x.clone(memory_format=torch.contiguous_format)  # native.cpp overwrites it
        slots = None if cache.slots is None else cache.slots.contiguous()
        real = None if mask.keys is None else mask.keys.contiguous()
        source = None if memory is None else Mask.for_memory(1, memory).kernel[0]  # (B, 1, 1, S)
        source = None if source is None else source.contiguous()
        vectors, at = cache.buffer.vectors, native.address
        arguments = native.Pass(at(x), x.size(0), x.size(1), mask.length - x.size(1), at(vectors), vectors.size(1),
                           vectors.size(3), at(slots), at(real), at(heads), 0 if heads is None else heads.size(0),
                           0 if heads is None else heads.size(3), at(source))  # fmt: skip
        native.library().decode(ctypes.byref(self.structs[1]), ctypes.byref(arguments))  # type: ignore[union-attr]
        return x

    def heads_of(self, memory: Tensor) -> Tensor:
        """Return the keys and values of the source for all layers, computed once: (B, S, C) -> (B, layers, H_kv, S, 2, D)."""
        blocks: Any = self.blocks
        all_heads = memory.new_empty(memory.size(0), len(blocks), self.key_heads, memory.size(1), 2, self.d_head)
        for index, block in enumerate(blocks):
            both = block.cross.layer.key_value(memory).unflatten(-1, (2, self.key_heads, self.d_head))
            all_heads[:, index] = both.permute(0, 3, 1, 2, 4)  # (B, S, 2, H_kv, D) -> (B, H_kv, S, 2, D)
        return all_heads


# --- which stacks are supported, and their description for native.cpp


def suits(stack: Stack) -> bool:
    """Whether native.cpp supports all that this packed stack computes."""
    blocks: list[Any] = list(stack.blocks)
    return (
        type(stack) is Stack
        and len(stack.positions) == 0
        and all(type(block) is Block and block_suits(block) for block in blocks)
        and norm_suits(stack.norm)
        and len({(b.cross is None, b.attention.layer.mixer.score.scale) for b in blocks}) == 1
    )


def block_suits(block: Any) -> bool:
    """Whether native.cpp supports this block: plain residuals and norms, softmax of scaled dot products, no gate, a known activation."""
    if block.feedforward is None:
        return False
    sublayers = [part for part in (block.attention, block.cross, block.feedforward) if part is not None]
    attentions = [part.layer for part in sublayers[:-1]]
    inner = block.feedforward.layer
    return (
        all(type(part) is Residual for part in sublayers)
        and all(norm_suits(norm) for part in sublayers for norm in (part.before, part.after))
        and all(type(getattr(a, "mixer", None)) is Softmax and type(a.mixer.score) is Dot for a in attentions)
        and len({a.mixer.score.scale for a in attentions}) == 1
        and all(getattr(a.output, "panels", None) is not None for a in attentions)
        and type(inner) is FeedForward
        and inner.gate is None
        and inner.activation in NUMBERS
    )


def norm_suits(norm: nn.Module) -> bool:
    """Identity, RMS norm, or layer norm with its bias."""
    return isinstance(norm, nn.Identity | RMSNorm) or (isinstance(norm, LayerNorm) and norm.bias is not None)


def block_of(block: Any) -> native.BlockStruct:
    """Describe a block by the addresses of its packed weights."""
    attention, cross, inner = block.attention.layer, block.cross, block.feedforward.layer
    return native.BlockStruct(
        residual_of(block.attention, attention.query_key_value, attention.output),
        native.ResidualStruct() if cross is None else residual_of(cross, cross.layer.query, cross.layer.output),
        residual_of(block.feedforward, inner.up, inner.down),
    )


def residual_of(part: Residual, first: Any, last: Any) -> native.ResidualStruct:
    """Describe a sublayer: its norms, its first and its last matrix."""
    return native.ResidualStruct(norm_of(part.before), norm_of(part.after), first.struct, last.struct)


def norm_of(norm: Any) -> native.NormStruct:
    """Return the addresses of a norm's weights; zeros for Identity."""
    if isinstance(norm, nn.Identity):
        return native.NormStruct()
    return native.NormStruct(norm.weight.data_ptr(), native.address(getattr(norm, "bias", None)), norm.eps)
