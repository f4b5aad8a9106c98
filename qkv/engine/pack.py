"""pack(network): a copy of a network for fast inference on a CPU, its weights laid out for the kernels.

    fast = pack(network)                       # same interface: fast(batch), fast.start, fast.step, fast.head
    fast = pack(network, precision="int8")     # matrices rounded to int8: a quarter of the memory, faster, not exact

For inference only: it cannot be trained, saved or moved to another device, and has no hooks and taps. Matrices are copied when
packing, so pack again after changing them. In float32, results agree with the plain network's to rounding (1e-5).
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

from qkv.engine.kv_cache import KVCache
from qkv.engine.linear import NativeVocabulary, PackedLinear, QuantizedLinear, can_join
from qkv.engine.native_stack import NativeStack, suits
from qkv.engine.packed_recurrent import PackedRecurrentStack
from qkv.engine.quantize import quantize
from qkv.engine.rebuild import Rebuild
from qkv.memory import keep_freed_memory
from qkv.parts.attention import Attention
from qkv.parts.feedforward import FeedForward
from qkv.parts.heads import Vocabulary
from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.stack import Stack
from qkv.parts.state import Layer
from qkv.parts.tap import Tap

M = TypeVar("M", bound=nn.Module)


def pack(network: M, precision: str = "float32") -> M:
    """Return a fast copy of `network`, which is not changed. Costs about one more copy of the matrices in memory, or with
    precision "int8" a quarter; those of a quantised network (quantize.py) are shared."""
    keep_freed_memory()
    network = quantize(network) if precision == "int8" else network
    packed: M = Rebuild(replace)(network).eval()
    return packed


def replace(module: Any, rebuild: Rebuild) -> nn.Module | None:
    """Return the fast module for this plain one, None if there is none."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module.weight, module.bias)
    if isinstance(module, QuantizedLinear):
        return module.share(module.bias)  # of its own: the plain one may be moved or converted
    if type(module) is Attention and can_pack(module):
        return PackedAttention(module, rebuild(module.mixer))
    if type(module) is FeedForward and can_pack_inner(module):
        return PackedFeedForward(module)
    if type(module) is Vocabulary:  # not its subclass that copies from the source
        copied: Any = rebuild.copy(module)
        return NativeVocabulary(copied, PackedLinear(module.weight, module.bias))
    if isinstance(module, Stack):
        packed: Any = rebuild.copy(module)
        return NativeStack(packed) if suits(packed) else packed
    if type(module) is RecurrentStack:
        return PackedRecurrentStack(module, rebuild)
    return Tap() if isinstance(module, Tap) else None  # without the hooks of the plain one


def can_pack(attention: Attention) -> bool:
    """Whether its projections can be one product."""
    return can_join_all(attention.query, attention.key, attention.value) and can_join_all(attention.output)


def can_pack_inner(inner: FeedForward) -> bool:
    return can_join_all(*([] if inner.gate is None else [inner.gate]), inner.up) and can_join_all(inner.down)


def can_join_all(*layers: Any) -> bool:
    """Whether layers can be one: all float32, or all quantised with full panels."""
    if all(isinstance(layer, nn.Linear) for layer in layers):
        return True
    return all(isinstance(layer, QuantizedLinear) for layer in layers) and (len(layers) == 1 or can_join(list(layers)))


def join(*layers: Any) -> Any:
    """Return several projections of the same vectors as one: (..., in) -> (..., sum of their outputs)."""
    if isinstance(layers[0], QuantizedLinear):
        return layers[0].share(layers[0].bias) if len(layers) == 1 else QuantizedLinear.join(layers)
    return PackedLinear.join(layers)


class PackedAttention(nn.Module):
    """Attention with one matrix product for query, key and value; in cross-attention one for key and value of the memory."""

    split: Any = Attention.split
    mix_beams: Any = Attention.mix_beams

    def __init__(self, plain: Attention, mixer: nn.Module):
        super().__init__()
        self.d_head, self.cross = plain.d_head, plain.cross
        query, key, value, output = plain.query, plain.key, plain.value, plain.output
        self.widths = [layer.out_features for layer in (query, key, value)]
        if plain.cross:
            self.query, self.key_value = join(query), join(key, value)
        else:
            self.query_key_value = join(query, key, value)
        self.mixer = mixer
        self.output = join(output)

    def forward(self, x: Tensor, mask: Mask, encoding: PositionEncoding | None = None, memory: Tensor | None = None,
                state: Layer | None = None) -> tuple[Tensor, Layer]:  # fmt: skip
        """As Attention.forward."""
        query, key, value, kept = self.read_memory(x, memory, state) if self.cross else self.extend(x, encoding, state)
        mix = self.mixer if len(key) == len(query) else self.mix_beams
        mixed = mix(query, key, value, mask, encoding)  # (B, H, T, D)
        return self.output(mixed.transpose(1, 2).flatten(2)), kept  # (B, H, T, D) -> (B, T, C)

    def extend(self, x: Tensor, encoding: PositionEncoding | None, state: Layer | None
               ) -> tuple[Tensor, Tensor, Tensor, Layer]:  # fmt: skip
        """As Attention.extend, with the query (B, H, T, D), and a KVCache in place of tensors that grow."""
        query, key, value = map(self.split, self.query_key_value(x).split(self.widths, -1))  # (B, H or H_kv, T, D)
        if encoding is not None:
            query, key = encoding.rotate(query), encoding.rotate(key)
        if state is None:
            return query, key, value, {}
        past = state.get("cache") or KVCache.empty(1, key.size(1), self.d_head, key, in_order=True)
        cache = past.append(key, value)
        key, value = cache.keys_values()  # (B, H_kv, S, D)
        return query, key, value, {"cache": cache}

    def read_memory(self, x: Tensor, memory: Tensor | None, state: Layer | None
                    ) -> tuple[Tensor, Tensor, Tensor, Layer]:  # fmt: skip
        """As Attention.read_memory, with the query (B, H, T, D)."""
        query = self.split(self.query(x))  # (B, H, T, D)
        if state is not None and "memory_key" in state:
            return query, state["memory_key"], state["memory_value"], state
        assert memory is not None, "cross-attention needs a memory"
        key, value = map(self.split, self.key_value(memory).split(self.widths[1:], -1))  # (B, H_kv, S, D)
        return query, key, value, {} if state is None else {"memory_key": key, "memory_value": value}


class PackedFeedForward(nn.Module):
    """FeedForward with one matrix product for gate and up."""

    def __init__(self, plain: FeedForward):
        super().__init__()
        self.gated = plain.gate is not None
        self.first = join(plain.gate, plain.up) if self.gated else join(plain.up)
        self.last = join(plain.down)
        self.activation = plain.activation

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """As FeedForward.forward."""
        inner = self.first(x)  # (B, T, d_ff), or gate and up beside each other
        if self.gated:
            gate, up = inner.chunk(2, -1)
            return self.last(self.activation(gate) * up)
        return self.last(self.activation(inner))
