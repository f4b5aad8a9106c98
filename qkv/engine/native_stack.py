"""NativeStack: a packed stack whose layers are one call of cpp/stack.cpp, for decoders with a KV cache and for encoders."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from qkv.engine import native
from qkv.engine.kv_cache import KVCache
from qkv.engine.linear import NativeLinear
from qkv.engine.training_kernels import quick_gelu
from qkv.parts.block import Block, ParallelBlock, Residual
from qkv.parts.feedforward import ACTIVATIONS
from qkv.parts.masks import Mask
from qkv.parts.mixers import Window
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.positions import Alibi, PositionEncoding, Rotary, Rotation, T5Bias
from qkv.parts.scores import Dot
from qkv.parts.softmax import Softmax
from qkv.parts.stack import Stack
from qkv.parts.state import EncoderOutput, State

NUMBERS = {
    ACTIVATIONS[name]: number for number, name in enumerate(("relu", "silu", "gelu", "gelu-tanh", "tanh", "linear"))
}
NUMBERS[quick_gelu] = NUMBERS[ACTIVATIONS["gelu-tanh"]]
"""Activation -> its number in cpp/activations.h."""


class NativeStack(Stack):
    """A packed stack that runs in native code.

    With a state it takes T more tokens in one call, and its only entry in the state is the KVCache of all layers together (and
    "memory_heads", the keys and values of the source). Without one it reads whole texts, padding left out of the computation. What
    the kernels do not support, such as a prefix mask, is computed layer by layer as in Stack.
    """

    def __init__(self, packed: Stack):
        super().__init__(list(packed.blocks), packed.norm, list(packed.positions))
        first: Any = packed.blocks[0]
        attention = part(first, "attention")
        self.heads, self.key_heads = (width // attention.d_head for width in attention.widths[:2])
        self.d_head = attention.d_head
        self.whole_texts = self.d_head % native.PANEL_WIDTH == 0 and not any(window_of(block) for block in self.blocks)
        """Whether the kernels read whole texts; steps with a state are always possible."""
        blocks = (native.BlockStruct * len(self.blocks))(*map(describe_block, self.blocks))
        self.structs = blocks, native.StackStruct(
            ctypes.addressof(blocks), len(blocks), part(first, "feedforward").last.shape[0], self.heads, self.key_heads,
            self.d_head, NUMBERS[part(first, "feedforward").activation], describe_norm(self.norm),
        )  # fmt: skip

    def forward(self, x: Tensor, mask: Mask, memory: EncoderOutput | None = None, state: State | None = None
                ) -> tuple[Tensor, State | None]:  # fmt: skip
        """As Stack.forward."""
        if mask.prefix is not None and state is not None:
            return self.read_source(x, mask)
        encoding = self.positions[0](mask) if len(self.positions) else None
        if state is None:
            found = self.read_texts(x, mask, encoding) if memory is None and self.whole_texts else None
            return super().forward(x, mask, memory) if found is None else (found, None)
        kept = dict(state.layer(0))
        past = kept.pop("cache", None) or KVCache.empty(len(self.blocks), self.key_heads, self.d_head, like=x)
        if memory is not None and not kept:
            kept["memory_heads"] = self.heads_of(memory.vectors)
        cache = past.extend(x.size(0), x.size(1))
        x = self.extend(x, mask, encoding, memory, cache, kept.get("memory_heads"))
        return x, State(({"cache": cache, **kept},), mask.length, mask.keys, memory)

    def read_source(self, x: Tensor, mask: Mask) -> tuple[Tensor, State]:
        """Read the first tokens, (B, T, C), layer by layer: the kernels have no prefix mask."""
        x, read = super().forward(x, mask, None, State())
        assert read is not None
        cache = KVCache.stack([layer["cache"] for layer in read.layers])
        return x, State(({"cache": cache},), mask.length, mask.keys)

    def extend(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None, memory: EncoderOutput | None, cache: KVCache,
               heads: Tensor | None) -> Tensor:  # fmt: skip
        """Run all layers on T more tokens x (B, T, C); the kernel also writes their keys and values into the cache. `heads`: heads_of."""
        slots = None if cache.slots is None else cache.slots.contiguous()
        real = None if mask.keys is None else mask.keys.contiguous()
        places = None if mask.keys is None else mask.key_positions.expand(len(x), -1).contiguous()  # (B, S)
        assert heads is None or len(x) == 0 or len(x) % len(heads) == 0, "each source has the same number of rows"
        source = None if memory is None else Mask.for_memory(1, memory).kernel[0]  # (B, 1, 1, S)
        source = None if source is None else source.contiguous()
        vectors, at = cache.buffer.vectors, native.address
        return self.run(x, mask, encoding, cache=at(vectors), slots=vectors.size(1), capacity=vectors.size(3), slot=at(slots),
                        real=at(real), positions=at(places), memory=at(heads), sentences=0 if heads is None else heads.size(0),
                        source=0 if heads is None else heads.size(3), source_real=at(source))  # fmt: skip

    def read_texts(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None) -> Tensor | None:
        """Run all layers on whole texts (B, T, C); None where only a table can express which tokens see each other."""
        if mask.queries != mask.length or mask.prefix is not None or type(mask) is not Mask:
            return None
        spans = mask.spans(len(x))
        if spans is not None:
            return self.run(x, mask, encoding, spans=native.address(spans), n_spans=len(spans))
        if mask.documents is not None or mask.keys is None:
            return None
        if isinstance(encoding, Rotation | None):
            return self.read_packed(x, mask, encoding)
        if not mask.padded_right:
            return None
        ends = mask.keys.sum(1).clamp(min=1)  # (B,): a row of padding sees its first token
        rows = torch.arange(len(x))
        spans = torch.stack([rows, torch.zeros_like(rows), ends], 1)
        return self.run(x, mask, encoding, spans=native.address(spans), n_spans=len(spans))

    def read_packed(self, x: Tensor, mask: Mask, encoding: Rotation | None) -> Tensor | None:
        """Read the real tokens of all rows as one row, each text a span of it; padded positions of the result are 0."""
        assert mask.keys is not None
        rows, places = mask.keys.nonzero().unbind(1)  # (N,) each
        counts = mask.keys.sum(1)  # (B,)
        if not bool(counts.all()):
            return None
        ends = counts.cumsum(0)
        spans = torch.stack([torch.zeros_like(ends), ends - counts, ends], 1)  # (B, 3)
        if encoding is not None:
            angles = encoding.angles.expand(len(x), -1, -1, -1)[rows, :, places]  # (N, 1, D/2)
            encoding = Rotation(angles.transpose(0, 1)[None], encoding.interleaved)  # (1, 1, N, D/2)
        found = self.run(
            x[rows, places][None], mask, encoding, spans=native.address(spans), n_spans=len(spans)
        )  # (1, N, C)
        return x.new_zeros(x.shape).index_put((rows, places), found[0])  # (B, T, C)

    def run(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None, **arguments: Any) -> Tensor:
        """Call the kernel on x (B, T, C) with these fields of Pass."""
        assert x.dtype == torch.float32 and x.device.type == "cpu", f"{x.dtype}, {x.device}"
        x = x.clone(memory_format=torch.contiguous_format)  # the kernel overwrites it
        if x.numel() == 0:
            return x
        past = mask.length - mask.queries if arguments.get("cache") else 0
        if isinstance(encoding, Rotation):
            tables = encoding.cos.float().contiguous(), encoding.sin.float().contiguous()  # (B or 1, 1, T, D/2)
            arguments |= {"cosine": tables[0].data_ptr(), "sine": tables[1].data_ptr(), "interleaved": encoding.interleaved,
                          "rotation_row": row_stride(tables[0])}  # fmt: skip
        elif encoding is not None:
            bias = encoding.scores.float().contiguous()  # type: ignore[attr-defined]  # (B or 1, H, T, S)
            arguments |= {"bias": bias.data_ptr(), "bias_row": row_stride(bias)}
        given = native.Pass(x=x.data_ptr(), rows=x.size(0), tokens=x.size(1), past=past, threads=torch.get_num_threads(),
                            causal=mask.causal, **arguments)  # fmt: skip
        native.library().run_stack(ctypes.byref(self.structs[1]), ctypes.byref(given))  # type: ignore[union-attr]
        return x

    def heads_of(self, memory: Tensor) -> Tensor:
        """Return the keys and values of the source for all layers, computed once: (B, S, C) -> (B, layers, H_kv, S, 2, D)."""
        blocks: Any = self.blocks
        all_heads = memory.new_empty(memory.size(0), len(blocks), self.key_heads, memory.size(1), 2, self.d_head)
        for index, block in enumerate(blocks):
            both = block.cross.layer.key_value(memory).unflatten(-1, (2, self.key_heads, self.d_head))
            all_heads[:, index] = both.permute(0, 3, 1, 2, 4)  # (B, S, 2, H_kv, D) -> (B, H_kv, S, 2, D)
        return all_heads


def row_stride(table: Tensor) -> int:
    """Return how far apart the rows of a table (B or 1, ...) are; 0 if one serves all rows."""
    return 0 if len(table) == 1 else table.stride(0)


# --- which stacks are supported, and their description for the kernels


def part(block: Any, name: str) -> Any:
    """Return the layer in a slot of a block, whose residual connection is around it or (ParallelBlock) around both."""
    found = getattr(block, name)
    return getattr(found, "layer", found)


def suits(stack: Stack) -> bool:
    """Whether the kernels support all that this packed stack computes."""
    blocks: list[Any] = list(stack.blocks)
    return (
        native.library() is not None
        and type(stack) is Stack
        and (
            len(stack.positions) == 0
            or (len(stack.positions) == 1 and type(stack.positions[0]) in (Rotary, T5Bias, Alibi))
        )
        and all(block_suits(block) for block in blocks)
        and norm_suits(stack.norm)
        and len({(type(block), getattr(block, "cross", None) is None) for block in blocks}) == 1
        and len({(*part(block, "attention").widths, part(block, "feedforward").activation) for block in blocks}) == 1
        and all(
            cross.layer.widths == blocks[0].attention.layer.widths
            for b in blocks
            if (cross := getattr(b, "cross", None))
        )
        and not (
            len(stack.positions)
            and any(window_of(block) for block in blocks)
            and type(stack.positions[0]) is not Rotary
        )
    )


def block_suits(block: Any) -> bool:
    """Whether the kernels support this block: plain residuals and norms, softmax of scaled dot products, known activations."""
    if type(block) not in (Block, ParallelBlock) or block.feedforward is None:
        return False
    names = (
        ["attention", "cross", "feedforward"]
        if getattr(block, "cross", None) is not None
        else ["attention", "feedforward"]
    )
    attentions, inner = [part(block, name) for name in names[:-1]], part(block, "feedforward")
    if not all(hasattr(attention, "widths") for attention in attentions) or not hasattr(inner, "first"):
        return False  # not packed
    linears = [*(linear for attention in attentions for linear in linears_of(attention)), inner.first, inner.last]
    return (
        all(residual_suits(block, name) for name in names)
        and all(mixer_suits(attention.mixer) for attention in attentions)
        and len({scale_of(attention.mixer) for attention in attentions}) == 1
        and all(linear.has_kernel for linear in linears)
        and inner.activation in NUMBERS
    )


def linears_of(attention: Any) -> list[NativeLinear]:
    """Return the first and the last matrix of a packed attention."""
    return [attention.query if attention.cross else attention.query_key_value, attention.output]


def residual_suits(block: Any, name: str) -> bool:
    if type(block) is ParallelBlock:
        return norm_suits(block.norm) and not isinstance(block.norm, nn.Identity)
    residual = getattr(block, name)
    return type(residual) is Residual and norm_suits(residual.before) and norm_suits(residual.after)


def mixer_suits(mixer: Any) -> bool:
    return type(mixer) is Window or (type(mixer) is Softmax and type(mixer.score) is Dot)


def norm_suits(norm: nn.Module) -> bool:
    return isinstance(norm, nn.Identity) or (isinstance(norm, RMSNorm | LayerNorm) and native.supports(norm.weight))


def scale_of(mixer: Any) -> float:
    return float(mixer.scale if isinstance(mixer, Window) else mixer.score.scale)


def window_of(block: Any) -> int:
    """Return the size of a block's window; 0 if it has none."""
    mixer = part(block, "attention").mixer
    return mixer.size if isinstance(mixer, Window) else 0


def describe_block(block: Any) -> native.BlockStruct:
    """Describe a block by the addresses of its packed weights."""
    attention, inner, cross = part(block, "attention"), part(block, "feedforward"), getattr(block, "cross", None)
    none = native.ResidualStruct()
    return native.BlockStruct(
        describe_residual(norms_of(block, "attention"), attention.query_key_value, attention.output),
        none if cross is None else describe_residual(norms_of(block, "cross"), cross.layer.query, cross.layer.output),
        describe_residual(norms_of(block, "feedforward"), inner.first, inner.last),
        scale_of(attention.mixer), window_of(block), getattr(attention.mixer, "n_global", 0), inner.gated,
        isinstance(block, ParallelBlock),
    )  # fmt: skip


def norms_of(block: Any, name: str) -> tuple[nn.Module, nn.Module]:
    """Return the norms before and after a sublayer; those of a ParallelBlock share the one before attention."""
    if isinstance(block, ParallelBlock):
        return block.norm if name == "attention" else nn.Identity(), nn.Identity()
    residual = getattr(block, name)
    return residual.before, residual.after


def describe_residual(
    norms: tuple[nn.Module, nn.Module], first: NativeLinear, last: NativeLinear
) -> native.ResidualStruct:
    """Describe a sublayer: its norms, its first and its last matrix."""
    return native.ResidualStruct(*map(describe_norm, norms), first.describe(), last.describe())


def describe_norm(norm: Any) -> native.NormStruct:
    """Return the addresses of a norm's weights; zeros for Identity."""
    if isinstance(norm, nn.Identity):
        return native.NormStruct()
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return native.NormStruct(
        norm.weight.data_ptr(), native.address(getattr(norm, "bias", None)), eps, isinstance(norm, LayerNorm)
    )
