"""pack(network): a copy of a network for fast inference on a CPU, its weights laid out for the kernels.

    fast = pack(network)          # same interface: fast(batch), fast.start, fast.step, fast.head

For inference only: it cannot be trained, saved or moved to another device, and has no hooks and taps. Matrices are copied when
packing, so pack again after changing them. Results agree with the plain network's to rounding (1e-5).
"""

from __future__ import annotations

import copy
import ctypes
from collections import OrderedDict
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.engine import native
from qkv.engine.kv_cache import KVCache
from qkv.engine.native_decoder import NativeStack, suits
from qkv.memory import keep_freed_memory
from qkv.parts.attention import Attention
from qkv.parts.heads import Vocabulary
from qkv.parts.masks import Mask
from qkv.parts.positions import PositionEncoding
from qkv.parts.stack import Stack
from qkv.parts.state import Layer
from qkv.parts.tap import Tap

FEW_ROWS = {1: 64, 2: 256}
"""Threads (2 = two or more) -> rows up to which a product in oneDNN's blocked layout is faster (at 32 rows 1.6 x with two
threads, 1.15 x with one); beyond, and for a single row, MKL's plain one is (1.15 x at 4096)."""

M = TypeVar("M", bound=nn.Module)


def pack(network: M) -> M:
    """Return a fast copy of `network`, which is not changed. Costs about one more copy of the matrices in memory."""
    keep_freed_memory()
    return pack_module(network, {}).eval()


def pack_module(module: Any, memo: dict[int, Any]) -> Any:
    """Return the fast version of a module and all its children.

    `memo` maps the id of a module or weight to its copy, as in copy.deepcopy: what is shared (ALBERT's layers, tied
    embeddings) stays shared.
    """
    if id(module) not in memo:
        memo[id(module)] = fast_module(module, memo) or copy_module(module, memo)
    return memo[id(module)]


def fast_module(module: nn.Module, memo: dict[int, Any]) -> nn.Module | None:
    """Return the fast module for this plain one, None if there is none."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module.weight, module.bias)
    if type(module) is Attention and isinstance(module.query, nn.Linear):
        return PackedAttention(module, pack_module(module.mixer, memo))
    if type(module) is Vocabulary:  # not its subclass that copies from the source
        return PackedVocabulary(copy_module(module, memo))
    if isinstance(module, Stack):
        packed = copy_module(module, memo)
        return NativeStack(packed) if suits(packed) else packed  # type: ignore[arg-type]
    return Tap() if isinstance(module, Tap) else None  # without the hooks of the plain one


def copy_module(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copy a module with packed children and without hooks; its own weights are shared with the plain one, and frozen."""
    new = copy.copy(module)
    new._forward_hooks, new._forward_pre_hooks = OrderedDict(), OrderedDict()
    new._parameters = {n: None if p is None else freeze(p, memo) for n, p in module._parameters.items()}
    new._modules = {n: None if m is None else pack_module(m, memo) for n, m in module._modules.items()}
    return new


def freeze(weight: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
    """Return a parameter over the same memory that needs no gradient."""
    return memo.setdefault(id(weight), nn.Parameter(weight.detach(), requires_grad=False))


class PackedLinear(nn.Module):
    """x W^T + b: (..., in) -> (..., out).

    W (out, in) is stored in panels (out / 16, in, 16) for native.cpp. Where native.cpp is not available it is stored twice: in
    oneDNN's blocked layout for few rows, and plain for many.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        weight = weight.detach()
        d_out, d_in = self.shape = weight.shape
        self.bias = None if bias is None else bias.detach()
        self.panels: Tensor | None = None
        if native.supports(weight):
            self.panels, self.padded_bias = native.panels(weight, self.bias)
            self.struct = native.LinearStruct(self.panels.data_ptr(), self.padded_bias.data_ptr(), d_in, d_out)
        else:
            self.weight, self.blocks = weight, reorder(weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.panels is None:
            return self.forward_without_native(x)
        assert x.dtype == torch.float32 and x.size(-1) == self.shape[1], f"{x.dtype} {tuple(x.shape)}: {self.shape}"
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.shape[0])  # (..., out)
        rows = x.numel() // self.shape[1]
        native.library().linear(ctypes.byref(self.struct), x.data_ptr(), rows, y.data_ptr())  # type: ignore[union-attr]
        return y

    def forward_without_native(self, x: Tensor) -> Tensor:
        """Use oneDNN's blocked layout for a few rows, and the plain matrix for a single row or many."""
        rows = x.numel() // x.size(-1)
        if self.blocks is None or not 1 < rows <= FEW_ROWS[min(torch.get_num_threads(), 2)]:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")


def reorder(weight: Tensor) -> Tensor | None:
    """Return W in oneDNN's blocked layout; None where it supports neither this device nor this dtype."""
    possible = weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if possible else None


def concatenate(*layers: nn.Linear) -> PackedLinear:
    """Return several projections of the same vectors as one: (..., in) -> (..., sum of their outputs)."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    if all(layer.bias is None for layer in layers):
        return PackedLinear(weight, None)
    biases = [weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach() for layer in layers]
    return PackedLinear(weight, torch.cat(biases))


class PackedAttention(nn.Module):
    """Attention with one matrix product for query, key and value; in cross-attention one for key and value of the memory."""

    split: Any = Attention.split
    mix_beams: Any = Attention.mix_beams

    def __init__(self, plain: Attention, mixer: nn.Module):
        super().__init__()
        self.d_head, self.cross = plain.d_head, plain.cross
        self.widths = [plain.query.out_features, plain.key.out_features, plain.value.out_features]
        if plain.cross:
            self.query, self.key_value = concatenate(plain.query), concatenate(plain.key, plain.value)
        else:
            self.query_key_value = concatenate(plain.query, plain.key, plain.value)
        self.mixer = mixer
        self.output = concatenate(plain.output)

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


class PackedVocabulary(nn.Module):
    """Vocabulary with a packed matrix; `features`, `weight` and `bias` are those of the plain one, which the loss reads."""

    copies = False

    def __init__(self, plain: Any):
        super().__init__()
        self.plain = plain
        self.features, self.weight, self.bias = plain.features, plain.weight, plain.bias
        self.linear = PackedLinear(plain.weight, plain.bias)

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.linear(self.features(x))  # (..., V)

    def log_probs(self, x: Tensor) -> Tensor:
        """Return log-probabilities (..., V); native code overwrites the logits with them."""
        logits = self(x)  # (..., V)
        if self.linear.panels is None:
            return logits.float().log_softmax(-1)
        width = logits.size(-1)
        native.library().log_softmax(logits.data_ptr(), logits.numel() // width, width)  # type: ignore[union-attr]
        return logits
